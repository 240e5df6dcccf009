"""Figures in one style: heat maps, grids of small images, curves. Requires matplotlib (the `plot` extra)."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingDependencyError, check
from ..files import atomic_write
from ..names import printable, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
MAX_ANNOTATED_CELLS = 400
"""Heat maps with more cells do not print their numbers."""
FONT = "DejaVu Sans"
"""Included in matplotlib."""
FALLBACK_FONTS = (
    "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo", "Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC",
    "Microsoft YaHei", "PingFang SC", "Hiragino Sans", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Noto Sans Thai",
    "Arial Unicode MS", "Unifont",
)  # fmt: skip
"""Fonts for other scripts; those that are installed are used."""
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "sightline",
}
COLORS = {"ink": "#1b2a41", "blue": "#1f6feb", "amber": "#e08a00", "gray": "#8b949e"}
Line = tuple[Sequence[float], Sequence[float]]
"""Steps, and the value at each."""
LINE_COLORS = (COLORS["blue"], COLORS["amber"], COLORS["ink"])
HEAT_COLORS = ("#04040c", "#2a0d54", "#7a1f6d", "#d2493f", "#fb9b06", "#fcffa4")
"""From low to high, as in the viewer."""
SMALL_FONT = 8
TILE_GAP = 0.12
"""Between two tiles, as a fraction of their side."""


def figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Create a figure of `size` inches and its axes (rows, columns)."""
    with _style():
        from matplotlib.figure import Figure

        class NotebookFigure(Figure):
            def _repr_png_(self) -> bytes:
                """Display in a notebook cell without pyplot."""
                file = io.BytesIO()
                self.savefig(file, format="png", dpi=110)
                return file.getvalue()

        fig = NotebookFigure(figsize=size, layout="constrained")
        return fig, fig.subplots(rows, columns, squeeze=False)


def heatmap(
    axes: Axes,
    weights: Any,
    *,
    title: str = "",
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    annotate: bool | None = None,
    diverging: bool = False,
    vmax: float | None = None,
) -> None:
    """Draw a matrix of weights; rows are queries, columns are keys.

    Dark cells are large. With `diverging`, violet is negative and amber is positive. `annotate` prints the numbers
    (default: if there are few cells). `vmax` is the value with the strongest color (default: the largest).
    """
    table = [[float(w) for w in row] for row in weights]
    check(table and table[0], f"weights must have at least one row and one column, got {len(table)} rows")
    vmax = vmax or max(max(abs(w) for row in table for w in row), 1e-9)
    cmap, vmin = ("PuOr_r", -vmax) if diverging else ("Blues", 0)
    axes.imshow(table, cmap=cmap, vmin=vmin, vmax=vmax, aspect="auto")
    axes.set_title(title, color=COLORS["ink"])
    axes.set_xticks(range(len(table[0])), column_labels or [""] * len(table[0]))
    axes.set_yticks(range(len(table)), row_labels or [""] * len(table))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if annotate if annotate is not None else len(table) * len(table[0]) <= MAX_ANNOTATED_CELLS:
        largest = max(abs(w) for row in table for w in row)
        digits = min(4, 1 - math.floor(math.log10(largest))) if 0 < largest < 0.1 else 2
        for i, row in enumerate(table):
            for j, w in enumerate(row):
                text, color = f"{round(w, digits) + 0.0:.{digits}f}", "white" if abs(w) > 0.55 * vmax else COLORS["ink"]
                axes.text(j, i, text, ha="center", va="center", fontsize=8, color=color)


def draw_tiles(axes: Axes, tiles: Iterable[tuple[int, int, Any]], *, gap: float = TILE_GAP, **imshow: Any) -> Any:
    """Draw small images (row, column, image) in a grid of unit tiles. `imshow` is passed to `Axes.imshow`.

    Returns the last image, for a color bar.
    """
    drawn, bottom, right = None, 1.0, 1.0
    axes.set_axis_off()
    for row, column, image in tiles:
        x, y = column * (1 + gap), row * (1 + gap)
        drawn = axes.imshow(image, extent=(x, x + 1, y + 1, y), interpolation="none", **imshow)
        bottom, right = max(bottom, y + 1), max(right, x + 1)
    check(drawn, "tiles must contain at least one image, got none")
    axes.set(xlim=(-0.02, right + 0.02), ylim=(bottom + 0.02, -0.02), aspect="equal")
    return drawn


