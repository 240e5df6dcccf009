"""How training went, drawn. Plain numbers in.

Needs matplotlib: the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import SightlineError
from .figures import COLORS, figure, name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = tuple[Sequence[float], Sequence[float]]
"""Steps, and a number at each."""
INKS = (COLORS["blue"], COLORS["amber"], COLORS["ink"])


def curves(panels: Mapping[str, Mapping[str, Line]], *, best: float | None = None, title: str = "Training") -> Figure:
    """A panel for each name, one upon the other, with a line for each of its names. `best` is a step to mark."""
    if not panels or not all(panels.values()):
        raise SightlineError("panels must each hold at least one line, got none")
    drawn, axes = figure(len(panels), size=(7.2, 0.8 + 1.9 * len(panels)))
    furthest = max(max(steps) for lines in panels.values() for steps, _ in lines.values())
    for ax, (panel, lines) in zip(axes[:, 0], panels.items(), strict=True):
        for ink, (line, (steps, values)) in zip(_inks(len(lines)), lines.items(), strict=True):
            few = {"marker": "o", "markersize": 3} if len(steps) < 40 else {}
            ax.plot(steps, values, color=ink, linewidth=1.5, label=name(line), **few)
        if best is not None:
            ax.axvline(best, color=COLORS["gray"], linewidth=1, linestyle=":")
        ax.set_xlim(0, furthest * 1.02)
        ax.set_title(name(panel), loc="left", color=COLORS["ink"])
        ax.grid(axis="y", color="#e6e9ed", linewidth=0.8)
        ax.tick_params(length=0, labelsize=8, labelcolor=COLORS["gray"])
        ax.spines[:].set_visible(False)
        if len(lines) > 1:
            many = {"ncols": 3, "fontsize": 6} if len(lines) > len(INKS) else {"fontsize": 8}
            ax.legend(frameon=False, labelcolor=COLORS["ink"], **many)
        if ax is not axes[-1, 0]:
            ax.set_xticklabels([])
    _mark_best(axes[0, 0], best)
    axes[-1, 0].set_xlabel("steps", color=COLORS["gray"])
    drawn.suptitle(name(title), color=COLORS["ink"])
    return drawn


def _inks(count: int) -> Sequence[Any]:
    if count <= len(INKS):
        return INKS[:count]
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * i / (count - 1)) for i in range(count)]


def _mark_best(axes: Any, best: float | None) -> None:
    if best is not None:
        axes.text(best, 1.0, "best ", transform=axes.get_xaxis_transform(), ha="right", va="top", fontsize=8,
                  color=COLORS["gray"])  # fmt: skip
