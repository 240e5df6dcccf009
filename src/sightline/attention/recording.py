"""Record the attention of any model while it runs, and leave no trace.

Three kinds of attention are seen, without touching the model:
- ours, because `attend` asks `WATCHERS` before it takes the fused path;
- `torch.nn.MultiheadAttention` and any call of `scaled_dot_product_attention` (Hugging Face's, yours), because a torch
  function mode sees the calls and works out the weights beside them, so the outputs stay torch's own;
- Hugging Face's eager attention, because it hands its weights out.
Hooks that are registered once for all modules tell which module is running; the model itself is never changed.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from .attend import WATCHERS, Kind
from .normalise import Softmax
from .record import Record, Seen

Layers = str | int | Iterable[str | int] | None


@contextmanager
def record_attention(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: int | Iterable[int] | None = None,
    average_heads: bool = False,
    scores: bool = False,
    cpu: bool = False,
) -> Iterator[Record]:
    """Capture the attention weights of everything `model` computes inside the `with` block.

    layers: which attentions, by name (`encoder.*` and the like) or by place in the order they run; heads: which heads;
    average_heads: keep the mean over heads; scores: keep the scores before the normaliser too; cpu: move what is kept
    to main memory. Weights never show dropout, and the model's outputs stay what they were.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"record_attention must be given a torch.nn.Module, got {type(model).__name__}")
    recorder = _Recorder(
        model,
        layers=_as_tuple(layers, (str, int), "layers"),
        heads=_as_tuple(heads, (int,), "heads"),
        average_heads=average_heads,
        scores=scores,
        cpu=cpu,
    )
    handles = [
        register_module_forward_pre_hook(recorder.enter),
        register_module_forward_hook(recorder.leave, with_kwargs=True),
    ]
    WATCHERS.append(recorder)
    try:
        with _TorchCalls(recorder):
            yield recorder.record
    finally:
        WATCHERS.remove(recorder)
        for handle in handles:
            handle.remove()
    recorder.check_something_was_seen()


