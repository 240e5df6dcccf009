"""Attention maps as plain pictures for papers. Needs matplotlib: the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..errors import SightlineError
from ..names import shortened
from .figures import COLORS, figure, heatmap, plain, wrapped
from .maps import Map, joined
from .sides import sides, sides_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMES = 60
"""Tokens up to which each is named on an axis."""


def one_map(
    maps: Sequence[Map],
    layer: int | str,
    head: int | Literal["mean", "max"] = "mean",
    *,
    batch: int = 0,
    title: str | None = None,
    **words: Any,
) -> Figure:
    """One layer, by place or name: one head, or the mean or the max of all. `words`: as `sides` takes them."""
    maps = _checked(maps, batch)
    one = _layer(maps, layer)
    both = sides(maps, **words)
    looking, looked_at = (both[side] for side in sides_of(one.kind, both))
    weights = one.weights[batch]
    if head == "mean":
        weights, which = weights.mean(0), f"mean of {len(weights)} heads"
    elif head == "max":
        weights, which = weights.max(0), f"max of {len(weights)} heads"
    elif isinstance(head, int) and str(head) in one.head_names:
        weights, which = weights[one.head_names.index(str(head))], f"head {head}"
    else:
        raise SightlineError(f"head must be mean, max or one of {', '.join(one.head_names)}, got {head!r}")
    queries, keys = weights.shape
    rows, columns = _named(looking.names(queries)), _named(looked_at.names(keys))
    size = max(3.2, min(12, 1.6 + 0.42 * keys)), max(2.6, min(12, 1.4 + 0.36 * queries))
    drawn, axes = figure(size=size)
    ax = axes[0, 0]
    heading = f"{one.name}, {which}" if title is None else title
    heatmap(
        ax,
        weights,
        title=wrapped(heading, size[0] - 0.3),
        rows=rows,
        columns=columns,
        diverging=bool((weights < 0).any()),
    )
    if columns and max(map(len, columns)) > 3:
        ax.tick_params(axis="x", rotation=90)
    ax.xaxis.tick_top()
    ax.set_ylabel("looks", color=COLORS["gray"])
    ax.set_xlabel("is looked at", color=COLORS["gray"])
    return drawn


def every_head(maps: Sequence[Map], *, batch: int = 0, title: str = "") -> Figure:
    """Layers down, heads across."""
    maps = _checked(maps, batch)
    most = max(one.shape[1] for one in maps)
    wide = max(3.2, 0.6 + 1.1 * most)
    drawn, axes = figure(len(maps), most, size=(wide, max(2.0, 0.6 + 1.15 * len(maps))))
    for i, one in enumerate(maps):
        for j in range(most):
            ax = axes[i, j]
            if j >= one.shape[1]:
                ax.set_axis_off()
                continue
            weights = one.weights[batch, j]
            heatmap(ax, weights, numbers=False, diverging=bool((weights < 0).any()))
            ax.set(xticks=[], yticks=[])
            ax.set_title(one.head_names[j] if i == 0 else "", fontsize=9, color=COLORS["gray"])
        label = axes[i, 0].set_ylabel(plain(_short(one.name)), fontsize=8, color=COLORS["gray"])
        label.set(rotation=0, horizontalalignment="right", verticalalignment="center")
    drawn.suptitle(wrapped(title, wide - 0.3, 12), color=COLORS["ink"])
    return drawn


def _checked(maps: Sequence[Map], batch: int) -> list[Map]:
    if not maps:
        raise SightlineError("record must hold at least one attention map, got none")
    maps = joined(maps)
    least = min(one.shape[0] for one in maps)
    if not 0 <= batch < least:
        raise SightlineError(f"batch must be below {least}, the size of the batch, got {batch}")
    return maps


def _layer(maps: list[Map], layer: int | str) -> Map:
    if isinstance(layer, int) and -len(maps) <= layer < len(maps):
        return maps[layer]
    for one in maps:
        if one.name == layer:
            return one
    raise SightlineError(f"layer must be below {len(maps)} or one of {', '.join(m.name for m in maps)}, got {layer!r}")


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"…{name[-27:]}"


def _named(names: list[str]) -> list[str] | None:
    """Each on one line and not too long; an empty name leaves a mark."""
    return [plain(shortened(name, 24) or "∅") for name in names] if len(names) <= MOST_NAMES else None
