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
    call: int = 0
    """Which of several calls of that attention this was."""

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights)
        if weights.ndim != 4 or 0 in weights.shape:
            raise ValueError(f"weights must have shape (B, H, Q, K) without a zero, got {weights.shape} in {self.name}")
        if not np.isfinite(weights).all():
            raise ValueError(f"weights must be finite, got NaN or infinity in {self.name}")
        if self.heads and len(self.heads) != weights.shape[1]:
            raise ValueError(f"heads must name {weights.shape[1]} heads, as many as {self.name} has, got {self.heads}")
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
    decoding = any(len(steps) > 1 and _grows(steps) for steps in calls.values())
    return [one for steps in calls.values() for one in _join(steps, decoding)]


def _join(steps: list[Map], decoding: bool) -> list[Map]:
    if len(steps) == 1:
        return steps
    alike = len({step.shape[:2] for step in steps}) == 1 and steps[0].kind != "encoder"
    if alike and (_grows(steps) or (decoding and _asks_again(steps))):
        keys = steps[-1].shape[3]
        rows = [np.pad(step.weights, ((0, 0), (0, 0), (0, 0), (0, keys - step.shape[3]))) for step in steps]
        return [replace(steps[0], weights=np.concatenate(rows, axis=2))]
    if alike and all(_repeats(early, late) for early, late in pairwise(steps)):
        return steps[-1:]
    return [replace(step, name=f"{step.name}, call {i + 1} of {len(steps)}", call=i) for i, step in enumerate(steps)]


def _grows(steps: list[Map]) -> bool:
    """Whether each call brings new tokens only, which look at all before them: a key-value cache."""
    return all(late.shape[3] - early.shape[3] == late.shape[2] for early, late in pairwise(steps))


def _asks_again(steps: list[Map]) -> bool:
    """Whether each call brings one new token that looks at the same source as those before it."""
    return len({step.shape[3] for step in steps}) == 1 and {step.shape[2] for step in steps[1:]} == {1}


def _repeats(early: Map, late: Map) -> bool:
    """Whether a call says what the one before it said, and one token more: decoding without a cache."""
    queries, keys = early.shape[2:]
    longer = late.shape[2] == queries + 1 and late.shape[3] in (keys, keys + 1)
    return longer and np.allclose(late.weights[:, :, :queries, :keys], early.weights, atol=1e-3)
