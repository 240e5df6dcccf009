"""Pictures of a trained translator: how it came to be one, and where it looks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..figures import Drawn, curves_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .predictions import Answer
    from .predictor import TranslationPredictor


def show(
    predictor: "TranslationPredictor", texts: Sequence[str] = (), out: str | Path | None = None, *, format: str = "png"
) -> Drawn:
    """Draw a run's training, and for each sentence the attention between both languages, into a folder.

    Without `out` it is as `Drawn.into` says. The sentences also become `page.html`, the viewer.
    """
    drawn = Drawn.into(predictor, out, format)
    look = predictor.look(texts) if texts else None  # what cannot be read is refused before anything is drawn
    drawn.add("training", curves_of, predictor.folder, "bleu")
    if look is not None:
        for number, answer in enumerate(look.answers, start=1):
            drawn.add(f"sentence-{number}", alignment, answer)
        drawn.add_page(predictor.page(look))
    return drawn


def alignment(answer: "Answer") -> "Figure":
    """Which words of the source each word looked at, the mean of the last block's heads."""
    assert answer.attention is not None
    cross = answer.attention.of("cross")
    return cross.plot(-1, "mean", source=answer.source_tokens, target=answer.tokens, title=answer.text)
