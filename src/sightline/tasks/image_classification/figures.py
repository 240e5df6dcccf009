"""Pictures of a trained image classifier: what it has learned, how it came to, and what it looks at."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...attention import MultiHeadAttention
from ...attention.masks import LearnedMask
from ...attention.scores import CosineScore
from ...hub import Shared
from ...layers import LearnedPositions, SinusoidalPositions
from ...models.image_classifier import ImageClassifier
from ...view import overlays
from ...view import parameters as learned
from ..figures import Drawn, Missing, curves_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .predictor import ImagePredictor, Look


def show(
    predictor: "ImagePredictor", images: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png"
) -> Drawn:
    """Draw a model's weights and training, and its attention on these images, into a folder.

    Without `out` it is as `Drawn.into` says. The images also become `page.html`, the viewer.
    """
    drawn = Drawn.into(predictor, out, format)
    look = predictor.look(images) if images else None  # what cannot be read is refused before anything is drawn
    for name, draw in PICTURES.items():
        drawn.add(name, draw, predictor)
    if look is not None:
        for number in range(len(look.answers)):
            drawn.add(f"image-{number + 1}", attention, predictor, look, number)
        drawn.add_page(predictor.page(look))
    return drawn


def filters(predictor: "ImagePredictor") -> "Figure":
    """The kernel of each channel of a token."""
    return learned.filters(_array(predictor.model.patch_embedding.proj.weight))


def positions(predictor: "ImagePredictor") -> "Figure":
    """The table of positions."""
    return learned.positions(position_table(predictor.model), **_form(predictor.model))


def similarity(predictor: "ImagePredictor") -> "Figure":
    """How alike positions are."""
    return learned.similarity(position_table(predictor.model), **_form(predictor.model))


def masks(predictor: "ImagePredictor") -> "Figure":
    """The learned mask of each block and head."""
    learned_masks = [one.mask for one in _attentions(predictor.model) if isinstance(one.mask, LearnedMask)]
    kind = predictor.recipe.model.mask
    if not learned_masks:
        raise Missing(f"model.mask is {kind}, so there are none to learn")
    start = learned_masks[0].start
    tables = [_array(mask.table) for mask in learned_masks]
    return learned.masks(tables, start=start, title=f"Learned {kind} masks: who looks (down) at whom (across)")


def temperatures(predictor: "ImagePredictor") -> "Figure":
    """The learned temperature of each block and head."""
    cosine = [one.score for one in _attentions(predictor.model) if isinstance(one.score, CosineScore)]
    if not cosine:
        raise Missing(f"model.score is {predictor.recipe.model.score}, which has no temperature")
    start = cosine[0].initial_temperature
    return learned.temperatures([_array(score.temperature().flatten()) for score in cosine], start=start)


def training(predictor: Shared) -> "Figure":
    """Loss, validation accuracy and learning rate, as the run wrote them down."""
    return curves_of(predictor.folder, "accuracy")


PICTURES: dict[str, Callable[["ImagePredictor"], "Figure"]] = {
    "filters": filters,
    "positions": positions,
    "similarity": similarity,
    "masks": masks,
    "temperatures": temperatures,
    "training": training,
}
"""What is drawn of every run, by the name of its file."""


def attention(predictor: "ImagePredictor", look: "Look", number: int) -> "Figure":
    """For one of the images every head of every block, and the rollout, over the pixels."""
    form, name, answer = _form(predictor.model), look.names[number], look.answers[number]
    weights = [_array(seen.weights[number]) for seen in look.record]
    likeliest = [f"{share:.1%} {label}" for label, share in list(answer.scores.items())[:3]]
    return overlays.over_pixels(
        _array(look.pixels[number].permute(1, 2, 0).squeeze(-1)),
        [overlays.looked_at(block, **form) for block in weights],
        [overlays.looked_at(flow, **form) for flow in overlays.rollout(weights)],
        words=[*likeliest, *([name] if name else [])],
    )


def position_table(model: ImageClassifier) -> Any:
    """What is added to each token for its place: (N, M)"""
    if not isinstance(model.positions, LearnedPositions | SinusoidalPositions):
        raise Missing("model.positions is none")
    blank = torch.zeros(1, model.config.sequence_length, model.config.embed_dim, device=model.mean.device)
    return _array(model.positions(blank)[0])


def _attentions(model: ImageClassifier) -> list[MultiHeadAttention]:
    return [one for one in model.encoder.modules() if isinstance(one, MultiHeadAttention)]


def _form(model: ImageClassifier) -> dict[str, Any]:
    """How tokens lie over the image."""
    side = model.config.side
    return {"grid": (side, side), "before": int(model.class_token is not None)}


def _array(x: Tensor) -> Any:
    return x.detach().float().cpu().numpy()
