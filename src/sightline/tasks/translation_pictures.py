"""Pictures of a trained translator: how it came to be one, and where it looks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..checks import nearest
from ..view import pictures
from .image_pictures import FORMATS, Drawn, Missing, place, training_of

if TYPE_CHECKING:
    from .translation_predictor import TranslationPredictor


def show(
    predictor: "TranslationPredictor", texts: Sequence[str] = (), out: str | Path | None = None, *, format: str = "png"
) -> Drawn:
    """Draw a run's training, and for each sentence the attention between both languages, into a folder.

    Without `out` it is as `place` says. The sentences also become `page.html`, the viewer.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be {nearest(format, FORMATS)}")
    folder = place(predictor, out)
    look = predictor.look(texts) if texts else None  # what cannot be read is refused before anything is drawn
    drawn = Drawn()
    try:
        drawn.files.append(pictures.save(training_of(predictor.folder, "bleu"), folder / f"training.{format}"))
    except Missing as reason:
        drawn.left_out["training"] = str(reason)
    if look is not None:
        for number, answer in enumerate(look.answers, start=1):
            assert answer.attention is not None
            cross = answer.attention.of("cross")
            figure = cross.plot(-1, "mean", source=answer.source_tokens, target=answer.tokens, title=answer.text)
            drawn.files.append(pictures.save(figure, folder / f"sentence-{number}.{format}"))
        drawn.files.append(predictor.page(look).save(folder / "page.html"))
    return drawn
