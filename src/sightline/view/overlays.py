"""Attention of an image classifier over its image, and attention rollout. Requires matplotlib (the `plot` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import check
from .figures import COLORS, TILE_GAP, draw_tiles, figure, label_tiles, short_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAT_COLORS = ("#04040c", "#2a0d54", "#7a1f6d", "#d2493f", "#fb9b06", "#fcffa4")
"""From low to high, as in the viewer."""
GRAY_WEIGHTS = (0.299, 0.587, 0.114)
"""Of red, green and blue in a gray image."""
MAX_TILE_SIDE = 96
"""Pixels of the image under each map."""


def rollout(weights: Sequence[Any]) -> list[Any]:
    """Attention rollout up to each layer (Abnar and Zuidema, 2020): weights (H, N, N) per layer -> (N, N) per layer.

    Each layer is the mean over heads, averaged with the identity for the residual connection.
    """
    rollouts: list[Any] = []
    for layer in weights:
        layer = np.asarray(layer, dtype=np.float64)
        is_square = layer.ndim == 3 and layer.shape[1] == layer.shape[2] == np.shape(weights[0])[-1]
        check(is_square, f"weights must have shape (H, N, N) with the same N in all layers, got {layer.shape}")
        with_residual = layer.mean(0) / 2 + np.eye(layer.shape[1]) / 2
        rollouts.append(with_residual @ rollouts[-1] if rollouts else with_residual)
    return rollouts


def patch_attention(weights: Any, grid: tuple[int, int], *, prefix_tokens: int = 0) -> Any:
    """The attention to each patch: (..., N, N) -> (..., rows, columns)

    The query is the class token if there are prefix tokens, otherwise the mean over all positions.
    """
    weights = np.asarray(weights, dtype=np.float64)
    expected, positions = f"{prefix_tokens} + {grid[0]} x {grid[1]}", weights.shape[-1]
    is_valid = positions == prefix_tokens + grid[0] * grid[1]
    check(is_valid, f"weights must have {expected} positions, got {positions}")
    row = weights[..., 0, :] if prefix_tokens else weights.mean(-2)
    return row[..., prefix_tokens:].reshape(*row.shape[:-1], *grid)


def attention_overlay(
    image: Any, maps: Sequence[Any], rollouts: Sequence[Any], *, caption: Sequence[str] = ()
) -> Figure:
    """Draw an image with its caption, and beside it one row per block: each head and the rollout over the image.

    image: (H, W) or (H, W, 3), from 0 to 1. maps: (heads, rows, columns) per block. rollouts: (rows, columns) per
    block. caption: lines of text below the image. Each map has its own scale; bright regions have a high weight.
    """
    image = np.asarray(image, dtype=np.float64)
    is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[-1] == 3)
    check(is_image, f"image must have shape (H, W) or (H, W, 3), got {image.shape}")
    is_complete = 0 < len(maps) == len(rollouts)
    check(is_complete, f"rollouts must have one entry for each of the {len(maps)} blocks, got {len(rollouts)}")
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    tiles = [(i, j, head) for i, block in enumerate(maps) for j, head in enumerate(block)]
    depth, heads = len(maps), max(len(block) for block in maps)
    tiles += [(i, heads, flow) for i, flow in enumerate(rollouts)]
    image_side = min(depth, 2) * (1 + TILE_GAP) - TILE_GAP  # in tiles
    left = -image_side - 0.75
    width = heads + 1 - left
    tile_inches = min(1.3, max(0.7, 12 / width))
    line_height = 0.2 / tile_inches
    height = max(depth, image_side + line_height * len(caption))
    fig, axes = figure(size=(width * (1 + TILE_GAP) * tile_inches + 0.3, height * (1 + TILE_GAP) * tile_inches + 0.7))
    ax = axes[0, 0]
    gray = _downscale(image if image.ndim == 2 else image @ GRAY_WEIGHTS)
    draw_tiles(ax, ((i, j, gray) for i, j, _ in tiles), cmap="gray", vmin=0, vmax=1)
    draw_tiles(ax, tiles, cmap=LinearSegmentedColormap.from_list("heat", HEAT_COLORS), vmin=0, alpha=0.65)
    label_tiles(ax, [f"block {i}" for i in range(depth)], [f"head {j}" for j in range(heads)] + ["rollout"])
    right, bottom = ax.get_xlim()[1], ax.get_ylim()[0]
    extent = (left, left + image_side, image_side, 0)
    ax.imshow(image, extent=extent, cmap="gray", vmin=0, vmax=1, interpolation="none")
    ax.add_patch(Rectangle((left, 0), image_side, image_side, fill=False, edgecolor=COLORS["gray"], linewidth=0.6))
    for i, line in enumerate(caption):
        points, color = (10, COLORS["ink"]) if i == 0 else (8, COLORS["gray"])
        letters = int((image_side + 0.2) * tile_inches * 72 / (0.62 * points))  # letters are 0.62 times as wide as high
        y = image_side + 0.07 + line_height * i
        ax.text(left, y, short_label(line, letters), va="top", fontsize=points, color=color)
    bottom = max(bottom, image_side + 0.1 + line_height * len(caption))
    ax.set(xlim=(left - 0.02, right), ylim=(bottom, -0.25), aspect="equal")
    return fig


def _downscale(gray: Any) -> Any:
    """Reduce to means of square blocks: every tile repeats the image, which would make files large."""
    step = max(1, min(gray.shape) // MAX_TILE_SIDE)
    height, width = (size // step * step for size in gray.shape)
    return gray[:height, :width].reshape(height // step, step, width // step, step).mean((1, 3))
