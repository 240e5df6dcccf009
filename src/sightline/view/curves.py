"""Training curves. Requires matplotlib (the `plot` extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import check
from .figures import COLORS, figure, short_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = tuple[Sequence[float], Sequence[float]]
"""Steps, and the value at each."""
LINE_COLORS = (COLORS["blue"], COLORS["amber"], COLORS["ink"])


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
