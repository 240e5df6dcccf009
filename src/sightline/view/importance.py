"""The importance of attention heads, for the grid view of a page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import SightlineError, check
from .maps import Map

Importance = Mapping[str, Iterable[Any]]
"""By how much the target drops without each head, by the name of the layer."""


def read_importance(importance: Importance | None, maps: Sequence[Map]) -> list[list[float] | None]:
    """The values of the heads of each map; None for maps without any."""
    if importance is None:
        return [None] * len(maps)
    check(isinstance(importance, Mapping), f"importance must be a dict of layer names, got {type(importance).__name__}")
    names = {_layer_name(m) for m in maps}
    unknown = sorted(set(importance) - names)
    check(not unknown, f"importance must be of layers of the record, got {', '.join(unknown)[:200]}")
    return [_values(importance, m) for m in maps]


def _values(importance: Importance, m: Map) -> list[float] | None:
    name = _layer_name(m)
    if name not in importance or m.heads == ():
        return None
    try:
        values = [float(value) for value in importance[name]]
    except (TypeError, ValueError) as error:
        raise SightlineError(f"importance must be numbers, one for each head of {name}") from error
    check(all(map(math.isfinite, values)), f"importance must be finite, got NaN or infinity in {name}")
    heads = range(m.shape[1]) if m.heads is None else m.heads
    is_complete = len(values) > max(heads) if m.heads else len(values) == m.shape[1]
    check(is_complete, f"importance must have one number for each head of {name}, got {len(values)}")
    return [float(f"{values[head]:.4g}") for head in heads]


def _layer_name(m: Map) -> str:
    """The name without the number of the call."""
    return m.name.partition(", ")[0]
