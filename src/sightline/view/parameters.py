"""Figures of learned parameters: patch filters, position embeddings, masks and temperatures.

Requires matplotlib (the `plot` extra).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import check
from .figures import COLORS, SMALL_FONT, TILE_GAP, draw_tiles, figure, heatmap, label_tiles, tile_center

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_FILTERS = 144
"""Filters shown, those with the largest norm."""
MAX_COMPONENTS = 16
"""Principal components shown."""


def filters(kernels: Any) -> Figure:
    """Draw the kernels (N, C, H, W) of a patch embedding, C being 1 or 3, and their principal components.

    Kernels are sorted by norm and share one scale. With one channel, violet is negative and amber is positive; with
    three, gray is zero.
    """
    kernels = np.asarray(kernels, dtype=np.float64)
    has_shape = kernels.ndim == 4 and kernels.shape[1] in (1, 3) and kernels.size
    check(has_shape, f"kernels must have shape (N, 1 or 3, height, width), got {kernels.shape}")
    count = len(kernels)
    norms = np.linalg.norm(kernels.reshape(count, -1), axis=1)
    largest = kernels[np.argsort(-norms, kind="stable")[:MAX_FILTERS]]
    components, shares = principal_components(kernels.reshape(count, -1))
    fig, axes = figure(1, 2, size=(10.5, 5.4))
    left, right = axes[0]
    _draw_kernels(left, largest, _quantile(largest, 0.99))
    shown = f"{count} filters" if count == len(largest) else f"{len(largest)} of {count} filters"
    left.set_title(f"{shown}, largest norm first", color=COLORS["ink"])
    _draw_components(right, components.reshape(-1, *kernels.shape[1:]), shares)
    fig.suptitle(f"Patch filters, {kernels.shape[3]} x {kernels.shape[2]} pixels", color=COLORS["ink"])
    return fig


def positions(table: Any, grid: tuple[int, int], *, prefix_tokens: int = 0) -> Figure:
    """Draw a table (N, M) of position embeddings as a heat map, and its principal components over the image.

    The positions are `prefix_tokens`, then the patches of a grid of rows and columns.
    """
    table = _check_table(table, grid, prefix_tokens)
    vmax = _quantile(table, 0.99)
    fig, axes = figure(1, 2, size=(10.5, 5.0))
    left, right = axes[0]
    image = left.imshow(table, cmap="PuOr_r", vmin=-vmax, vmax=vmax, aspect="auto", interpolation="none")
    row_step = math.ceil(grid[0] / 16)
    ticks = [(prefix_tokens + (r + 0.5) * grid[1] - 0.5, f"row {r + 1}") for r in range(0, grid[0], row_step)]
    ticks = [(0, "class token"), *ticks] if prefix_tokens else ticks
    left.set_yticks([y for y, _ in ticks], [label for _, label in ticks], fontsize=SMALL_FONT)
    for row in range(1 - bool(prefix_tokens), grid[0]):
        left.axhline(prefix_tokens + row * grid[1] - 0.5, color="white", linewidth=1)
    left.set_xlabel(f"{table.shape[1]} channels", color=COLORS["gray"])
    left.tick_params(length=0, labelsize=SMALL_FONT, labelcolor=COLORS["gray"])
    left.spines[:].set_visible(False)
    left.set_title("embeddings, one line per position", color=COLORS["ink"])
    _add_color_bar(fig, image, left)
    patches = table[prefix_tokens:] - table[prefix_tokens:].mean(0)
    components, shares = principal_components(patches.T)
    _draw_components(right, components.reshape(-1, 1, *grid), shares)
    fig.suptitle("Position embeddings", color=COLORS["ink"])
    return fig


def similarity(table: Any, grid: tuple[int, int], *, prefix_tokens: int = 0) -> Figure:
    """Draw the cosine similarity of each position embedding to all others: one map per patch, in image order."""
    table = _check_table(table, grid, prefix_tokens)
    maps = cosine_similarities(table[prefix_tokens:]).reshape(-1, *grid)
    side = min(9.0, max(4.0, 0.55 * max(grid)))
    fig, axes = figure(size=(side + 1.2, side * max(grid[0] / grid[1], 0.4) + 0.7))
    ax = axes[0, 0]
    ax.set_axis_off()
    image = ax.imshow(_mosaic(maps, grid), interpolation="none", cmap="PuOr_r", vmin=-1, vmax=1)
    _add_color_bar(fig, image, ax)
    fig.suptitle("Cosine similarity of position embeddings", color=COLORS["ink"])
    return fig


def _mosaic(maps: Any, grid: tuple[int, int]) -> Any:
    """Join maps (rows * columns, rows, columns) into one image, since hundreds of axes images take seconds.

    Maps are separated by one line of NaN. The cells of small maps are repeated, which keeps the line thin.
    """
    rows, columns = grid
    repeat = max(1, round(1 / (TILE_GAP * max(grid))))
    cells = np.kron(maps, np.ones((1, repeat, repeat))).reshape(rows, columns, rows * repeat, columns * repeat)
    image = np.full((rows, rows * repeat + 1, columns, columns * repeat + 1), np.nan)
    image[:, :-1, :, :-1] = cells.transpose(0, 2, 1, 3)
    return image.reshape(rows * (rows * repeat + 1), -1)[:-1, :-1]


def masks(tables: Any, *, initial: float = 0.0, title: str = "Learned masks") -> Figure:
    """Draw learned masks (L, H, Q, K), one row per block; amber is above the initial value, violet is below."""
    tables = np.asarray(tables, dtype=np.float64)
    has_shape = tables.ndim == 4 and tables.size
    check(has_shape, f"tables must have shape (L, H, Q, K) without a zero, got {tables.shape}")
    depth, heads = tables.shape[:2]
    vmax = _quantile(tables - initial, 0.995)
    tile_inches = min(1.7, max(0.75, 11 / max(depth, heads)))
    fig, axes = figure(size=(max(5.6, heads * tile_inches + 1.8), depth * tile_inches + 0.9))
    ax = axes[0, 0]
    tiles = ((i, j, tables[i, j]) for i in range(depth) for j in range(heads))
    image = draw_tiles(ax, tiles, cmap="PuOr_r", vmin=initial - vmax, vmax=initial + vmax)
    label_tiles(ax, [f"block {i}" for i in range(depth)], [f"head {j}" for j in range(heads)])
    _add_color_bar(fig, image, ax)
    fig.suptitle(title, color=COLORS["ink"])
    return fig


def temperatures(values: Any, *, initial: float) -> Figure:
    """Draw temperatures (L, H) as numbers, one row per block; violet is below the initial value, amber is above."""
    values = np.asarray(values, dtype=np.float64)
    is_valid = values.ndim == 2 and values.size and (values > 0).all()
    check(is_valid, f"values must be positive and have shape (L, H), got shape {values.shape}")
    depth, heads = values.shape
    fig, axes = figure(size=(max(4.4, 0.62 * heads + 1.2), max(1.8, 0.42 * depth + 1.2)))
    ax = axes[0, 0]
    rows, columns = [f"block {i}" for i in range(depth)], [f"head {j}" if heads < 9 else str(j) for j in range(heads)]
    change = np.log2(values / initial)
    vmax = max(float(np.abs(change).max()), 0.25)
    heatmap(ax, change, row_labels=rows, column_labels=columns, diverging=True, annotate=False, vmax=vmax)
    for i, j in np.ndindex(depth, heads):
        color = "white" if abs(change[i, j]) > 0.55 * vmax else COLORS["ink"]
        ax.text(j, i, f"{values[i, j]:#.3g}", ha="center", va="center", fontsize=SMALL_FONT, color=color)
    ax.xaxis.tick_top()
    if heads >= 9:
        ax.set_xlabel("heads", color=COLORS["gray"])
        ax.xaxis.set_label_position("top")
    fig.suptitle(f"Learned temperatures (initially {initial:.3g})", color=COLORS["ink"])
    style: dict[str, Any] = {"va": "top", "fontsize": SMALL_FONT, "color": COLORS["gray"]}
    ax.text(0, -0.04, "violet: lower (sharper), amber: higher (flatter)", transform=ax.transAxes, **style)
    return fig


def principal_components(rows: Any) -> tuple[Any, Any]:
    """The first `MAX_COMPONENTS` principal components (n, D) of rows (N, D), and the share of each in the total.

    Each component is scaled to a maximum of 1, which also fixes its sign.
    """
    _, singular_values, components = np.linalg.svd(rows, full_matrices=False)
    shares = singular_values**2 / max(float((singular_values**2).sum()), 1e-30)
    components, shares = components[:MAX_COMPONENTS], shares[:MAX_COMPONENTS]
    peaks = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], 1)
    return components / np.where(peaks == 0, 1, peaks), shares


def cosine_similarities(rows: Any) -> Any:
    """The cosine similarity of each row to every other: (N, D) -> (N, N). Zero rows have similarity 0."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(norms == 0, 1, norms)
    return unit @ unit.T


