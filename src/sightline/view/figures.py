"""Plain pictures of weights, for files and papers. Needs matplotlib: the extra `plot`."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SightlineError
from ..files import atomic_write
from ..names import printable, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
MOST_NUMBERS = 400
"""Cells up to which a heat map prints its numbers."""

FONT = "DejaVu Sans"
"""It comes with matplotlib."""
OTHER_SCRIPTS = (
    "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo", "Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC",
    "Microsoft YaHei", "PingFang SC", "Hiragino Sans", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Noto Sans Thai",
    "Arial Unicode MS", "Unifont",
)  # fmt: skip
"""What to write the letters with that it lacks, as far as it is installed."""
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "sightline",
}
GAP = 0.12
"""Between two pictures of a wall, as a share of their side."""
COLORS = {"ink": "#1b2a41", "blue": "#1f6feb", "amber": "#e08a00", "gray": "#8b949e"}


def figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float]) -> tuple[Figure, Any]:
    """A figure in the house style and its axes, rows x columns."""
    with _style():
        from matplotlib.figure import Figure

        class Drawing(Figure):
            def _repr_png_(self) -> bytes:
                """Shown by a notebook cell, also where pyplot was never imported."""
                file = io.BytesIO()
                self.savefig(file, format="png", dpi=110)
                return file.getvalue()

        drawn = Drawing(figsize=size, layout="constrained")
        return drawn, drawn.subplots(rows, columns, squeeze=False)


def heatmap(
    axes: Axes,
    weights: Any,
    *,
    title: str = "",
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    numbers: bool | None = None,
    diverging: bool = False,
    top: float | None = None,
) -> None:
    """One matrix of weights: rows look, columns are looked at.

    Dark is much; with `diverging`, violet is below zero and amber above. `top` is the number with the strongest color.
    """
    table = [[float(w) for w in row] for row in weights]
    if not table or not table[0]:
        raise SightlineError(f"weights must have at least one row and one column, got {len(table)} rows")
    top = top or max(max(abs(w) for row in table for w in row), 1e-9)
    axes.imshow(table, cmap="PuOr_r" if diverging else "Blues", vmin=-top if diverging else 0, vmax=top, aspect="auto")
    axes.set_title(title, color=COLORS["ink"])
    axes.set_xticks(range(len(table[0])), columns or [""] * len(table[0]))
    axes.set_yticks(range(len(table)), rows or [""] * len(table))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if numbers if numbers is not None else len(table) * len(table[0]) <= MOST_NUMBERS:
        for i, row in enumerate(table):
            for j, w in enumerate(row):
                axes.text(
                    j, i, f"{w:.2f}".replace("-0.00", "0.00"), ha="center", va="center", fontsize=8,
                    color="white" if abs(w) > 0.55 * top else COLORS["ink"],
                )  # fmt: skip


def wall(axes: Axes, tiles: Iterable[tuple[int, int, Any]], *, gap: float = GAP, **look: Any) -> Any:
    """Little pictures in rows and columns of one axes: (row, column, picture) each. `look` is as `imshow` takes it.

    A tile is 1 wide and 1 high, its middle at `middle(row, column)`. What comes back serves for a color bar.
    """
    image, bottom, right = None, 1.0, 1.0
    axes.set_axis_off()
    for row, column, picture in tiles:
        x, y = column * (1 + gap), row * (1 + gap)
        image = axes.imshow(picture, extent=(x, x + 1, y + 1, y), interpolation="none", **look)
        bottom, right = max(bottom, y + 1), max(right, x + 1)
    if image is None:
        raise SightlineError("tiles must hold at least one picture, got none")
    axes.set(xlim=(-0.02, right + 0.02), ylim=(bottom + 0.02, -0.02), aspect="equal")
    return image


def middle(row: int, column: int, *, gap: float = GAP) -> tuple[float, float]:
    """Where the middle of a tile of a wall is: x and y"""
    return column * (1 + gap) + 0.5, row * (1 + gap) + 0.5


def plain(text: str) -> str:
    """Text as it is written: a dollar sign would start a formula, a control character is no XML."""
    return "\n".join(map(printable, text.split("\n"))).replace("$", r"\$")


def wrapped(text: str, inches: float, points: float = 11) -> str:
    """In lines that fit this width: a letter is about 0.6 of its height wide."""
    letters = max(8, int(72 * inches / (0.6 * points)))
    return plain("\n".join("\n".join(textwrap.wrap(line, letters)) for line in text.split("\n")))


def name(text: str, most: int = 40) -> str:
    """A name from outside, on one line and not too long."""
    return plain(shortened(text, most))


def save(drawn: Figure, path: Path) -> Path:
    """Write a picture as PNG or SVG, whole or not at all."""
    if path.suffix not in SUFFIXES:
        raise SightlineError(f"path must end in .png or .svg, got {path.name!r}")
    kind = path.suffix[1:]
    with atomic_write(path) as part, _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a box stands for a letter no font has
        drawn.savefig(part, dpi=150, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return path


def _style() -> AbstractContextManager[None]:
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise SightlineError("pictures must have matplotlib: pip install 'sightline[plot]'") from error
    return rc_context({**STYLE, "font.family": _fonts()})


@cache
def _fonts() -> list[str]:
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return [FONT, *(name for name in OTHER_SCRIPTS if name in installed)]
