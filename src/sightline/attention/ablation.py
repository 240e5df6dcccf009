"""Ablation: run a model without some attention heads or without single weights, and measure what that changes.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, SightlineWarning, check
from .calls import Call
from .edits import add_editor
from .recorder import Modules, Recorder, as_tuple
from .recording import intercept

Layer = str | int
Heads = int | Iterable[int] | None
Edge = tuple[int | None, int | None]
Change = Callable[[str, Tensor], Tensor]
"""(name of the layer, weights (B, H, Q, K)) -> weights (B, H, Q, K)"""


@contextmanager
def ablate_heads(model: nn.Module, heads: Mapping[Layer, Heads], *, modules: Modules = None) -> Iterator[None]:
    """Run `model` without some attention heads: their output is 0 inside the `with` block and in this thread.

    `heads` maps layers to the indices of their heads, or to None for all. A layer is a name pattern (`encoder.*`) or an
    index in the order of the first call, as in a record. `modules` are those of `record_attention`. Nothing remains
    attached to the model afterwards. A recording at the same time has weights of 0 for these heads.
    """
    changes = {layer: _remove_heads(_check_heads(value)) for layer, value in _check_layers(heads).items()}
    with _ablate(model, changes, modules):
        yield


@contextmanager
def ablate_edges(
    model: nn.Module, edges: Mapping[Layer, Iterable[Edge]], *, heads: Heads = None, modules: Modules = None
) -> Iterator[None]:
    """Run `model` without single attention weights: query q does not attend to key k in the `with` block.

    `edges` maps layers, as in `ablate_heads`, to pairs (q, k) of positions in one call. Negative positions count from
    the end, and None stands for all. The other weights of the query are scaled to the same sum, as under a mask; a
    query without any key left gets zeros. `heads` restricts this to some heads.
    """
    indices = _check_heads(heads)
    changes = {layer: _remove_edges(_check_edges(value), indices) for layer, value in _check_layers(edges).items()}
    with _ablate(model, changes, modules):
        yield


@contextmanager
def _ablate(model: nn.Module, changes: Mapping[Layer, Change], modules: Modules) -> Iterator[None]:
    tracker = _AblationTracker(model, changes, modules)
    remove = add_editor(tracker)
    try:
        with intercept(tracker, edits=True):
            yield
    finally:
        remove()
    unused = [layer for layer in changes if layer not in tracker.used]
    names = ", ".join(tracker.layer_indices) or f"no attention of {type(model).__name__} that ran"
    check(not unused, f"layers must match one of {names}, got {unused}")
    missed = tracker.record.missed
    tracker.record.missed = {name: missed[name] for name in missed if _is_named(name, changes)}
    if tracker.record.missed:
        message = f"the ablation of {type(model).__name__} is partial; {tracker.record.missed_text()}"
        warnings.warn(message, SightlineWarning, stacklevel=5)


def _is_named(name: str, layers: Iterable[Layer]) -> bool:
    """Whether one of the layers is a pattern that matches this name."""
    return any(isinstance(layer, str) and fnmatchcase(name, layer) for layer in layers)


class _AblationTracker(Recorder):
    """Tracks the running modules of a model, and changes the weights of some layers."""

    keeps_maps = False

    def __init__(self, model: nn.Module, changes: Mapping[Layer, Change], modules: Modules):
        is_module = isinstance(model, nn.Module)
        check(is_module, f"model must be a torch.nn.Module, got {type(model).__name__}")
        options = {"average_heads": False, "scores": False, "cpu": False}
        super().__init__(model, layers=None, heads=None, modules=modules, **options)
        self.changes = changes
        self.used: set[Layer] = set()

    def should_record(self, call: Call | None = None) -> bool:
        """Whether this call (default: the innermost one) is changed."""
        if not super().should_record(call):
            return False
        return bool(self._matches((call or self.running[-1]).module))

    def add(self, weights: Tensor, scores: Tensor, *, call: Call | None = None, **options: Any) -> None:
        """weights (B, H, Q, K)"""
        self.edit = _AblationEdit(self, (call or self.running[-1]).module, weights)

    def edit_of(self, module: nn.Module, weights: Tensor) -> Tensor:
        """weights (B, H, Q, K) -> (B, H, Q, K), unchanged for other modules"""
        for layer in self._matches(module):
            self.used.add(layer)
            weights = self.changes[layer](self.names[module], weights)
        return weights

    def _matches(self, module: nn.Module) -> list[Layer]:
        name = self.names.get(module)
        if name is None:
            return []
        index = self.layer_indices.setdefault(name, len(self.layer_indices))
        return [
            layer for layer in self.changes if (layer == index if isinstance(layer, int) else fnmatchcase(name, layer))
        ]


class _AblationEdit:
    """The edit of one call."""

    replaces = True

    def __init__(self, tracker: _AblationTracker, module: nn.Module, weights: Tensor):
        self.tracker, self.module, self.weights = tracker, module, weights

    def change(self, weights: Tensor) -> Tensor:
        return self.tracker.edit_of(self.module, weights)

    def combine(self, output: Tensor, value: Tensor, dropout: float) -> Tensor:
        weights = F.dropout(self.change(self.weights), dropout).to(value.dtype)
        output = weights @ value
        if output.requires_grad:
            output.register_hook(_refuse_gradient)
        return output


def _refuse_gradient(gradient: Tensor) -> None:
    """The weights of torch's and Hugging Face's attention are computed without gradients, so these would be wrong."""
    rule = "gradients must not pass through ablated attention of torch or Hugging Face"
    raise SightlineError(f"{rule}, got a backward pass; run ablations under torch.no_grad()")


def _remove_heads(heads: tuple[int, ...] | None) -> Change:
    def change(name: str, weights: Tensor) -> Tensor:
        return weights.masked_fill(_head_mask(name, weights, heads), 0.0)

    return change


def _remove_edges(edges: tuple[Edge, ...], heads: tuple[int, ...] | None) -> Change:
    def change(name: str, weights: Tensor) -> Tensor:
        queries, keys = weights.shape[2:]
        is_removed = torch.zeros(queries, keys, dtype=torch.bool, device=weights.device)
        for query, key in edges:
            is_valid = all(i is None or -size <= i < size for i, size in ((query, queries), (key, keys)))
            rule = f"edges must be positions of the {queries} queries and {keys} keys of {name}"
            check(is_valid, f"{rule}, got {(query, key)}")
            is_removed[slice(None) if query is None else query, slice(None) if key is None else key] = True
        is_removed = is_removed & _head_mask(name, weights, heads)
        kept = weights.masked_fill(is_removed, 0.0)
        if (weights < 0).any():
            return kept  # not a distribution
        left = kept.sum(-1, keepdim=True)
        scale = weights.sum(-1, keepdim=True) / torch.where(left == 0, 1.0, left)
        return torch.where(is_removed.any(-1, keepdim=True), kept * scale, kept)

    return change


def _head_mask(name: str, weights: Tensor, heads: tuple[int, ...] | None) -> Tensor:
    """True for these heads, or for all if None: (H, 1, 1)"""
    count = weights.shape[1]
    is_chosen = torch.full((count, 1, 1), heads is None, dtype=torch.bool, device=weights.device)
    wrong = [head for head in heads or () if head >= count]
    check(not wrong, f"heads must be below {count}, the number of heads of {name}, got {wrong}")
    is_chosen[list(heads or ())] = True
    return is_chosen


def _check_layers(layers: Any) -> Mapping[Layer, Any]:
    is_valid = isinstance(layers, Mapping) and layers
    rule = "heads and edges must be a dict with names or indices of layers as its keys"
    check(is_valid, f"{rule}, got {layers!r:.200}")
    as_tuple(list(layers), (str, int), rule)
    return {**layers}


def _check_heads(heads: Any) -> tuple[int, ...] | None:
    return as_tuple(heads, (int,), "heads must be indices of at least 0, or None for all")


def _check_edges(edges: Any) -> tuple[Edge, ...]:
    try:
        pairs = [tuple(edge) for edge in edges]
    except TypeError as error:
        raise SightlineError(f"edges must be pairs (query, key), got {edges!r:.200}") from error
    is_valid = pairs and all(len(pair) == 2 and all(i is None or type(i) is int for i in pair) for pair in pairs)
    check(is_valid, f"edges must be pairs (query, key) of integers or None, got {edges!r:.200}")
    return tuple((query, key) for query, key in pairs)
