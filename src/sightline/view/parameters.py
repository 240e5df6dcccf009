"""What a model of images has learned, drawn: its filters, its positions, its masks, its temperatures. Plain arrays in.

Needs matplotlib: the extra `plot`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SightlineError
from .figures import COLORS, GAP, figure, heatmap, middle, wall

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_FILTERS = 144
"""Filters shown, the strongest."""
MOST_COMPONENTS = 16
"""Principal components shown."""
SMALL = 8


def filters(kernels: Any) -> Figure:
    """The kernels (N, C, height, width) of a patch embedding, C being 1 or 3, and their principal components.

    The strongest come first, all on one scale, so that an idle one is pale. Of one channel, violet is below zero and
    amber above; of three, gray is zero.
    """
    kernels = np.asarray(kernels, dtype=np.float64)
    if kernels.ndim != 4 or kernels.shape[1] not in (1, 3) or 0 in kernels.shape:
        raise SightlineError(f"kernels must have shape (N, 1 or 3, height, width), got {kernels.shape}")
    count = len(kernels)
    norms = np.linalg.norm(kernels.reshape(count, -1), axis=1)
    strongest = kernels[np.argsort(-norms, kind="stable")[:MOST_FILTERS]]
    parts, shares = components(kernels.reshape(count, -1))
    drawn, axes = figure(1, 2, size=(10.5, 5.4))
    left, right = axes[0]
    across = math.ceil(len(strongest) ** 0.5)
    top = float(np.quantile(np.abs(strongest), 0.99)) or 1.0
    wall(left, ((i // across, i % across, _shade(one, top)) for i, one in enumerate(strongest)), **_look(kernels, top))
    which = f"{count} filters" if count == len(strongest) else f"the {len(strongest)} strongest of {count} filters"
    left.set_title(f"{which}, strongest first", color=COLORS["ink"])
    _components(right, parts.reshape(-1, *kernels.shape[1:]), shares)
    right.set_title("their principal components, with shares of the whole", color=COLORS["ink"])
    drawn.suptitle(f"Patch filters, {kernels.shape[3]} x {kernels.shape[2]} pixels", color=COLORS["ink"])
    return drawn


def positions(table: Any, grid: tuple[int, int], *, before: int = 0) -> Figure:
    """A table (N, M) of positions as a heat map, and its principal components as maps.

    The positions are `before` tokens, then the patches of a grid of rows and columns.
    """
    table = _checked(table, grid, before)
    top = float(np.quantile(np.abs(table), 0.99)) or 1.0
    drawn, axes = figure(1, 2, size=(10.5, 5.0))
    left, right = axes[0]
    image = left.imshow(table, cmap="PuOr_r", vmin=-top, vmax=top, aspect="auto", interpolation="none")
    every = math.ceil(grid[0] / 16)
    names = [(before + (row + 0.5) * grid[1] - 0.5, f"row {row + 1}") for row in range(0, grid[0], every)]
    names = [(0, "class token"), *names] if before else names
    left.set_yticks([place for place, _ in names], [name for _, name in names], fontsize=SMALL)
    for row in range(1 - bool(before), grid[0]):
        left.axhline(before + row * grid[1] - 0.5, color="white", linewidth=1)
    left.set_xlabel(f"{table.shape[1]} channels", color=COLORS["gray"])
    left.tick_params(length=0, labelsize=SMALL, labelcolor=COLORS["gray"])
    left.spines[:].set_visible(False)
    left.set_title("the table, a line for each patch", color=COLORS["ink"])
    _bar(drawn, image, left)
    patches = table[before:] - table[before:].mean(0)
    parts, shares = components(patches.T)
    _components(right, parts.reshape(-1, 1, *grid), shares)
    right.set_title("its principal components over the image", color=COLORS["ink"])
    drawn.suptitle("Positions", color=COLORS["ink"])
    return drawn


def similarity(table: Any, grid: tuple[int, int], *, before: int = 0) -> Figure:
    """The cosine of each position to all others: a map for each patch, laid out as the image is."""
    alike = cosines(_checked(table, grid, before)[before:]).reshape(-1, *grid)
    side = min(9.0, max(4.0, 0.55 * max(grid)))
    drawn, axes = figure(size=(side + 1.2, side * max(grid[0] / grid[1], 0.4) + 0.7))
    ax = axes[0, 0]
    ax.set_axis_off()
    image = ax.imshow(_mosaic(alike, grid), interpolation="none", cmap="PuOr_r", vmin=-1, vmax=1)
    _bar(drawn, image, ax)
    drawn.suptitle("How alike each position is to all others (cosine)", color=COLORS["ink"])
    return drawn


def _mosaic(maps: Any, grid: tuple[int, int]) -> Any:
    """Maps (N, *grid), one for each place of the grid, as one picture: hundreds of axes images would take seconds.

    Between two maps is a line of nothing; where maps are small each of their cells is several pixels, to keep it thin.
    """
    down, across = grid
    fine = max(1, round(1 / (GAP * max(grid))))
    cells = np.kron(maps, np.ones((1, fine, fine))).reshape(down, across, down * fine, across * fine)
    picture = np.full((down, down * fine + 1, across, across * fine + 1), np.nan)
    picture[:, :-1, :, :-1] = cells.transpose(0, 2, 1, 3)
    return picture.reshape(down * (down * fine + 1), -1)[:-1, :-1]


def masks(tables: Any, *, start: float = 0.0, title: str = "Learned masks") -> Figure:
    """Learned tables (L, H, Q, K): blocks down, heads across; amber is above where they started, violet below."""
    tables = np.asarray(tables, dtype=np.float64)
    if tables.ndim != 4 or 0 in tables.shape:
        raise SightlineError(f"tables must have shape (L, H, Q, K) without a zero, got {tables.shape}")
    depth, heads = tables.shape[:2]
    top = float(np.quantile(np.abs(tables - start), 0.995)) or 1.0
    cell = _cell(depth, heads)
    drawn, axes = figure(size=(max(5.6, heads * cell + 1.8), depth * cell + 0.9))
    ax = axes[0, 0]
    tiles = ((i, j, tables[i, j]) for i in range(depth) for j in range(heads))
    image = wall(ax, tiles, cmap="PuOr_r", vmin=start - top, vmax=start + top)
    edges(ax, [f"block {i}" for i in range(depth)], [f"head {j}" for j in range(heads)])
    _bar(drawn, image, ax)
    drawn.suptitle(title, color=COLORS["ink"])
    return drawn


def temperatures(values: Any, *, start: float) -> Figure:
    """Temperatures (L, H) as numbers: blocks down, heads across; violet is sharper than `start`, amber softer."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape or not (values > 0).all():
        raise SightlineError(f"values must be positive and of shape (L, H), got shape {values.shape}")
    depth, heads = values.shape
    drawn, axes = figure(size=(max(4.4, 0.62 * heads + 1.2), max(1.8, 0.42 * depth + 1.2)))
    ax = axes[0, 0]
    rows, columns = [f"block {i}" for i in range(depth)], [f"head {j}" if heads < 9 else str(j) for j in range(heads)]
    change = np.log2(values / start)
    top = max(float(np.abs(change).max()), 0.25)
    heatmap(ax, change, rows=rows, columns=columns, diverging=True, numbers=False, top=top)
    for i, j in np.ndindex(depth, heads):
        ink = "white" if abs(change[i, j]) > 0.55 * top else COLORS["ink"]
        ax.text(j, i, f"{values[i, j]:#.3g}", ha="center", va="center", fontsize=SMALL, color=ink)
    ax.xaxis.tick_top()
    if heads >= 9:
        ax.set_xlabel("heads", color=COLORS["gray"])
        ax.xaxis.set_label_position("top")
    drawn.suptitle(f"Learned temperatures, from {start:.3g}", color=COLORS["ink"])
    ax.text(0, -0.04, "violet: sharper than at the start, amber: softer", transform=ax.transAxes, va="top",
            fontsize=SMALL, color=COLORS["gray"])  # fmt: skip
    return drawn