def tile_center(row: int, column: int, *, gap: float = TILE_GAP) -> tuple[float, float]:
    """The center (x, y) of a tile."""
    return column * (1 + gap) + 0.5, row * (1 + gap) + 0.5


def label_tiles(axes: Axes, rows: list[str], columns: list[str]) -> None:
    """Write labels to the left of tile rows and above tile columns."""
    style: dict[str, Any] = {"fontsize": SMALL_FONT, "color": COLORS["gray"]}
    for i, label in enumerate(rows):
        axes.text(-0.1, tile_center(i, 0)[1], label, ha="right", va="center", **style)
    for j, label in enumerate(columns):
        axes.text(tile_center(0, j)[0], -0.06, label, ha="center", va="bottom", **style)


def curves(
    panels: Mapping[str, Mapping[str, Line]], *, best_step: float | None = None, title: str = "Training"
) -> Figure:
    """Draw one panel per name, each with one line per name, and mark `best_step`."""
    check(panels and all(panels.values()), "panels must each contain at least one line, got none")
    fig, axes = figure(len(panels), size=(7.2, 0.8 + 1.9 * len(panels)))
    last_step = max(max(steps) for lines in panels.values() for steps, _ in lines.values())
    for ax, (panel, lines) in zip(axes[:, 0], panels.items(), strict=True):
        for color, (label, (steps, values)) in zip(_colors(len(lines)), lines.items(), strict=True):
            marker = "o" if len(steps) < 40 else ""
            ax.plot(steps, values, color=color, linewidth=1.5, label=short_label(label), marker=marker, markersize=3)
        if best_step is not None:
            ax.axvline(best_step, color=COLORS["gray"], linewidth=1, linestyle=":")
        ax.set_xlim(0, last_step * 1.02)
        ax.set_title(short_label(panel), loc="left", color=COLORS["ink"])
        ax.grid(axis="y", color="#e6e9ed", linewidth=0.8)
        ax.tick_params(length=0, labelsize=8, labelcolor=COLORS["gray"])
        ax.spines[:].set_visible(False)
        if len(lines) > 1:
            layout = {"ncols": 3, "fontsize": 6} if len(lines) > len(LINE_COLORS) else {"fontsize": 8}
            ax.legend(frameon=False, labelcolor=COLORS["ink"], **layout)
        if ax is not axes[-1, 0]:
            ax.set_xticklabels([])
    if best_step is not None:
        style: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 8, "color": COLORS["gray"]}
        axes[0, 0].text(best_step, 1.0, "best ", transform=axes[0, 0].get_xaxis_transform(), **style)
    axes[-1, 0].set_xlabel("steps", color=COLORS["gray"])
    fig.suptitle(short_label(title), color=COLORS["ink"])
    return fig


def _colors(count: int) -> Sequence[Any]:
    if count <= len(LINE_COLORS):
        return LINE_COLORS[:count]
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * i / (count - 1)) for i in range(count)]


def escape(text: str) -> str:
    """Replace control characters and escape dollar signs, which would start a formula."""
    return "\n".join(map(printable, text.split("\n"))).replace("$", r"\$")


def wrap(text: str, inches: float, points: float = 11) -> str:
    """Escape text and wrap it to this width, assuming letters 0.6 times as wide as high."""
    letters = max(8, int(72 * inches / (0.6 * points)))
    return escape("\n".join("\n".join(textwrap.wrap(line, letters)) for line in text.split("\n")))


def short_label(text: str, length: int = 40) -> str:
    """Escape text and shorten it to one line of `length` characters."""
    return escape(shortened(text, length))


def save(fig: Figure, path: Path) -> Path:
    """Write a figure to a PNG or SVG file."""
    check(path.suffix in SUFFIXES, f"path must end in .png or .svg, got {path.name!r}")
    kind = path.suffix[1:]
    with atomic_write(path) as part, _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # drawn as boxes
        fig.savefig(part, dpi=150, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return path


def _style() -> AbstractContextManager[None]:
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise MissingDependencyError("figures must have matplotlib, got none; pip install 'sightline[plot]'") from error
    return rc_context({**STYLE, "font.family": _fonts()})


@cache
def _fonts() -> list[str]:
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return [FONT, *(font for font in FALLBACK_FONTS if font in installed)]
