"""Attention maps as matplotlib figures. Requires matplotlib (the `plot` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..errors import SightlineError, check
from ..names import shortened
from .figures import COLORS, escape, figure, heatmap, wrap
from .maps import Map, merge_calls
from .tokens import query_and_key, token_sequences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LABELS = 60
"""Axes with more tokens have no labels."""


def plot_layer(
    maps: Sequence[Map],
    layer: int | str,
    head: int | Literal["mean", "max"] = "mean",
    *,
    batch: int = 0,
    title: str | None = None,
    **tokens: Any,
) -> Figure:
    """Draw one head of a layer, or the mean or maximum over heads.

    `layer` is an index or a name. `tokens` are the token arguments of `token_sequences`.
    """
    maps = _prepare(maps, batch)
    m = _find_layer(maps, layer)
    sequences = token_sequences(maps, **tokens)
    query, key = (sequences[name] for name in query_and_key(m.kind, sequences))
    weights = m.weights[batch]
    if head in ("mean", "max"):
        weights, head_label = getattr(weights, head)(0), f"{head} of {len(weights)} heads"
    elif isinstance(head, int) and str(head) in m.head_names:
        weights, head_label = weights[m.head_names.index(str(head))], f"head {head}"
    else:
        raise SightlineError(f"head must be mean, max or one of {', '.join(m.head_names)}, got {head!r}")
    queries, keys = weights.shape
    rows, columns = _labels(query.names(queries)), _labels(key.names(keys))
    size = max(3.2, min(12, 1.6 + 0.42 * keys)), max(2.6, min(12, 1.4 + 0.36 * queries))
    fig, axes = figure(size=size)
    ax = axes[0, 0]
    heading = wrap(f"{m.name}, {head_label}" if title is None else title, size[0] - 0.3)
    signed = bool((weights < 0).any())
    heatmap(ax, weights, title=heading, row_labels=rows, column_labels=columns, diverging=signed)
    if columns and max(map(len, columns)) > 3:
        ax.tick_params(axis="x", rotation=90)
    ax.xaxis.tick_top()
    ax.set_ylabel("query", color=COLORS["gray"])
    ax.set_xlabel("key", color=COLORS["gray"])
    return fig


def plot_heads(maps: Sequence[Map], *, batch: int = 0, title: str = "") -> Figure:
    """Draw every head of every layer: one row per layer, one column per head."""
    maps = _prepare(maps, batch)
    max_heads = max(m.shape[1] for m in maps)
    width = max(3.2, 0.6 + 1.1 * max_heads)
    fig, axes = figure(len(maps), max_heads, size=(width, max(2.0, 0.6 + 1.15 * len(maps))))
    for i, m in enumerate(maps):
        for j in range(max_heads):
            ax = axes[i, j]
            if j >= m.shape[1]:
                ax.set_axis_off()
                continue
            weights = m.weights[batch, j]
            heatmap(ax, weights, annotate=False, diverging=bool((weights < 0).any()))
            ax.set(xticks=[], yticks=[])
            ax.set_title(m.head_names[j] if i == 0 else "", fontsize=9, color=COLORS["gray"])
        name = m.name if len(m.name) <= 28 else f"…{m.name[-27:]}"
        label = axes[i, 0].set_ylabel(escape(name), fontsize=8, color=COLORS["gray"])
        label.set(rotation=0, horizontalalignment="right", verticalalignment="center")
    fig.suptitle(wrap(title, width - 0.3, 12), color=COLORS["ink"])
    return fig


def _prepare(maps: Sequence[Map], batch: int) -> list[Map]:
    check(maps, "record must contain at least one attention map, got none")
    batch_size = min(m.shape[0] for m in maps)
    check(0 <= batch < batch_size, f"batch must be below {batch_size}, the batch size, got {batch}")
    return merge_calls(maps)


def _find_layer(maps: list[Map], layer: int | str) -> Map:
    if isinstance(layer, int) and -len(maps) <= layer < len(maps):
        return maps[layer]
    for m in maps:
        if m.name == layer:
            return m
    raise SightlineError(f"layer must be below {len(maps)} or one of {', '.join(m.name for m in maps)}, got {layer!r}")


def _labels(names: list[str]) -> list[str] | None:
    """Tick labels; an empty name becomes ∅."""
    return [escape(shortened(name, 24) or "∅") for name in names] if len(names) <= MAX_LABELS else None
