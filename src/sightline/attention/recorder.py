"""The attention maps of one model in one thread, as they are reported.

Shapes: B batch, H heads, Q queries, K keys.
"""

import threading
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from ..errors import check
from .functional import Kind
from .normalizers import in_backward
from .record import AttentionMap, Record

Layers = str | int | Iterable[str | int] | None
Heads = int | Iterable[int] | None


class Recorder:
    """Tracks the running modules of one model in one thread, and keeps their attention maps."""

    def __init__(
        self, model: nn.Module, layers: Layers, heads: Heads, average_heads: bool, scores: bool, cpu: bool
    ) -> None:
        self.record = Record(type(model).__name__)
        self.model, self.average_heads, self.scores, self.cpu = model, average_heads, scores, cpu
        self.layers = _as_tuple(layers, (str, int), "layers")
        self.heads = _as_tuple(heads, (int,), "heads")
        self.names = {
            module: name.replace("_orig_mod.", "").replace("_orig_mod", "") or type(module).__name__
            for name, module in model.named_modules()
        }
        self.thread = threading.get_ident()
        self.running: list[nn.Module] = []
        self.inside_attend = False
        self.layer_indices: dict[str, int] = {}
        """Index of every attention layer in the order of their first call, recorded or not."""
        self.call_index = -1
        """Number of earlier calls of the model, or of a part of it outside such a call."""
        self.cache_reorders = 0
        self.inferred_kinds: set[AttentionMap] = set()
        """Maps whose kind was inferred."""

    def in_this_thread(self) -> bool:
        """Whether the calling thread is the one that records."""
        return threading.get_ident() == self.thread

    def enter(self, module: nn.Module) -> None:
        """A module starts its forward pass."""
        if module in self.names:
            self.call_index += not self.running
            self.running.append(module)

    def leave(self, module: nn.Module) -> None:
        """A module ends its forward pass, also by an exception."""
        if self.running and self.running[-1] is module:
            self.running.pop()
            self.inside_attend = False

    def is_interested(self) -> bool:
        """Called by `attend`, which reports its weights if True."""
        should_record = self.should_record()
        if self.in_this_thread():
            self.inside_attend = should_record
        return should_record

    def on_attention(self, weights: Tensor, scores: Tensor, *, kind: Kind | None, causal: bool) -> None:
        """Called by `attend`: weights, scores (B, H, Q, K)"""
        self.inside_attend = False
        self.add(weights, scores, kind=kind, causal=causal)

    def should_record(self) -> bool:
        """Whether to record the attention of the running module."""
        if not self.in_this_thread() or not self.running or paused.is_active:
            return False
        name = self.name()
        index = self.layer_indices.setdefault(name, len(self.layer_indices))
        return self.layers is None or any(
            index == layer if isinstance(layer, int) else fnmatchcase(name, layer) for layer in self.layers
        )

    def module(self) -> nn.Module:
        """The module that computes attention: the innermost one, or the one around an `nn.Softmax`."""
        innermost = self.running[-2:]
        return innermost[0] if isinstance(innermost[-1], nn.Softmax) else innermost[-1]

    def name(self) -> str:
        """The name of that module."""
        return self.names[self.module()]

    def add(
        self,
        weights: Tensor,
        scores: Tensor,
        *,
        causal: bool | None,
        cross: bool | None = None,
        kind: Kind | None = None,
    ) -> None:
        """weights, scores (B, H, Q, K). `causal`, `cross` and `kind` are None if they must be inferred."""
        if in_backward():
            return  # activation checkpointing repeats the forward pass
        if causal is None:
            causal = _is_causal(weights) or getattr(self.module(), "is_causal", False) is True
        attention_map = AttentionMap(
            name=self.name(),
            kind=kind or self._infer_kind(cross, causal),
            weights=self._select(weights),
            scores=self._select(scores) if self.scores else None,
            heads=() if self.average_heads else self.heads,
            call_index=self.call_index,
            cache_reorders=self.cache_reorders,
        )
        self.record.maps.append(attention_map)
        if kind is None:
            self.inferred_kinds.add(attention_map)

    def _select(self, x: Tensor) -> Tensor:
        """The requested heads: x (B, H, Q, K) -> (B, H', Q, K)"""
        x = x.detach()
        if self.heads is not None:
            last = max(self.heads)
            check(last < x.shape[1], f"heads must be below {x.shape[1]}, the number of heads, got {last}")
            x = x[:, list(self.heads)]
        if self.average_heads:
            x = x.mean(1, keepdim=True)
        return x.cpu() if self.cpu else x

    def _infer_kind(self, cross: bool | None, causal: bool) -> Kind:
        name = self.name().lower()
        if any(word in name for word in ("cross", "encoder_attn", "encdec")) if cross is None else cross:
            return "cross"
        in_decoder = "decoder" in name or any("Decoder" in type(module).__name__ for module in self.running)
        return "decoder" if causal or in_decoder else "encoder"

    def finish_kinds(self) -> None:
        """Correct inferred kinds by all calls of a layer; a single token has no later tokens that a mask could hide.

        A layer whose keys grow by the new tokens of each call is a decoder's with a cache. In such a model, a layer
        that attends to equally many keys at every step is cross-attention.
        """
        sizes: dict[str, list[tuple[int, int]]] = {}
        for attention_map in self.record:
            queries, keys = attention_map.weights.shape[2:]
            sizes.setdefault(attention_map.name, []).append((queries, keys))
        growing = {name for name, calls in sizes.items() if any(_grows(*pair) for pair in pairwise(calls))}
        causal = {attention_map.name for attention_map in self.record if attention_map.kind == "decoder"}
        for i, attention_map in enumerate(self.record):
            if attention_map not in self.inferred_kinds:
                continue
            name, queries = attention_map.name, attention_map.weights.shape[2]
            if name in growing or (queries == 1 and attention_map.kind == "encoder" and name in causal):
                self.record.maps[i] = replace(attention_map, kind="decoder")
            elif growing and _has_constant_keys(sizes[name]):
                self.record.maps[i] = replace(attention_map, kind="cross")

    def check_not_empty(self) -> None:
        """A recording without maps is an error."""
        name, is_empty = self.record.model, not self.record.maps
        rule = f"record_attention must see {name} called inside the with block and in its thread"
        check(self.call_index >= 0, f"{rule}, got no call")
        names = ", ".join(self.layer_indices)
        check(not (is_empty and names), f"layers must match one of {names}, got {list(self.layers or ())}")
        supported = (
            "Sightline's attention, nn.MultiheadAttention, scaled_dot_product_attention and a softmax in a module "
            'with attention in its class name; load a Hugging Face model with attn_implementation="sdpa" or "eager"'
        )
        rule = f"record_attention must be given a model with supported attention, got {name} without any"
        check(not is_empty, f"{rule}; supported are {supported}")


