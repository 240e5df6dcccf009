"""Torch's own attention, seen from outside: which calls are attention, and what their weights are."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .normalizers import Softmax

SOFTMAXES = (F.softmax, torch.softmax, Tensor.softmax)
SELECTS = (torch.index_select, Tensor.index_select)


class Recorder(Protocol):
    """Whoever keeps what is seen here."""

    running: list[nn.Module]
    inside_attend: bool
    shuffles: int

    def module(self) -> nn.Module:
        """The one that attends now."""

    def wanted(self) -> bool:
        """Whether to keep what it attends to."""

    def keep(self, weights: Tensor, scores: Tensor, *, causal: bool | None, cross: bool | None = None) -> None:
        """weights, scores (B, H, Q, K)"""


class TorchCalls(TorchFunctionMode):
    """Sees torch's own attention functions being called, and computes the weights beside them."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention and self.recorder.wanted():
            self._see_sdpa(*args, **kwargs)
        elif func is F.multi_head_attention_forward and self.recorder.wanted():
            self._see_multihead(args, kwargs)
        elif func in SOFTMAXES:
            scores = args[0] if args else kwargs["input"]
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            if self._is_attention(scores, dim) and self.recorder.wanted():
                self.recorder.keep(output.detach().clone(), scores, causal=None)
        elif func in SELECTS and _shuffles(*args, **kwargs):
            self.recorder.shuffles += 1
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
        """query (..., H, Q, D), key (..., H, K, D); without heads (B, Q, D), (B, K, D)"""
        with quiet:
            exact = torch.promote_types(query.dtype, torch.float32)
            if enable_gqa:
                key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
            scores = (query.to(exact) * scale) @ key.to(exact).mT
            allowed = None
            if is_causal:
                allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            elif attn_mask is not None and attn_mask.dtype == torch.bool:
                allowed = attn_mask
            elif attn_mask is not None:
                scores = scores + attn_mask
                allowed = attn_mask > float("-inf")
            weights = Softmax()(scores, allowed)
            if allowed is not None:
                scores = scores.masked_fill(~allowed, float("-inf"))
        weights, scores = _with_heads(weights).to(query.dtype), _with_heads(scores)
        self.recorder.keep(weights, scores, causal=True if is_causal else None)

    @torch.no_grad()
    def _see_multihead(self, args: Any, kwargs: Any) -> None:
        """`nn.MultiheadAttention`, asked once more, for its weights and without dropout."""
        query, key = args[0], args[1]
        asked = {"training": False, "need_weights": True, "average_attn_weights": False}
        with quiet, torch._C.DisableTorchFunction(), _SoftmaxInput() as seen:
            weights: Any = F.multi_head_attention_forward(*args, **{**kwargs, **asked})[1]
        weights = weights.nan_to_num(0.0)  # NaN is torch's answer for a row that may look at nothing
        weights = weights if weights.dim() == 4 else weights.unsqueeze(0)
        same = query.shape == key.shape and (query.data_ptr() == key.data_ptr() or torch.equal(query, key))
        self.recorder.keep(weights, seen.scores.view_as(weights), cross=not same, causal=None)

    def _is_attention(self, scores: Tensor, dim: int | None) -> bool:
        """Whether a softmax over the last of four dimensions is that of a module that calls itself attention."""
        if not self.recorder.running or self.recorder.inside_attend or scores.dim() != 4 or dim not in (-1, 3):
            return False
        module = self.recorder.module()
        heads = getattr(module, "num_heads", getattr(module, "num_attention_heads", None))
        called = type(module).__name__.lower()
        return ("attention" in called or "attn" in called) and heads in (None, scores.shape[1])


class _SoftmaxInput(TorchDispatchMode):
    """Catches what goes into a softmax, however deep inside torch it is taken."""

    scores: Tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._softmax.default, torch.ops.aten.softmax.int):
            self.scores = args[0]
        return func(*args, **(kwargs or {}))


class _Quiet(threading.local):
    """While it is on, no recorder of this thread listens: a recording is computing something of its own."""

    depth = 0

    @property
    def on(self) -> bool:
        return self.depth > 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


quiet = _Quiet()


@contextmanager
def encoders_as_ever(model: nn.Module) -> Iterator[None]:
    """Given padding, torch's encoder in eval mode blanks the padded places, which it does not while a mode listens.

    So while it is recorded it answers twice: once for the record and once, with nobody listening, for the caller.
    """

    def answer_twice(encoder: nn.TransformerEncoder) -> Callable[..., Any]:
        forward = encoder.forward

        def answer(src: Tensor, mask: Any = None, src_key_padding_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
            output = forward(src, mask, src_key_padding_mask, *args, **kwargs)
            if encoder.training or src_key_padding_mask is None:
                return output
            with quiet, torch._C.DisableTorchFunction():
                return forward(src, mask, src_key_padding_mask, *args, **kwargs)

        return answer

    encoders = [part for part in model.modules() if type(part) is nn.TransformerEncoder and "forward" not in vars(part)]
    for encoder in encoders:
        encoder.forward = answer_twice(encoder)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for encoder in encoders:
            del encoder.forward


def _shuffles(input: Tensor, dim: int, index: Tensor, *, out: Tensor | None = None) -> bool:
    """Whether keys or values (B, H, K, D) change places: a beam goes on from where another was."""
    same = input.dim() == 4 and dim in (0, -4) and index.numel() == len(input)
    return same and not torch.equal(index, torch.arange(len(input), dtype=index.dtype, device=index.device))


def _with_heads(x: Tensor) -> Tensor:
    """(..., H, Q, K) -> (B, H, Q, K); without heads (B, Q, K) -> (B, 1, Q, K)"""
    return x.flatten(0, -4) if x.dim() > 3 else x.unsqueeze(-3) if x.dim() == 3 else x[None, None]
