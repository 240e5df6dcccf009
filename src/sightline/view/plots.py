"""Attention as matplotlib figures: maps of weights, and attention over an image. Requires the `plot` extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import SightlineError, check
from ..names import shortened
from . import figures
from .encodings import TOKEN_OPTIONS, read_encodings
from .heatmaps import LOOK
from .maps import Map, merge_calls
from .subwords import join_weights
from .tokens import SPECIAL_TOKENS, drop_padding, query_and_key, token_sequences

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MAX_LABELS = 60
"""Axes with more tokens have no labels."""
MAX_TILE_SIDE = 96
"""Pixels of the image under each map."""


def plot_layer(
    maps: Sequence[Map],
    layer: int | str,
    head: int | Literal["mean", "max"] = "mean",
    *,
    batch: int = 0,
    title: str | None = None,
    tokenizer: Any = None,
    join_subwords: bool = False,
    **tokens: Any,
) -> Figure:
    """Draw one head of a layer, or the mean or maximum over heads.

    `layer` is an index or a name. `tokens` are the token arguments of `token_sequences`, or encodings.
    """
    maps = _prepare(maps, batch)
    tokens, special = read_encodings(tokens, [batch], is_list=False, tokenizer=tokenizer)
    tokens.pop("token_type_ids", None)
    maps, tokens = drop_padding(maps, {name: tokens.get(name) for name in TOKEN_OPTIONS})
    m = _find_layer(maps, layer)
    sequences = token_sequences(maps, special_tokens=SPECIAL_TOKENS | special, **tokens)
    query, key = (sequences[name] for name in query_and_key(m, sequences))
    weights = m.weights[batch]
    if head in ("mean", "max"):
        weights, head_label = getattr(weights, head)(0), f"{head} of {len(weights)} heads"
    elif isinstance(head, int) and str(head) in m.head_names:
        weights, head_label = weights[m.head_names.index(str(head))], f"head {head}"
    else:
        raise SightlineError(f"head must be mean, max or one of {', '.join(m.head_names)}, got {head!r}")
    queries, keys = weights.shape
    (row_names, row_starts), (column_names, column_starts) = (
        side.words_of(size) if join_subwords else (side.names(size), None)
        for side, size in ((query, queries), (key, keys))
    )
    weights = join_weights(weights, row_starts, column_starts)
    queries, keys = weights.shape
    rows, columns = _labels(row_names), _labels(column_names)
    size = max(3.2, min(12, 1.6 + 0.42 * keys)), max(2.6, min(12, 1.4 + 0.36 * queries))
    fig, axes = figures.figure(size=size)
    ax = axes[0, 0]
    heading = figures.wrap(f"{m.name}, {head_label}" if title is None else title, size[0] - 0.3)
    signed = bool((weights < 0).any())
    figures.heatmap(ax, weights, title=heading, row_labels=rows, column_labels=columns, diverging=signed)
    if columns and max(map(len, columns)) > 3:
        ax.tick_params(axis="x", rotation=90)
    ax.xaxis.tick_top()
    ax.set_ylabel("query", color=figures.COLORS["gray"])
    ax.set_xlabel("key", color=figures.COLORS["gray"])
    return fig


def plot_heads(maps: Sequence[Map], *, batch: int = 0, title: str = "") -> Figure:
    """Draw every head of every layer: one row per layer, one column per head. All share one scale."""
    maps = _prepare(maps, batch)
    vmax = max(float(np.abs(m.weights[batch]).max()) for m in maps)
    max_heads = max(m.shape[1] for m in maps)
    width = max(3.2, 0.6 + 1.1 * max_heads)
    fig, axes = figures.figure(len(maps), max_heads, size=(width, max(2.0, 0.6 + 1.15 * len(maps))))
    for i, m in enumerate(maps):
        for j in range(max_heads):
            ax = axes[i, j]
            if j >= m.shape[1]:
                ax.set_axis_off()
                continue
            weights = m.weights[batch, j]
            figures.heatmap(ax, weights, annotate=False, diverging=bool((weights < 0).any()), vmax=vmax)
            ax.set(xticks=[], yticks=[])
            ax.set_title(m.head_names[j] if i == 0 else "", fontsize=9, color=figures.COLORS["gray"])
        name = m.name if len(m.name) <= 28 else f"…{m.name[-27:]}"
        label = axes[i, 0].set_ylabel(figures.escape(name), fontsize=8, color=figures.COLORS["gray"])
        label.set(rotation=0, horizontalalignment="right", verticalalignment="center")
    fig.suptitle(figures.wrap(title, width - 0.3, 12), color=figures.COLORS["ink"])
    return fig


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
    block. caption: lines of text below the image. Each map has its own scale. Images with colors keep them where
    weights are high, and are dimmed elsewhere. Gray images have a heat map over them, bright where weights are high.
    """
    image = np.asarray(image, dtype=np.float64)
    is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[-1] == 3)
    check(is_image, f"image must have shape (H, W) or (H, W, 3), got {image.shape}")
    is_complete = 0 < len(maps) == len(rollouts)
    check(is_complete, f"rollouts must have one entry for each of the {len(maps)} blocks, got {len(rollouts)}")
    from matplotlib.patches import Rectangle

    tiles = [(i, j, head) for i, block in enumerate(maps) for j, head in enumerate(block)]
    depth, heads = len(maps), max(len(block) for block in maps)
    tiles += [(i, heads, flow) for i, flow in enumerate(rollouts)]
    pitch = 1 + figures.TILE_GAP
    image_side = min(depth, 2) * pitch - figures.TILE_GAP  # in tiles
    left = -image_side - 0.75
    width = heads + 1 - left
    tile_inches = min(1.3, max(0.7, 12 / width))
    line_height = 0.2 / tile_inches
    height = max(depth, image_side + line_height * len(caption))
    fig, axes = figures.figure(size=(width * pitch * tile_inches + 0.3, height * pitch * tile_inches + 0.7))
    ax = axes[0, 0]
    small = _downscale(image)
    figures.draw_tiles(ax, ((i, j, small) for i, j, _ in tiles), cmap="gray", vmin=0, vmax=1)
    figures.draw_tiles(ax, tiles, cmap=_overlay_colors(has_colors=image.ndim == 3), vmin=0)
    figures.label_tiles(ax, [f"block {i}" for i in range(depth)], [f"head {j}" for j in range(heads)] + ["rollout"])
    right, bottom = ax.get_xlim()[1], ax.get_ylim()[0]
    extent = (left, left + image_side, image_side, 0)
    ax.imshow(image, extent=extent, cmap="gray", vmin=0, vmax=1, interpolation="none")
    frame: dict[str, Any] = {"fill": False, "edgecolor": figures.COLORS["gray"], "linewidth": 0.6}
    ax.add_patch(Rectangle((left, 0), image_side, image_side, **frame))
    for i, line in enumerate(caption):
        points, color = (10, figures.COLORS["ink"]) if i == 0 else (8, figures.COLORS["gray"])
        letters = int((image_side + 0.2) * tile_inches * 72 / (0.62 * points))  # letters are 0.62 times as wide as high
        y = image_side + 0.07 + line_height * i
        ax.text(left, y, figures.short_label(line, letters), va="top", fontsize=points, color=color)
    bottom = max(bottom, image_side + 0.1 + line_height * len(caption))
    ax.set(xlim=(left - 0.02, right), ylim=(bottom, -0.25), aspect="equal")
    return fig