class _Paused(threading.local):
    """A context in which recordings of this thread ignore attention: that of their own computations."""

    depth = 0

    @property
    def is_active(self) -> bool:
        return self.depth > 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


paused = _Paused()


def _is_causal(weights: Tensor) -> bool:
    """Whether no query has weight on later keys: weights (B, H, Q, K)"""
    queries, keys = weights.shape[-2:]
    return 1 < queries <= keys and not weights.triu(keys - queries + 1).any()


def _grows(earlier: tuple[int, int], later: tuple[int, int]) -> bool:
    """Whether a call of self-attention (queries, keys) is followed by one on its keys and new tokens."""
    return earlier[0] == earlier[1] and later[1] == earlier[1] + later[0]


def _has_constant_keys(calls: list[tuple[int, int]]) -> bool:
    """Whether single queries attend to equally many keys, more than one, at every call (queries, keys)."""
    num_keys = {keys for _, keys in calls}
    return len(num_keys) == 1 and num_keys != {1} and {queries for queries, _ in calls[1:]} == {1}


def _as_tuple(value: Any, types: tuple[type, ...], name: str) -> tuple[Any, ...] | None:
    if value is None:
        return None
    values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, types) or (isinstance(v, int) and v < 0)]
    rule = "names or indices of at least 0" if str in types else "indices of at least 0"
    check(values and not wrong, f"{name} must be {rule}, got {value!r}")
    return values
