"""Attention maps as plain arrays, and decoding steps put together again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

Kind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, kw_only=True)
class Map:
    """One attention: who looked at whom, and how much."""

    name: str
    """Where it stands in the model."""
    kind: Kind
    """encoder (source looks at source), decoder (target at target) or cross (target at source)."""
    weights: Any
    """(B, H, Q, K), anything numpy can read"""
    heads: tuple[int, ...] | None = None
    """The numbers of the heads; None for 0, 1, 2 and so on, () for a mean over all."""

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights)
        if weights.ndim != 4 or 0 in weights.shape:
            raise ValueError(f"weights must have shape (B, H, Q, K) without a zero, got {weights.shape} in {self.name}")
        if not np.isfinite(weights).all():
            raise ValueError(f"weights must be finite, got NaN or infinity in {self.name}")
        object.__setattr__(self, "weights", weights)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, Q, K"""
        return self.weights.shape

    @property
    def head_names(self) -> list[str]:
        """What to call each head."""
        if self.heads == ():
            return ["mean"]
        return [str(head) for head in (range(self.shape[1]) if self.heads is None else self.heads)]


def joined(maps: Sequence[Map]) -> list[Map]:
    """Each attention once where its calls are steps of one decoding; else each call under a name of its own."""
    calls: dict[str, list[Map]] = {}
    for one in maps:
        calls.setdefault(one.name, []).append(one)
    return [one for steps in calls.values() for one in _join(steps)]


def _join(steps: list[Map]) -> list[Map]:
    batches, heads, queries, keys = zip(*(step.shape for step in steps), strict=True)
    alike = len(set(batches)) == len(set(heads)) == 1 and steps[0].kind != "encoder"
    if len(steps) == 1:
        return steps
    if alike and _adds_rows(queries, keys):
        rows = [np.pad(s.weights, ((0, 0), (0, 0), (0, 0), (0, keys[-1] - s.shape[3]))) for s in steps]
        return [replace(steps[0], weights=np.concatenate(rows, axis=2))]
    if alike and _repeats_and_adds(queries, keys):
        return steps[-1:]
    return [replace(step, name=f"{step.name}, call {i + 1} of {len(steps)}") for i, step in enumerate(steps)]


def _adds_rows(queries: tuple[int, ...], keys: tuple[int, ...]) -> bool:
    """Whether each call brings new rows only, as with a key-value cache."""
    own_keys_too = all(late - early == new for (early, late), new in zip(pairwise(keys), queries[1:], strict=True))
    return own_keys_too or (len(set(keys)) == 1 and set(queries[1:]) == {1})


def _repeats_and_adds(queries: tuple[int, ...], keys: tuple[int, ...]) -> bool:
    """Whether each call repeats the one before and goes one further, as without a cache."""
    longer = all(late == early + 1 for early, late in pairwise(queries))
    return longer and (len(set(keys)) == 1 or keys == queries)