def _draw_components(axes: Axes, components: Any, shares: Any) -> None:
    gap = 0.3
    columns = _draw_kernels(axes, components, 1.0, gap=gap)
    for i, share in enumerate(shares):
        x, y = tile_center(i // columns, i % columns, gap=gap)
        axes.text(x, y + 0.53, f"{share:.0%}", ha="center", va="top", fontsize=7, color=COLORS["gray"])
    axes.set_title("principal components (share of the total)", color=COLORS["ink"])


def _draw_kernels(axes: Axes, kernels: Any, vmax: float, *, gap: float = TILE_GAP) -> int:
    """Draw (N, C, H, W) in a square grid and return its columns: values if C is 1, colors if C is 3."""
    columns = math.ceil(len(kernels) ** 0.5)
    images, scale = kernels[:, 0], {"cmap": "PuOr_r", "vmin": -vmax, "vmax": vmax}
    if kernels.shape[1] == 3:
        images, scale = np.clip(0.5 + np.moveaxis(kernels, 1, -1) / (2 * vmax), 0, 1), {}
    tiles = ((*divmod(i, columns), image) for i, image in enumerate(images))
    draw_tiles(axes, tiles, gap=gap, **scale)
    return columns


def _quantile(values: Any, q: float) -> float:
    """A quantile of the absolute values, 1 if that is 0."""
    return float(np.quantile(np.abs(values), q)) or 1.0


def _add_color_bar(fig: Figure, image: Any, axes: Axes) -> None:
    bar = fig.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=SMALL_FONT)


def _check_table(table: Any, grid: tuple[int, int], prefix_tokens: int) -> Any:
    table = np.asarray(table, dtype=np.float64)
    expected = f"{prefix_tokens} + {grid[0]} x {grid[1]}"
    is_valid = table.ndim == 2 and len(table) == prefix_tokens + grid[0] * grid[1]
    check(is_valid, f"table must have {expected} rows, one for each position, got shape {table.shape}")
    return table