def _overlay_colors(*, has_colors: bool) -> Colormap:
    """Colors of weights over an image: a black veil, as the viewer's, or a heat map if the image has no colors."""
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    shades = np.linspace(0, 1, 256)
    if has_colors:
        return ListedColormap([(0, 0, 0, 1 - shade**LOOK.gamma) for shade in shades], name="veil")
    heat = LinearSegmentedColormap.from_list("heat", figures.HEAT_COLORS)
    return ListedColormap(heat(shades, alpha=0.65), name="heat")


def _downscale(image: Any) -> Any:
    """Reduce to means of square blocks: every tile repeats the image, which would make files large."""
    step = max(1, min(image.shape[:2]) // MAX_TILE_SIDE)
    height, width = (size // step for size in image.shape[:2])
    blocks = image[: height * step, : width * step].reshape(height, step, width, step, *image.shape[2:])
    return blocks.mean((1, 3))


def _prepare(maps: Sequence[Map], batch: int) -> list[Map]:
    check(maps, "record must contain at least one attention map, got none")
    batch_size = min(m.shape[0] for m in maps)
    check(0 <= batch < batch_size, f"batch must be below {batch_size}, the batch size, got {batch}")
    return merge_calls(maps)


def _find_layer(maps: Sequence[Map], layer: int | str) -> Map:
    if isinstance(layer, int) and -len(maps) <= layer < len(maps):
        return maps[layer]
    for m in maps:
        if m.name == layer:
            return m
    raise SightlineError(f"layer must be below {len(maps)} or one of {', '.join(m.name for m in maps)}, got {layer!r}")


def _labels(names: list[str]) -> list[str] | None:
    """Tick labels; an empty name becomes ∅."""
    return [figures.escape(shortened(name, 24) or "∅") for name in names] if len(names) <= MAX_LABELS else None
