"""Attention maps as plain arrays, and decoding steps put together again."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..errors import SightlineError

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
    turn: int | None = None
    """Which call of the whole model it was seen in; None where nobody counted."""
    shuffles: int = 0
    """How often the rows of a key-value cache had changed places before it, as a beam search makes them."""
    call: int = 0
    """Which of several calls of the same attention this is, where they were not put together."""

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights)
        if weights.ndim != 4 or 0 in weights.shape:
            raise SightlineError(
                f"weights must have shape (B, H, Q, K) without a zero, got {weights.shape} in {self.name}"
            )
        with np.errstate(over="ignore"):
            weights = weights.astype(np.float32, copy=False)
        if not np.isfinite(weights).all():
            raise SightlineError(f"weights must be finite, got NaN or infinity in {self.name}")
        if self.heads and len(self.heads) != weights.shape[1]:
            raise SightlineError(
                f"heads must name {weights.shape[1]} heads, as many as {self.name} has, got {self.heads}"
            )
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
    """Each attention once where its calls are steps of one decoding; else each call under a name of its own.

    Layers that share one attention (ALBERT, universal transformers) call it several times in one call of the model, and
    are layers all the same.
    """
    calls: dict[str, list[Map]] = {}
    for one in maps:
        calls.setdefault(one.name, []).append(one)
    decoding = any(len(steps) > 1 and _grows(steps) for steps in calls.values())
    uses = {name: _uses(steps, decoding) for name, steps in calls.items()}
    count: Counter[str] = Counter()
    layers: dict[str, list[Map]] = {}
    for one in maps:
        place = count[one.name] % uses[one.name] + 1
        count[one.name] += 1
        name = one.name if uses[one.name] == 1 else f"{one.name}, use {place} of {uses[one.name]}"
        layers.setdefault(name, []).append(replace(one, name=name))
    decoding = any(len(steps) > 1 and _grows(steps) for steps in layers.values())
    return [one for steps in layers.values() for one in _join(steps, decoding)]


def _uses(steps: list[Map], decoding: bool) -> int:
    """How many layers share this attention: as often as each call of the model calls it, unless it decodes inside."""
    turns = Counter(step.turn for step in steps)
    if None in turns or len(set(turns.values())) > 1:
        return 1
    if len(turns) == 1 and len(_join(steps, decoding)) == 1:
        return 1
    return turns[steps[0].turn]


def _join(steps: list[Map], decoding: bool) -> list[Map]:
    if len(steps) == 1:
        return steps
    alike = len({step.shape[:2] for step in steps}) == 1 and steps[0].kind != "encoder"
    alike = alike and len({step.shuffles for step in steps}) == 1
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
