"""Heat maps over pictures: one value per cell of a grid, for or against.

Cells of little effect are dimmed, so that a picture keeps its colors where it matters. Outlines mark the strongest
cells. On a page, `static/heat-map.js` draws the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Look:
    """How values become visible. A page contains these numbers."""

    veil: float = 0.62
    """Opacity of the black veil over a cell without effect."""
    gamma: float = 0.6
    """Exponent of |value| / scale; below 1, weak effects are visible."""
    outline: float = 0.25
    """Fraction of the scale from which on a cell is outlined."""


LOOK = Look()
FOR_COLOR, AGAINST_COLOR = "#ff9d1e", "#4fb3ff"
"""As in static/heat-map.css."""


def common_scale(maps: Iterable[Array | None]) -> float:
    """The largest absolute value of all maps. Maps that share a scale can be compared."""
    return max((float(np.abs(values).max()) for values in maps if values is not None), default=0.0)


def dim(pixels: Array, values: Array | None, scale: float, side: int) -> Array:
    """The picture, uint8 (H, W) or (H, W, 3), resized to width `side` and dimmed by its map: uint8 (H', side, 3)"""
    height, width = pixels.shape[:2]
    size = (side, max(1, round(side * height / width)))
    resampling = Image.Resampling.NEAREST if side >= 4 * width else Image.Resampling.BICUBIC
    picture: Array = np.asarray(Image.fromarray(pixels).convert("RGB").resize(size, resampling))
    if values is None:
        return picture
    clearness = (np.abs(values) / scale).clip(0, 1) ** LOOK.gamma if scale > 0 else np.zeros(values.shape)
    opacity = Image.fromarray((LOOK.veil * (1 - clearness)).astype(np.float32))
    dimmed: Array = picture * (1 - np.asarray(opacity.resize(size, Image.Resampling.BILINEAR)))[..., None]
    return dimmed.round().astype(np.uint8)


def draw(ax: Axes, pixels: Array, values: Array | None, scale: float, side: int) -> None:
    """Draw a picture and its map into matplotlib axes."""
    picture = dim(pixels, values, scale, side)
    ax.imshow(picture, interpolation="none")
    if values is None or scale <= 0:
        return
    (height, width), (rows, columns) = picture.shape[:2], values.shape
    for sign, color, style in ((1, FOR_COLOR, "solid"), (-1, AGAINST_COLOR, "dashed")):
        edges = outline(sign * values >= LOOK.outline * scale)
        for (row, column), (end_row, end_column) in edges:
            x, y = (np.array([column, end_column]) * width / columns, np.array([row, end_row]) * height / rows)
            ax.plot(x - 0.5, y - 0.5, color=color, linewidth=1.6, linestyle=style, clip_on=False)


def outline(is_marked: Array) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The edges between marked cells and all others: bool (rows, columns) -> pairs of corners (row, column)"""
    padded = np.pad(is_marked, 1)
    across, along = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    edges = [((int(r), int(c)), (int(r), int(c) + 1)) for r, c in np.argwhere(across)]
    return edges + [((int(r), int(c)), (int(r) + 1, int(c))) for r, c in np.argwhere(along)]
