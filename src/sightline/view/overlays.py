"""Attention laid over pixels: every head of every block, and what flows through all of them. Plain arrays in.

Needs matplotlib: the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SightlineError
from .figures import COLORS, GAP, figure, name, wall
from .parameters import edges

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GLOW = ("#04040c", "#2a0d54", "#7a1f6d", "#d2493f", "#fb9b06", "#fcffa4")
"""From nothing to much, as in the viewer."""

LARGEST_TILE = 96
"""Pixels of a picture's side under a map."""


def rollout(weights: Sequence[Any]) -> list[Any]:
    """What each token holds of each first one after every layer: weights (H, N, N) of each layer -> (N, N) each.

    Abnar and Zuidema's, as in the viewer: half of each layer is the residual path, so it is the identity.
    """
    flows: list[Any] = []
    for layer in weights:
        layer = np.asarray(layer, dtype=np.float64)
        if layer.ndim != 3 or layer.shape[1] != layer.shape[2] or layer.shape[1:] != np.shape(weights[0])[1:]:
            raise SightlineError(f"weights must have shape (H, N, N) with one N for all layers, got {layer.shape}")
        half = layer.mean(0) / 2 + np.eye(layer.shape[1]) / 2
        flows.append(half @ flows[-1] if flows else half)
    return flows


def looked_at(weights: Any, grid: tuple[int, int], *, before: int = 0) -> Any:
    """How much each patch is looked at: (…, N, N) -> (…, rows, columns)

    By the class token, where there is one `before` the patches; else by all on average.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape[-1] != before + grid[0] * grid[1]:
        raise SightlineError(f"weights must be over {before} + {grid[0]} x {grid[1]} places, got {weights.shape[-1]}")
    row = weights[..., 0, :] if before else weights.mean(-2)
    return row[..., before:].reshape(*row.shape[:-1], *grid)


def over_pixels(picture: Any, maps: Sequence[Any], flows: Sequence[Any], *, words: Sequence[str] = ()) -> Figure:
    """The picture and some lines of words below it; then blocks down, heads across, and the rollout to each block.

    picture: (height, width) or (height, width, 3), from 0 to 1. maps: (H, rows, columns) of each block.
    flows: (rows, columns) of each block. What is looked at glows; each map has a scale of its own.
    """
    picture = np.asarray(picture, dtype=np.float64)
    if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[-1] != 3):
        raise SightlineError(f"picture must have shape (height, width) or (height, width, 3), got {picture.shape}")
    if not len(maps) or len(maps) != len(flows):
        raise SightlineError(f"flows must be {len(maps)}, one for each block, and at least one, got {len(flows)}")
    from matplotlib.patches import Rectangle

    with_maps = [(i, j, one) for i, block in enumerate(maps) for j, one in enumerate(block)]
    depth, heads = len(maps), max(len(block) for block in maps)
    with_maps += [(i, heads, flow) for i, flow in enumerate(flows)]
    large = min(depth, 2) * (1 + GAP) - GAP  # the side of the picture itself
    left = -large - 0.75
    wide = heads + 1 - left
    cell = min(1.3, max(0.7, 12 / wide))  # inches
    line = 0.2 / cell
    high = max(depth, large + line * len(words))
    drawn, axes = figure(size=(wide * (1 + GAP) * cell + 0.3, high * (1 + GAP) * cell + 0.7))
    ax = axes[0, 0]
    gray = _small(picture if picture.ndim == 2 else picture @ (0.299, 0.587, 0.114))
    wall(ax, ((i, j, gray) for i, j, _ in with_maps), cmap="gray", vmin=0, vmax=1)
    wall(ax, with_maps, cmap=_glow(), vmin=0, alpha=0.65)
    edges(ax, [f"block {i}" for i in range(depth)], [f"head {j}" for j in range(heads)] + ["rollout"])
    right, bottom = ax.get_xlim()[1], ax.get_ylim()[0]
    ax.imshow(picture, extent=(left, left + large, large, 0), cmap="gray", vmin=0, vmax=1, interpolation="none")
    ax.add_patch(Rectangle((left, 0), large, large, fill=False, edgecolor=COLORS["gray"], linewidth=0.6))
    for i, word in enumerate(words):
        points, ink = (10, COLORS["ink"]) if i == 0 else (8, COLORS["gray"])
        most = int((large + 0.2) * cell * 72 / (0.62 * points))  # a letter is about 0.62 of its height wide
        ax.text(left, large + 0.07 + line * i, name(word, most), va="top", fontsize=points, color=ink)
    ax.set(xlim=(left - 0.02, right), ylim=(max(bottom, large + 0.1 + line * len(words)), -0.25), aspect="equal")
    return drawn


def _small(gray: Any) -> Any:
    """The means of little squares, as many as a tile can show: it stands under every map, and a file holds each."""
    step = max(1, min(gray.shape) // LARGEST_TILE)
    high, wide = (size // step * step for size in gray.shape)
    return gray[:high, :wide].reshape(high // step, step, wide // step, step).mean((1, 3))


def _glow() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("glow", GLOW)
