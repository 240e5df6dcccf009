"""Figures of a trained image classifier: its parameters, its training curves and its attention."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...attention import MultiHeadAttention, Record
from ...attention.masks import LearnedMask
from ...attention.scores import CosineScore
from ...layers import LearnedPositions, SinusoidalPositions
from ...models.image_classifier import ImageClassifier
from ...view import parameters, plots
from ..figures import NoFigure, training_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def masks(model: ImageClassifier, folder: Path) -> "Figure":
    """The learned mask of each block and head."""
    learned = [attention.mask for attention in _attentions(model) if isinstance(attention.mask, LearnedMask)]
    kind = model.config.mask
    if not learned:
        raise NoFigure(f"model.mask is {kind}, which has no parameters")
    title = f"Learned {kind} masks (rows: queries, columns: keys)"
    return parameters.masks([_array(mask.table) for mask in learned], initial=learned[0].initial_value, title=title)


def temperatures(model: ImageClassifier, folder: Path) -> "Figure":
    """The learned temperature of each block and head."""
    scores = [attention.score for attention in _attentions(model) if isinstance(attention.score, CosineScore)]
    if not scores:
        raise NoFigure(f"model.score is {model.config.score}, which has no temperature")
    values = [_array(score.temperature().flatten()) for score in scores]
    return parameters.temperatures(values, initial=scores[0].initial_temperature)


FIGURES: dict[str, Callable[[ImageClassifier, Path], "Figure"]] = {
    "filters": lambda model, _: parameters.filters(_array(model.patch_embedding.proj.weight)),
    "positions": lambda model, _: parameters.positions(position_table(model), **_layout(model)),
    "similarity": lambda model, _: parameters.similarity(position_table(model), **_layout(model)),
    "masks": masks,
    "temperatures": temperatures,
    "training": lambda _, folder: training_curves(folder, "accuracy"),
}
"""Figures of every run, by file name."""


def attention(model: ImageClassifier, record: Record, pixels: Tensor, index: int, lines: list[str]) -> "Figure":
    """Every head of every block, and the attention rollout, over the pixels (C, H, W) of one image of the batch."""
    layout = _layout(model)
    weights = [_array(attention_map.weights[index]) for attention_map in record]
    return plots.attention_overlay(
        _array(pixels.permute(1, 2, 0).squeeze(-1)),
        [plots.patch_attention(block, **layout) for block in weights],
        [plots.patch_attention(flow, **layout) for flow in plots.rollout(weights)],
        caption=[line for line in lines if line],
    )


def position_table(model: ImageClassifier) -> Any:
    """The embedding that is added at each position: (T, M)"""
    if not isinstance(model.positions, LearnedPositions | SinusoidalPositions):
        raise NoFigure("model.positions is none")
    blank = torch.zeros(1, model.config.sequence_length, model.config.embed_dim, device=model.mean.device)
    return _array(model.positions(blank)[0])


def _attentions(model: ImageClassifier) -> list[MultiHeadAttention]:
    return [module for module in model.encoder.modules() if isinstance(module, MultiHeadAttention)]


def _layout(model: ImageClassifier) -> dict[str, Any]:
    """The grid of patches, and the number of tokens before it."""
    side = model.config.grid_size
    return {"grid": (side, side), "prefix_tokens": int(model.class_token is not None)}


def _array(x: Tensor) -> Any:
    return x.detach().float().cpu().numpy()
