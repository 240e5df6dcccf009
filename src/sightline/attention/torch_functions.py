"""Interception of torch's attention functions, and computation of the weights they do not return.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .normalizers import Softmax
from .recorder import Recorder, paused

SOFTMAX_FUNCTIONS = (F.softmax, torch.softmax, Tensor.softmax)
INDEX_SELECT_FUNCTIONS = (torch.index_select, Tensor.index_select)


class TorchAttentionMode(TorchFunctionMode):
    """Passes every torch call of this thread through, and reports those that are attention to a recorder."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention and self.recorder.should_record():
            self._record_sdpa(*args, **kwargs)
        elif func is F.multi_head_attention_forward and self.recorder.should_record():
            self._record_multihead(args, kwargs)
        elif func in SOFTMAX_FUNCTIONS:
            scores = args[0] if args else kwargs["input"]
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            if self._is_attention(scores, dim) and self.recorder.should_record():
                self.recorder.add(output.detach().clone(), scores, causal=None)
        elif func in INDEX_SELECT_FUNCTIONS and _is_cache_reorder(*args, **kwargs):
            self.recorder.cache_reorders += 1
        return output

    @torch.no_grad()
    def _record_sdpa(
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
        """query (..., H, Q, D), key (..., H, K, D), or without heads (B, Q, D), (B, K, D)"""
        with paused:
            dtype = torch.promote_types(query.dtype, torch.float32)
            if enable_gqa:
                key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
            scores = (query.to(dtype) * scale) @ key.to(dtype).mT
            allowed = attn_mask
            if is_causal:
                allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            elif attn_mask is not None and attn_mask.dtype != torch.bool:
                scores, allowed = scores + attn_mask, attn_mask > float("-inf")
            weights = Softmax()(scores, allowed)
            if allowed is not None:
                scores = scores.masked_fill(~allowed, float("-inf"))
        weights, scores = _as_batch(weights).to(query.dtype), _as_batch(scores)
        self.recorder.add(weights, scores, causal=True if is_causal else None)

    @torch.no_grad()
    def _record_multihead(self, args: Any, kwargs: Any) -> None:
        """Call `F.multi_head_attention_forward` again, for its weights and without dropout."""
        query, key = args[0], args[1]
        options = {"training": False, "need_weights": True, "average_attn_weights": False}
        with paused, torch._C.DisableTorchFunction(), _SoftmaxInput() as softmax_input:
            weights: Any = F.multi_head_attention_forward(*args, **{**kwargs, **options})[1]
        weights = weights.nan_to_num(0.0)  # torch returns NaN for a fully masked row
        weights = weights if weights.dim() == 4 else weights.unsqueeze(0)
        is_self = query.shape == key.shape and (query.data_ptr() == key.data_ptr() or torch.equal(query, key))
        self.recorder.add(weights, softmax_input.scores.view_as(weights), cross=not is_self, causal=None)

    def _is_attention(self, scores: Tensor, dim: int | None) -> bool:
        """Whether this softmax is over the last of four dimensions in a module with attention in its class name."""
        if not self.recorder.running or self.recorder.inside_attend or scores.dim() != 4 or dim not in (-1, 3):
            return False
        module = self.recorder.module()
        heads = getattr(module, "num_heads", getattr(module, "num_attention_heads", None))
        class_name = type(module).__name__.lower()
        return ("attention" in class_name or "attn" in class_name) and heads in (None, scores.shape[1])


def rerun_padded_encoder(module: nn.Module, args: Any, kwargs: Any) -> Tensor | None:
    """The output of a padded `nn.TransformerEncoder` in eval mode as without a recording, or None for other calls.

    Torch zeros the padded positions on its fast path, which it does not take while a function mode is active.
    """
    if type(module) is not nn.TransformerEncoder or module.training or paused.is_active:
        return None
    if (args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")) is None:
        return None
    with paused, torch._C.DisableTorchFunction():
        output: Tensor = module.forward(*args, **kwargs)
    return output


class _SoftmaxInput(TorchDispatchMode):
    """Stores the input of the last softmax, also inside torch's composite functions."""

    scores: Tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._softmax.default, torch.ops.aten.softmax.int):
            self.scores = args[0]
        return func(*args, **(kwargs or {}))


def _is_cache_reorder(input: Tensor, dim: int, index: Tensor, *, out: Tensor | None = None) -> bool:
    """Whether this selection permutes the rows of keys or values (B, H, K, D), as beam search does."""
    keeps_size = input.dim() == 4 and dim in (0, -4) and index.numel() == len(input)
    return keeps_size and not torch.equal(index, torch.arange(len(input), dtype=index.dtype, device=index.device))


def _as_batch(x: Tensor) -> Tensor:
    """(..., H, Q, K) -> (B, H, Q, K); without heads (B, Q, K) -> (B, 1, Q, K)"""
    return x.flatten(0, -4) if x.dim() > 3 else x.unsqueeze(-3) if x.dim() == 3 else x[None, None]
