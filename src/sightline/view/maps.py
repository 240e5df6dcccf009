"""Attention maps as numpy arrays, and merging of the steps of autoregressive decoding."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np

from ..errors import check

Kind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, kw_only=True)
class Map:
    """The weights of one attention module in one call."""

    name: str
    """Path of the module in the model."""
    kind: Kind
    """encoder (source to source), decoder (target to target) or cross (target to source)."""
    weights: Any
    """(B, H, Q, K), any array-like."""
    heads: tuple[int, ...] | None = None
    """Head indices; None for all heads in order, () for a mean over heads."""
    call_index: int | None = None
    """Index of the model's forward call; None if it was not counted."""
    cache_reorders: int = 0
    """How often a beam search had reordered the rows of the key-value cache before this call."""
    note: str = ""
    """What else a reader of the weights must know."""
    over: str = "tokens"
    """What queries and keys are."""
    measure: str = "attention"
    """What the weights are: attention, rollout or relevance."""
    queries: tuple[str, ...] | None = None
    """Names of the queries if they are not tokens: the targets of relevance."""
    module_call: int = 0
    """Index among calls of the same module that are not merged."""

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights)
        has_shape = weights.ndim == 4 and weights.size
        check(has_shape, f"weights must have shape (B, H, Q, K) without a zero, got {weights.shape} in {self.name}")
        with np.errstate(over="ignore"):
            weights = weights.astype(np.float32, copy=False)
        check(np.isfinite(weights).all(), f"weights must be finite, got NaN or infinity in {self.name}")
        has_names = not self.heads or len(self.heads) == weights.shape[1]
        check(has_names, f"heads must name the {weights.shape[1]} heads of {self.name}, got {self.heads}")
        object.__setattr__(self, "weights", weights)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, Q, K"""
        return self.weights.shape

    @property
    def head_names(self) -> list[str]:
        """The label of each head."""
        if self.heads == ():
            return ["mean"]
        return [str(head) for head in (range(self.shape[1]) if self.heads is None else self.heads)]


def merge_calls(maps: Sequence[Map]) -> list[Map]:
    """Merge the steps of one decoding into one map per module; number all other repeated calls.

    A module that several layers share (ALBERT, universal transformers) is called several times in one forward call of
    the model. Each of these uses is a layer of its own.
    """
    calls: dict[str, list[Map]] = {}
    for m in maps:
        calls.setdefault(m.name, []).append(m)
    decoding = any(len(steps) > 1 and _is_cached_decoding(steps) for steps in calls.values())
    uses = {name: _layers_sharing(steps, decoding) for name, steps in calls.items()}
    count: Counter[str] = Counter()
    layers: dict[str, list[Map]] = {}
    for m in maps:
        use = count[m.name] % uses[m.name] + 1
        count[m.name] += 1
        name = m.name if uses[m.name] == 1 else f"{m.name}, use {use} of {uses[m.name]}"
        layers.setdefault(name, []).append(replace(m, name=name))
    decoding = any(len(steps) > 1 and _is_cached_decoding(steps) for steps in layers.values())
    return [m for steps in layers.values() for m in _merge(steps, decoding)]


def _layers_sharing(steps: list[Map], decoding: bool) -> int:
    """How many layers share this module: its calls per forward call, unless the model decodes inside one call."""
    per_forward = Counter(step.call_index for step in steps)
    if None in per_forward or len(set(per_forward.values())) > 1:
        return 1
    if len(per_forward) == 1 and len(_merge(steps, decoding)) == 1:
        return 1
    return per_forward[steps[0].call_index]


def _merge(steps: list[Map], decoding: bool) -> list[Map]:
    if len(steps) == 1:
        return steps
    mergeable = len({step.shape[:2] for step in steps}) == 1 and steps[0].kind != "encoder"
    mergeable = mergeable and len({step.cache_reorders for step in steps}) == 1 and steps[0].measure == "attention"
    if mergeable and decoding and steps[0].kind == "cross" and _is_cached_cross_attention(steps):
        return [replace(steps[0], weights=np.concatenate([step.weights for step in steps], axis=2))]
    for calls in (steps, [_filled(step) for step in steps]):
        if mergeable and _is_cached_decoding(calls):
            return [replace(calls[0], weights=_in_one(calls))]
    if mergeable and all(_extends(previous, step) for previous, step in pairwise(steps)):
        return steps[-1:]
    return [
        replace(step, name=f"{step.name}, call {i + 1} of {len(steps)}", module_call=i) for i, step in enumerate(steps)
    ]


def _is_cached_decoding(steps: list[Map]) -> bool:
    """Whether each call has only new queries, which attend to all previous keys or to the last of them.

    These are a key-value cache and one with a sliding window.
    """
    num_tokens, window = _num_tokens(steps), steps[-1].shape[3]
    num_keys = [step.shape[3] for step in steps[1:]]
    if num_keys == num_tokens[1:]:
        return True
    starts_square = steps[0].kind == "decoder" and steps[0].shape[2] == steps[0].shape[3]
    has_past = all(step.shape[2] < step.shape[3] for step in steps[1:])
    return starts_square and has_past and num_keys == [min(total, window) for total in num_tokens[1:]]


def _filled(step: Map) -> Map:
    """The part of a static cache that has been filled: without the last keys if no query attends to them."""
    return replace(
        step, weights=step.weights[..., : 1 + int(step.weights.any(axis=(0, 1, 2)).nonzero()[0].max(initial=0))]
    )


def _num_tokens(steps: list[Map]) -> list[int]:
    """The number of tokens up to each call."""
    return list(accumulate((step.shape[2] for step in steps[1:]), initial=steps[0].shape[3]))


def _in_one(steps: list[Map]) -> Any:
    """The rows of all calls, each over the last keys up to its queries: (B, H, Q, K)"""
    num_tokens = _num_tokens(steps)
    rows = [
        np.pad(step.weights, ((0, 0), (0, 0), (0, 0), (total - step.shape[3], num_tokens[-1] - total)))
        for step, total in zip(steps, num_tokens, strict=True)
    ]
    return np.concatenate(rows, axis=2)


def _is_cached_cross_attention(steps: list[Map]) -> bool:
    """Whether each call after the first has one new query over the same source."""
    return len({step.shape[3] for step in steps}) == 1 and {step.shape[2] for step in steps[1:]} == {1}


def _extends(previous: Map, step: Map) -> bool:
    """Whether a call repeats the previous one and adds one query: decoding without a cache."""
    queries, keys = previous.shape[2:]
    longer = step.shape[2] == queries + 1 and step.shape[3] in (keys, keys + 1)
    return longer and np.allclose(step.weights[:, :, :queries, :keys], previous.weights, atol=1e-3)