def components(rows: Any) -> tuple[Any, Any]:
    """Principal components of rows (N, D), the first `MOST_COMPONENTS`: (n, D), each with its share of the whole.

    Each is stretched to 1, and its largest number is positive: a component has no sign of its own.
    """
    _, sizes, parts = np.linalg.svd(rows, full_matrices=False)
    shares = sizes**2 / max(float((sizes**2).sum()), 1e-30)
    parts, shares = parts[:MOST_COMPONENTS], shares[:MOST_COMPONENTS]
    peaks = np.take_along_axis(parts, np.abs(parts).argmax(1)[:, None], 1)
    return parts / np.where(peaks == 0, 1, peaks), shares


def cosines(rows: Any) -> Any:
    """The cosine of each row with every other: (N, D) -> (N, N); a row of zeros is like none."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(lengths == 0, 1, lengths)
    return unit @ unit.T


def edges(axes: Axes, rows: list[str], columns: list[str]) -> None:
    """Names at the left and at the top of a wall."""
    for i, name in enumerate(rows):
        axes.text(-0.1, middle(i, 0)[1], name, ha="right", va="center", fontsize=SMALL, color=COLORS["gray"])
    for j, name in enumerate(columns):
        axes.text(middle(0, j)[0], -0.06, name, ha="center", va="bottom", fontsize=SMALL, color=COLORS["gray"])


def _components(axes: Axes, parts: Any, shares: Any) -> None:
    across, gap = math.ceil(len(parts) ** 0.5), 0.3
    tiles = ((i // across, i % across, _shade(one, 1.0)) for i, one in enumerate(parts))
    wall(axes, tiles, gap=gap, **_look(parts, 1.0))
    for i, share in enumerate(shares):
        x, y = middle(i // across, i % across, gap=gap)
        axes.text(x, y + 0.53, f"{share:.0%}", ha="center", va="top", fontsize=7, color=COLORS["gray"])


def _shade(kernel: Any, top: float) -> Any:
    """(C, height, width) as `imshow` wants it: numbers where there is one channel, colors where there are three."""
    return kernel[0] if len(kernel) == 1 else np.clip(0.5 + np.moveaxis(kernel, 0, -1) / (2 * top), 0, 1)


def _look(kernels: Any, top: float) -> dict[str, Any]:
    return {"cmap": "PuOr_r", "vmin": -top, "vmax": top} if kernels.shape[1] == 1 else {}


def _cell(rows: int, columns: int) -> float:
    """Inches for a tile of a wall, so that few are large and many still fit a screen."""
    return min(1.7, max(0.75, 11 / max(rows, columns)))


def _bar(drawn: Figure, image: Any, axes: Axes) -> None:
    bar = drawn.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=SMALL)


def _checked(table: Any, grid: tuple[int, int], before: int) -> Any:
    table = np.asarray(table, dtype=np.float64)
    if table.ndim != 2 or len(table) != before + grid[0] * grid[1]:
        raise SightlineError(
            f"table must have {before} + {grid[0]} x {grid[1]} rows, one for each position, got shape {table.shape}"
        )
    return table
