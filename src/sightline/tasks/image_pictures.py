"""Pictures of a trained image classifier: what it has learnt, how it came to, and what it looks at."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import zoo
from ..attention import MultiHeadAttention
from ..attention.masks import LearntMask
from ..attention.scores import CosineScore
from ..checks import nearest
from ..layers import LearntPositions, SinusoidalPositions
from ..models.image_classifier import ImageClassifier
from ..sharing import MOST_BYTES, Shared
from ..view import curves, learnt, overlays, pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .image_predictor import ImagePredictor, Look

FORMATS = ("png", "svg")
LOG = "metrics.jsonl"


@dataclass
class Drawn:
    """What was drawn of a model, and what there is none of."""

    files: list[Path] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """The name of a picture, and why it was not drawn."""


class Missing(Exception):  # noqa: N818 - it is no error
    """Why a model has nothing to draw here."""


def show(
    predictor: "ImagePredictor", images: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png"
) -> Drawn:
    """Draw a model's weights and training, and its attention on these images, into a folder.

    Without `out` it is as `place` says. The images also become `page.html`, the viewer.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be {nearest(format, FORMATS)}")
    folder = place(predictor, out)
    look = predictor.look(images) if images else None  # what cannot be read is refused before anything is drawn
    drawn = Drawn()
    for name, draw in PICTURES.items():
        try:
            drawn.files.append(pictures.save(draw(predictor), folder / f"{name}.{format}"))
        except Missing as reason:
            drawn.left_out[name] = str(reason)
    if look is not None:
        for number, figure in enumerate(attention(predictor, look), start=1):
            drawn.files.append(pictures.save(figure, folder / f"image-{number}.{format}"))
        drawn.files.append(predictor.page(look).save(folder / "page.html"))
    return drawn


def place(predictor: Shared, out: str | Path | None) -> Path:
    """Where pictures go: the folder that was told, or `pictures/` in the run's, or here for a model that ships."""
    home = Path() if zoo.ships(predictor.folder) else predictor.folder
    folder = home / "pictures" if out is None else Path(out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, got {str(folder)!r}, which is a file")
    return folder


def filters(predictor: "ImagePredictor") -> "Figure":
    """The kernel of each channel of a token."""
    return learnt.filters(_array(predictor.model.patches.project.weight))


def positions(predictor: "ImagePredictor") -> "Figure":
    """The table of positions."""
    return learnt.positions(position_table(predictor.model), **_form(predictor.model))


def similarity(predictor: "ImagePredictor") -> "Figure":
    """How alike positions are."""
    return learnt.similarity(position_table(predictor.model), **_form(predictor.model))


def masks(predictor: "ImagePredictor") -> "Figure":
    """The learnt mask of each block and head."""
    learnt_masks = [one.mask for one in _attentions(predictor.model) if isinstance(one.mask, LearntMask)]
    kind = predictor.recipe.model.mask
    if not learnt_masks:
        raise Missing(f"model.mask is {kind}, so there are none to learn")
    start = learnt_masks[0].start
    tables = [_array(mask.table) for mask in learnt_masks]
    return learnt.masks(tables, start=start, title=f"Learnt {kind} masks: who looks (down) at whom (across)")


def temperatures(predictor: "ImagePredictor") -> "Figure":
    """The learnt temperature of each block and head."""
    cosine = [one.score for one in _attentions(predictor.model) if isinstance(one.score, CosineScore)]
    if not cosine:
        raise Missing(f"model.score is {predictor.recipe.model.score}, which has no temperature")
    start = cosine[0].floor * math.exp(cosine[0].start)
    return learnt.temperatures([_array(score.temperature().flatten()) for score in cosine], start=start)


def training(predictor: Shared) -> "Figure":
    """Loss, validation accuracy and learning rate, as the run wrote them down."""
    return training_of(predictor.folder, "accuracy")


def training_of(folder: Path, goal: str) -> "Figure":
    """The same of any run, whatever the metric it was judged by."""
    lines = list(log_lines(folder / LOG))
    panels: dict[str, dict[str, curves.Line]] = {}
    for panel, line, path in (
        ("loss", "training", ("loss",)),
        ("loss", "validation", ("validation", "loss")),
        (f"validation {goal}", goal, ("validation", goal)),
        ("learning rate", "rate", ("learning_rate",)),
    ):
        points = [(fact["step"], value) for fact in lines if (value := number(fact, path)) is not None]
        if points:
            panels.setdefault(panel, {})[line] = ([step for step, _ in points], [value for _, value in points])
    if not panels:
        raise Missing(f"there is no {LOG} with measurements in {folder}")
    best = [fact["step"] for fact in lines if fact.get("best") is True]
    return curves.curves(panels, best=best[-1] if best else None)


PICTURES: dict[str, Callable[["ImagePredictor"], "Figure"]] = {
    "filters": filters,
    "positions": positions,
    "similarity": similarity,
    "masks": masks,
    "temperatures": temperatures,
    "training": training,
}
"""What is drawn of every run, by the name of its file."""


def attention(predictor: "ImagePredictor", look: "Look") -> Iterator["Figure"]:
    """For each image every head of every block, and the rollout, over the pixels."""
    form = _form(predictor.model)
    for i, (name, pixels, answer) in enumerate(zip(look.names, look.pixels, look.answers, strict=True)):
        weights = [_array(seen.weights[i]) for seen in look.record]
        likeliest = [f"{share:.1%} {label}" for label, share in list(answer.scores.items())[:3]]
        yield overlays.over_pixels(
            _array(pixels.permute(1, 2, 0).squeeze(-1)),
            [overlays.looked_at(block, **form) for block in weights],
            [overlays.looked_at(flow, **form) for flow in overlays.rollout(weights)],
            words=[*likeliest, *([name] if name else [])],
        )


def position_table(model: ImageClassifier) -> Any:
    """What is added to each token for its place: (N, M)"""
    if not isinstance(model.positions, LearntPositions | SinusoidalPositions):
        raise Missing("model.positions is none")
    blank = torch.zeros(1, model.config.sequence_length, model.config.width, device=model.mean.device)
    return _array(model.positions(blank)[0])


def log_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's log that can be read; a broken one is passed over."""
    if not path.is_file():
        return
    if path.stat().st_size > MOST_BYTES:
        raise Missing(f"{path} is over {MOST_BYTES:,} bytes")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(fact, dict) and number(fact, ("step",)) is not None:
            yield fact


def number(fact: Any, path: tuple[str, ...]) -> float | None:
    """The number at the end of these keys, if it is one that can be drawn."""
    for key in path:
        fact = fact.get(key) if isinstance(fact, dict) else None
    plain = isinstance(fact, int | float) and not isinstance(fact, bool)
    return float(fact) if plain and abs(fact) < 1e30 else None


def _attentions(model: ImageClassifier) -> list[MultiHeadAttention]:
    return [one for one in model.encoder.modules() if isinstance(one, MultiHeadAttention)]


def _form(model: ImageClassifier) -> dict[str, Any]:
    """How tokens lie over the image."""
    side = model.config.side
    return {"grid": (side, side), "before": int(model.class_token is not None)}


def _array(x: Tensor) -> Any:
    return x.detach().float().cpu().numpy()