class _Recorder:
    """Knows which module runs and keeps what it attends to."""

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: tuple[str | int, ...] | None,
        heads: tuple[int, ...] | None,
        average_heads: bool,
        scores: bool,
        cpu: bool,
    ):
        self.record = Record(type(model).__name__)
        self.model = model
        self.layers, self.heads, self.average_heads, self.scores, self.cpu = layers, heads, average_heads, scores, cpu
        self.names = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self.thread = threading.get_ident()
        self.running: list[nn.Module] = []
        self.muted = False
        self.order: dict[str, int] = {}
        """Every attention that ran, wanted or not, and its place."""
        self.handed_out: Tensor | None = None
        self.model_ran = False

    def enter(self, module: nn.Module, args: Any) -> None:
        if module not in self.names or threading.get_ident() != self.thread:
            return
        if module is self.model:
            self.running.clear()  # of what an error in an earlier run left unfinished
        self.model_ran = True
        self.running.append(module)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if module not in self.running or threading.get_ident() != self.thread:
            return None
        while self.running[-1] is not module:
            self.running.pop()  # it ended in an error, which the modules around it handled
        self._look_for_eager_weights(module, output)
        self.running.pop()
        if isinstance(module, nn.TransformerEncoder) and not module.training and not self.muted:
            return self._torch_fast_output(module, args, kwargs)
        return None

    def wants(self) -> bool:
        """Whether the attention that is about to run is one to keep."""
        if self.muted or not self.running or threading.get_ident() != self.thread:
            return False
        name = self.names[self.running[-1]]
        place = self.order.setdefault(name, len(self.order))
        return self.layers is None or any(
            place == layer if isinstance(layer, int) else fnmatchcase(name, layer) for layer in self.layers
        )

    def see(self, weights: Tensor, scores: Tensor | None, *, kind: Kind | None, causal: bool) -> None:
        """Keep it. weights, scores (B, H, Q, K)"""
        name = self.names[self.running[-1]]
        self.record.seen.append(
            Seen(
                name=name,
                kind=kind or self._kind(name, causal),
                weights=self._kept(weights, average=self.average_heads),
                scores=self._kept(scores) if self.scores and scores is not None else None,
                heads=() if self.average_heads else self.heads,
            )
        )

    def _kept(self, x: Tensor, average: bool = False) -> Tensor:
        x = x.detach()
        if self.heads is not None:
            if max(self.heads) >= x.shape[1]:
                raise ValueError(f"heads must be below {x.shape[1]}, the number of heads, got {max(self.heads)}")
            x = x[:, list(self.heads)]
        if average:
            x = x.mean(1, keepdim=True)
        return x.cpu() if self.cpu else x

    def _kind(self, name: str, causal: bool) -> Kind:
        lowered = name.lower()
        if any(word in lowered for word in ("cross", "encoder_attn", "encdec", "multihead_attn")):
            return "cross"
        in_decoder = "decoder" in lowered or any("Decoder" in type(module).__name__ for module in self.running)
        return "decoder" if causal or in_decoder else "encoder"

    def _look_for_eager_weights(self, module: nn.Module, output: Any) -> None:
        """Hugging Face's eager attention returns (output, weights); with dropout on, those would not be the weights."""
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if module.training or not isinstance(weights, Tensor) or weights.dim() != 4 or weights is self.handed_out:
            return
        if not weights.is_floating_point() or not self.wants() or not _rows_sum_to_one(weights):
            return
        self.handed_out = weights  # the modules around it hand the same tensor on
        self.see(weights, None, kind=None, causal=_says_causal(module))

    def _torch_fast_output(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What torch's encoder answers when nobody looks: with padding, its fast path blanks the padded places."""
        self.muted = True
        try:
            with torch._C.DisableTorchFunction():
                return module.forward(*args, **kwargs)
        finally:
            self.muted = False

    def check_something_was_seen(self) -> None:
        if self.record.seen:
            return
        name = type(self.model).__name__
        if not self.model_ran:
            raise ValueError(f"record_attention must see {name} run inside the with block, got no call of it")
        if self.order:
            raise ValueError(f"layers must match one of {', '.join(self.order)}, got {list(self.layers or ())}")
        raise ValueError(
            f"record_attention must be given a model whose attention can be seen, got {name} without any: it must call "
            "Sightline's attention, torch.nn.MultiheadAttention or scaled_dot_product_attention; load a Hugging Face "
            'model with attn_implementation="sdpa", or "eager" and in eval mode'
        )


class _TorchCalls(TorchFunctionMode):
    """Sees torch's own attention functions being called, and computes the weights beside them."""

    def __init__(self, recorder: _Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention and self.recorder.wants():
            self._see_sdpa(*args, **kwargs)
        elif func is F.multi_head_attention_forward and self.recorder.wants():
            self._see_multihead(args, kwargs)
        return output

    @torch.no_grad()
    def _see_sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """query (..., H, Q, D), key (..., H, K, D); the heads may be missing."""
        queries, keys = query.shape[-2], key.shape[-2]
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        scores = (1 / math.sqrt(query.shape[-1]) if scale is None else scale) * (query @ key.mT)
        allowed = None
        if is_causal:
            allowed = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            allowed = attn_mask
        elif attn_mask is not None:
            scores = scores + attn_mask
            allowed = attn_mask > float("-inf")
        weights = Softmax()(scores, allowed)
        causal = is_causal or _says_causal(self.recorder.running[-1]) or _hides_future(attn_mask, queries, keys)
        self.recorder.see(_four_dims(weights), _four_dims(scores), kind=None, causal=causal)

    @torch.no_grad()
    def _see_multihead(self, args: Any, kwargs: Any) -> None:
        """`nn.MultiheadAttention`, asked once more, for its weights and without dropout."""
        query, key = args[0], args[1]
        asked = {"training": False, "need_weights": True, "average_attn_weights": False}
        weights: Any = F.multi_head_attention_forward(*args, **{**kwargs, **asked})[1]
        weights = weights.nan_to_num(0.0)  # NaN is torch's answer for a row that may look at nothing
        causal = kwargs.get("is_causal", False) or _forbids_future(kwargs.get("attn_mask"))
        self.recorder.see(_four_dims(weights), None, kind="cross" if query is not key else None, causal=causal)


def _four_dims(x: Tensor) -> Tensor:
    """(..., H, Q, K) -> (B, H, Q, K); without heads (B, Q, K) -> (B, 1, Q, K) where the module is batched"""
    return x.flatten(0, -4) if x.dim() > 4 else x[(None,) * (4 - x.dim())]


def _rows_sum_to_one(weights: Tensor) -> bool:
    sums = weights.detach().float().sum(-1)
    return bool((((sums - 1).abs() < 1e-2) | (sums == 0)).all()) and bool((weights >= 0).all())


def _says_causal(module: nn.Module) -> bool:
    return getattr(module, "is_causal", False) is True


def _hides_future(mask: Tensor | None, queries: int, keys: int) -> bool:
    """Whether an SDPA mask (True = may look, or added) hides everything after each query."""
    if mask is None or queries < 2 or mask.shape[-2:] != (queries, keys):
        return False
    future = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(keys - queries + 1)
    hidden = ~mask if mask.dtype == torch.bool else mask < -1e4
    return bool((hidden | ~future).all())


def _forbids_future(mask: Tensor | None) -> bool:
    """The same for a mask of `nn.MultiheadAttention`, where True = may not look."""
    if mask is None:
        return False
    return _hides_future(~mask if mask.dtype == torch.bool else mask, *mask.shape[-2:])


def _as_tuple(value: Any, types: tuple[type, ...], name: str) -> tuple[Any, ...] | None:
    if value is None:
        return None
    values = (value,) if isinstance(value, types) else tuple(value)
    wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, types) or (isinstance(v, int) and v < 0)]
    if wrong or not values:
        rule = "names or places counted from 0" if str in types else "numbers counted from 0"
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    return values
