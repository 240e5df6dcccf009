"""The attention maps of one model in one thread, as they are reported.

Shapes: B batch, H heads, Q queries, K keys.
"""

import threading
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import check
from .attention_map import AttentionMap
from .calls import Call, is_attention_module, num_heads
from .edits import Edit, GradientEdit, edited_weights
from .functional import Kind
from .kinds import correct_kinds, infer_kind, is_causal
from .layout import find_image_tokens, find_layout
from .normalizers import in_backward
from .record import Record

Layers = str | int | Iterable[str | int] | None
Heads = int | Iterable[int] | None
Modules = str | nn.Module | Iterable[str | nn.Module] | None
UNKNOWN_FORM = "of an unknown form; if it is a softmax by hand, pass modules="


class Recorder:
    """Tracks the running modules of one model in one thread, and keeps their attention maps."""

    keeps_maps = True
    """Whether maps are kept, with the grid of patches and the reorders of a key-value cache."""

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Layers,
        heads: Heads,
        modules: Modules,
        average_heads: bool,
        scores: bool,
        cpu: bool,
        gradients: bool = False,
    ) -> None:
        self.record = Record(type(model).__name__)
        self.model, self.average_heads, self.scores, self.cpu = model, average_heads, scores, cpu
        self.layers = as_tuple(layers, (str, int), "layers must be names or indices of at least 0")
        self.heads = as_tuple(heads, (int,), "heads must be indices of at least 0")
        self.names = {
            module: name.replace("_orig_mod.", "").replace("_orig_mod", "") or type(module).__name__
            for name, module in model.named_modules()
        }
        self.named_modules = self._find_modules(
            as_tuple(modules, (str, nn.Module), "modules must be modules or names") or ()
        )
        """Modules that the user says compute attention."""
        self.gradients = gradients
        self.edit: Edit | None = None
        """How the output of the attention just added is changed."""
        rule = "gradients=True must be used with all heads"
        check(not gradients or not (average_heads or self.heads), f"{rule}, got heads or average_heads")
        self.thread = threading.get_ident()
        self.running: list[Call] = []
        self.attending: Call | None = None
        """The call in which `attend` computes weights that it will report."""
        self.layer_indices: dict[str, int] = {}
        """Index of every attention layer in the order of their first call, recorded or not."""
        self.call_index = -1
        """Number of earlier calls of the model, or of a part of it outside such a call."""
        self.cache_reorders = 0
        self.inferred_kinds: set[AttentionMap] = set()
        """Maps whose kind was inferred."""
        self.causal_layers: set[str] = set()

    def _find_modules(self, modules: tuple[str | nn.Module, ...]) -> set[nn.Module]:
        found = set()
        for wanted in modules:
            if isinstance(wanted, str):
                got, matches = repr(wanted), {m for m, name in self.names.items() if fnmatchcase(name, wanted)}
            else:
                got, matches = f"another {type(wanted).__name__}", {wanted} & self.names.keys()
            check(matches, f"modules must be modules of {self.record.model} or patterns of their names, got {got}")
            found |= matches
        return found

    def in_this_thread(self) -> bool:
        """Whether the calling thread is the one that records."""
        return threading.get_ident() == self.thread

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module starts its forward pass."""
        if paused.is_active:
            return
        call = Call(module, args, kwargs)
        if not self.running:
            is_enabled = torch.is_grad_enabled() or not self.gradients
            rule = "gradients=True must be used with gradients enabled"
            check(is_enabled, f"{rule}, got torch.no_grad(); remove it, and in place of generate() call the model once")
            self.call_index += not in_backward()
            self.record.image_tokens = self.record.image_tokens or find_image_tokens(call)
        self.running.append(call)

    def leave(self, module: nn.Module) -> Call | None:
        """A module ends its forward pass, also by an exception. Returns its call."""
        if paused.is_active or not self.running or self.running[-1].module is not module:
            return None
        call = self.running.pop()
        self.attending = None if self.attending is call else self.attending
        if call.has_own_attention:
            call.missed = []  # they are parts of it, such as projections
        elif not (call.has_attention or call.missed or in_backward()) and self.is_attention_module(module):
            call.missed = [self.names[module]]
        if self.running:
            self.running[-1].has_attention |= call.has_attention
            self.running[-1].missed += call.missed
        else:
            self.record.missed |= {n: UNKNOWN_FORM for n in call.missed if n not in self.record.missed}
        return call

    def is_interested(self) -> bool:
        """Called by `attend`, which reports its weights if True."""
        should_record = self.should_record()
        if self.in_this_thread():
            self.attending = self.running[-1] if should_record else None
        return should_record

    def on_attention(self, weights: Tensor, scores: Tensor, *, kind: Kind | None, causal: bool) -> Tensor:
        """Called by `attend`: weights, scores (B, H, Q, K) -> the weights to use"""
        self.attending = None
        self.add(weights, scores, kind=kind, causal=causal)
        edit = self.take_edit()
        return weights if edit is None else edit.change(weights)

    def take_edit(self) -> Edit | None:
        """The edit of the attention just added, once."""
        edit, self.edit = self.edit, None
        return edit

    def should_record(self, call: Call | None = None) -> bool:
        """Whether to record the attention of this call (default: the innermost one)."""
        if not self.in_this_thread() or not self.running or paused.is_active:
            return False
        call = call or self.running[-1]
        for part in self.running[self.running.index(call) :]:
            part.has_attention = part.has_own_attention = True
        name = self.names[call.module]
        index = self.layer_indices.setdefault(name, len(self.layer_indices))
        return self.layers is None or any(
            index == layer if isinstance(layer, int) else fnmatchcase(name, layer) for layer in self.layers
        )

    def softmax_call(self, weights: Tensor) -> Call | None:
        """The call whose attention a softmax belongs to; None if it is not attention: weights (..., Q, K)

        It is the innermost one of a module with attention in its class name, of one that states that many heads, or of
        one that the user names. Modules without parameters inside it, such as a softmax of its own class, are part of
        it.
        """
        if self.attending or paused.is_active or not self.in_this_thread():
            return None
        is_part, heads = True, weights.shape[1] if weights.dim() == 4 else 0
        for call in reversed(self.running):
            is_attention = is_attention_module(call.module) or num_heads(call.module) == heads
            if call.module in self.named_modules or (is_part and is_attention):
                return call
            is_part = is_part and not any(True for _ in call.module.parameters())
        return None

    def miss(self, reason: str, call: Call | None = None) -> None:
        """Attention of this call (default: the innermost one) cannot be recorded."""
        if self.running:
            call = call or self.running[-1]
            call.has_attention = call.has_own_attention = True
            self.record.missed[self.names[call.module]] = reason

    def suspect(self, weights: Tensor) -> None:
        """Say that a softmax (..., Q, K) over the tokens of a module without attention in its name may be attention."""
        if not self.running or self.attending or paused.is_active or not self.in_this_thread():
            return
        call, keys = self.running[-1], weights.shape[-1]
        if keys > 1 and any(x.dim() == 3 and x.shape[1] == keys for x in call.sequences().values()):
            name = self.names[call.module]
            reason = f"a softmax over {tuple(weights.shape)} may be attention; pass modules="
            self.record.missed.setdefault(name, reason)

    def is_attention_module(self, module: nn.Module) -> bool:
        """Whether the user or the class name says that this module computes attention."""
        return module in self.named_modules or is_attention_module(module)

    def add(
        self,
        weights: Tensor,
        scores: Tensor,
        *,
        causal: bool | None,
        cross: bool | None = None,
        kind: Kind | None = None,
        call: Call | None = None,
        note: str = "",
    ) -> None:
        """weights, scores (B, H, Q, K). `causal`, `cross` and `kind` are None if they must be inferred.

        `call` is the one that computes them (default: the innermost one). `note` says what else a reader must know.
        """
        if in_backward():
            return  # activation checkpointing repeats the forward pass
        call = call or self.running[-1]
        name, is_inferred = self.names[call.module], kind is None
        if causal is None:
            causal = is_causal(weights) or getattr(call.module, "is_causal", False) is True
        if causal:
            self.causal_layers.add(name)
        calls = self.running[: self.running.index(call) + 1]
        over, windows = find_layout(calls, weights)
        if kind is None:
            kind = infer_kind(name, calls, weights, causal=causal, cross=cross, over=over)
        attention_map = AttentionMap(
            name=name,
            kind=kind,
            weights=self._select(edited_weights(call.module, weights)),
            scores=self._select(scores) if self.scores else None,
            heads=() if self.average_heads else self.heads,
            call_index=self.call_index,
            cache_reorders=self.cache_reorders,
            note=note,
            over=over,
            windows=windows,
            perturbation=self._perturbation(weights),
        )
        self.record.maps.append(attention_map)
        if attention_map.perturbation is not None:
            self.edit = GradientEdit(attention_map.weights, attention_map.perturbation)
        if is_inferred:
            self.inferred_kinds.add(attention_map)

    def _perturbation(self, weights: Tensor) -> Tensor | None:
        """Zeros like the weights (B, H, Q, K), in the memory of one number."""
        return weights.new_zeros(()).expand(weights.shape).requires_grad_() if self.gradients else None

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

    def finish_kinds(self) -> None:
        """Correct inferred kinds by all calls of the model."""
        self.record.maps[:] = correct_kinds(self.record.maps, self.inferred_kinds, self.causal_layers)

    def check_not_empty(self) -> None:
        """A recording without maps is an error."""
        name, is_empty = self.record.model, not self.record.maps
        rule = f"record_attention must see {name} called inside the with block and in its thread"
        check(self.call_index >= 0, f"{rule}, got no call")
        names = ", ".join(self.layer_indices)
        is_unmatched = is_empty and self.layers is not None and names
        check(not is_unmatched, f"layers must match one of {names}, got {list(self.layers or ())}")
        supported = (
            "Sightline's attention, nn.MultiheadAttention, scaled_dot_product_attention and a softmax in a module "
            'with attention in its class name; load a Hugging Face model with attn_implementation="sdpa" or "eager"; '
            "for other modules pass their names as modules="
        )
        rule = f"record_attention must be given a model with supported attention, got {name} without any"
        missed = f", {self.record.missed_text()}" if self.record.missed else ""
        check(not is_empty, f"{rule}{missed}; supported are {supported}")


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


def as_tuple(value: Any, types: tuple[type, ...], rule: str) -> tuple[Any, ...] | None:
    """One value or several as a tuple, with integers of at least 0; None remains. `rule` starts the error message."""
    if value is None:
        return None
    is_list = isinstance(value, Iterable) and not isinstance(value, (str, nn.Module))
    values = tuple(value) if is_list else (value,)
    wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, types) or (isinstance(v, int) and v < 0)]
    check(values and not wrong, f"{rule}, got {value!r:.200}")
    return values
