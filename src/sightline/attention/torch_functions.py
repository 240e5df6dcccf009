"""Interception of torch's attention functions, and computation of the weights they do not return.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import SightlineError
from .calls import Call, num_heads
from .edits import is_editing
from .interception import is_looked_up
from .layout import class_positions, patch_grid
from .recorder import Recorder, paused

SDPA = torch._C._nn.scaled_dot_product_attention
SOFTMAX_FUNCTIONS = (F.softmax, torch.softmax, torch.special.softmax, Tensor.softmax)
NORMALIZING_FUNCTIONS = (
    *(torch.div, torch.true_divide, torch.exp, F.normalize),
    *(Tensor.div, Tensor.div_, Tensor.true_divide, Tensor.__truediv__, Tensor.__itruediv__, Tensor.exp),
)
"""The last operation of a softmax by hand."""
INDEX_SELECT_FUNCTIONS = (torch.index_select, Tensor.index_select)
SUM_TOLERANCE = 1e-3
"""How far the rows of a softmax by hand may be from a sum of 1."""


class TorchAttentionMode(TorchFunctionMode):
    """Passes every torch call of this thread through, and reports those that are attention to a recorder."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder
        self.handlers: dict[Any, Callable[..., None]] = {
            SDPA: self._on_sdpa,
            F.multi_head_attention_forward: self._on_multihead,
            torch.ops.higher_order.flex_attention: self._on_flex,
            **dict.fromkeys(SOFTMAX_FUNCTIONS, self._on_softmax),
            **dict.fromkeys(INDEX_SELECT_FUNCTIONS, self._on_index_select),
            torch.conv2d: self._on_convolution,
        }
        if recorder.named_modules:
            self.handlers |= dict.fromkeys(NORMALIZING_FUNCTIONS, self._on_normalization)

    def __exit__(self, *error: object) -> None:
        """Leave the stack of modes, also from below others."""
        above = list(iter(_pop_mode, self))
        for mode in reversed(above):
            _push_mode(mode)

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output, handler = func(*args, **(kwargs or {})), self.handlers.get(func)
        if handler is None:
            return output
        if self.recorder.running and func is not torch.conv2d and not (func is SDPA and is_looked_up()):
            self.recorder.running[-1].is_intercepted = True
        try:
            with torch.no_grad():
                handler(output, *args, **(kwargs or {}))
        except SightlineError:
            raise
        except Exception as error:  # a recording must not break the model
            self.recorder.miss(f"{type(error).__name__}: {error!s:.200}")
        return output

    def _on_sdpa(self, output: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> None:
        if not self.recorder.should_record():
            return
        with paused:
            weights, scores, is_causal = sdpa_weights(query, key, *args, **kwargs, keep_scores=self.recorder.scores)
        call = self.recorder.running[-1]
        weights = _with_heads(weights if weights.dtype == query.dtype else weights.to(query.dtype), call)
        scores = _with_heads(scores, call) if self.recorder.scores else weights
        self.recorder.add(weights, scores, causal=True if is_causal else None)

    def _on_multihead(self, output: Any, *args: Any, **kwargs: Any) -> None:
        """Call `F.multi_head_attention_forward` again, for its weights and without dropout."""
        if not self.recorder.should_record():
            return
        query, key = args[0], args[1]
        options = {"training": False, "need_weights": True, "average_attn_weights": False}
        with paused, torch._C.DisableTorchFunction(), _SoftmaxInput() as softmax_input:
            weights: Any = F.multi_head_attention_forward(*args, **{**kwargs, **options})[1]
        weights = weights.nan_to_num(0.0)  # torch returns NaN for a fully masked row
        weights = weights if weights.dim() == 4 else weights.unsqueeze(0)
        is_self = query.shape == key.shape and (query.data_ptr() == key.data_ptr() or torch.equal(query, key))
        self.recorder.add(weights, softmax_input.scores.view_as(weights), cross=not is_self, causal=None)

    def _on_flex(self, output: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.recorder.should_record():
            with paused:
                weights, scores = flex_weights(query, key, *args, **kwargs)
            self.recorder.add(weights.to(query.dtype), scores, causal=None)

    def _on_softmax(self, output: Tensor, input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> None:
        """input (B, H, Q, K), (B * H, Q, K), (B, Q, H, K), (B, groups, H, Q, K) or (B, H, groups, Q, K)"""
        if input.dim() >= 3 and dim in (-1, input.dim() - 1):
            self._on_weights(output, input)

    def _on_normalization(self, output: Tensor, *args: Any, **kwargs: Any) -> None:
        """The end of a softmax by hand, if the rows of its output sum to 1."""
        if output.dim() < 3 or not output.is_floating_point() or self.recorder.softmax_call(output) is None:
            return
        sums = output.sum(-1, dtype=torch.promote_types(output.dtype, torch.float32))
        if output.shape[-1] > 1 and (output >= 0).all() and ((sums - 1).abs() < SUM_TOLERANCE).all():
            self._on_weights(output, output.log())

    def _on_weights(self, weights: Tensor, scores: Tensor) -> None:
        call = self.recorder.softmax_call(weights)
        if call is None:
            self.recorder.suspect(weights)
            return
        if _is_between_heads(weights, num_heads(call.module), call):
            return
        split_weights, split_scores = arrange_heads(weights, call), arrange_heads(scores, call)
        if split_weights is None or split_scores is None:
            shape, heads = tuple(weights.shape), num_heads(call.module)
            self.recorder.miss(f"a softmax over {shape} is not (batch, {heads} heads, queries, keys)", call)
        elif self.recorder.should_record(call):
            keys, note = sink_keys(call.module, split_scores)
            split_weights, split_scores = split_weights[..., :keys], split_scores[..., :keys]
            self.recorder.add(split_weights.clone(), split_scores, causal=None, call=call, note=note)

    def _on_convolution(
        self,
        output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Any = None,
        stride: Any = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        record, strides = self.recorder.record, (stride, stride) if isinstance(stride, int) else tuple(stride)
        if self.recorder.running and record.patch_grid is None and strides == tuple(weight.shape[2:]):
            record.patch_grid = patch_grid(weight, output)

    def _on_index_select(self, output: Tensor, *args: Any, **kwargs: Any) -> None:
        self.recorder.cache_reorders += _is_cache_reorder(*args, **kwargs)


def sdpa_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    keep_scores: bool = True,
) -> tuple[Tensor, Tensor, bool]:
    """The weights and scores of `scaled_dot_product_attention`, which takes these arguments; and `is_causal`.

    query (..., Q, D), key (..., K, D) -> weights, scores (..., Q, K). A fully masked row has weights 0. Nested tensors
    are padded. Without `keep_scores`, the weights are computed in the memory of the scores.
    """
    if key.is_nested:
        attn_mask = _is_valid(key)[:, None, None]
        query, key = _padded(query), _padded(key)
    dtype = torch.promote_types(query.dtype, torch.float32)
    if query.dtype != dtype:
        query, key = query.to(dtype), key.to(dtype)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.mT
    is_masked = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        is_masked = ~attn_mask
    elif attn_mask is not None:
        scores, is_masked = scores + attn_mask, attn_mask == -torch.inf
    if is_causal:
        is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        is_masked = is_later if is_masked is None else is_masked | is_later
    if is_masked is not None:
        scores = scores.masked_fill(is_masked, -torch.inf)
    weights = scores.softmax(-1) if keep_scores else torch.softmax(scores, -1, out=scores)
    if is_masked is not None and is_masked.all(-1).any():
        weights = weights.masked_fill(is_masked, 0.0)
    return weights, scores, is_causal


def flex_weights(
    query: Tensor,
    key: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Any = None,
    score_mod_buffers: tuple[Any, ...] = (),
    mask_mod_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor]:
    """The weights and scores of `flex_attention`: query (B, H, Q, D), key (B, H, K, D) -> (B, H, Q, K)

    `score_mod(score, b, h, q, k)` changes a score, and `mask_mod(b, h, q, k)`, the last item of `block_mask`, is True
    for an allowed key. Both take single numbers.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = (query.to(dtype) * scale) @ key.to(dtype).mT
    indices = [torch.arange(size, device=query.device) for size in scores.shape]

    def apply(function: Callable[..., Tensor], *args: Tensor, buffers: tuple[Any, ...]) -> Tensor:
        def over_all(*args: Tensor) -> Tensor:
            return function(*args, *buffers)

        leading = (0,) * (len(args) - len(indices))  # the score, which has all four dimensions
        for dim in reversed(range(4)):
            over_all = torch.vmap(over_all, (*leading, *(0 if i == dim else None for i in range(4))))
        return over_all(*args)

    scores = apply(score_mod, scores, *indices, buffers=score_mod_buffers)
    is_masked = ~apply(block_mask[-1], *indices, buffers=mask_mod_buffers)
    scores = scores.masked_fill(is_masked, -torch.inf)
    return scores.softmax(-1).masked_fill(is_masked.all(-1, keepdim=True), 0.0), scores


def arrange_heads(x: Tensor, call: Call) -> Tensor | None:
    """Weights or scores that a module computes, also as (B, Q, H, K) -> (B, H, Q, K); None for other shapes."""
    heads = num_heads(call.module) or _heads_in_batch(x, call)
    if x.dim() == 4 and x.shape[1] != heads == x.shape[2] and x.shape[1] in call.lengths():
        x = x.transpose(1, 2)
    return split_heads(x, heads)


def _heads_in_batch(x: Tensor, call: Call) -> int | None:
    """The number of heads H of x (B * H, Q, K), by the batch size of the first input of the module; None if unknown."""
    states = next((states for states in call.sequences().values() if states.dim() == 3), None)
    if x.dim() != 3 or states is None or x.shape[1] not in states.shape[:2]:
        return None
    batch = states.shape[0] if x.shape[1] == states.shape[1] else states.shape[1]
    return len(x) // batch if len(x) > batch and len(x) % batch == 0 else None


def split_heads(x: Tensor, heads: int | None) -> Tensor | None:
    """(B, H, Q, K), (B * H, Q, K), (B, groups, H, Q, K) or (B, H, groups, Q, K) -> (B, H, Q, K); None for other shapes.

    `heads` is H; without it, three dimensions are one head. Groups become part of B.
    """
    if x.dim() == 5 and x.shape[2] != heads == x.shape[1]:
        x = x.transpose(1, 2)
    if x.dim() == 3:
        return x.unflatten(0, (-1, heads or 1)) if len(x) % (heads or 1) == 0 else None
    has_heads = heads == x.shape[-3] or (heads is None and x.dim() == 4)
    return x.flatten(0, -4) if has_heads else None


def sink_keys(module: nn.Module, scores: Tensor) -> tuple[int, str]:
    """The number of keys without an attention sink, and a note if there is one: scores (B, H, Q, K)

    A sink is a learned score of each head, the parameter `sinks`, beside those of the keys. GPT-OSS adds it as the last
    column and subtracts the maximum of the row.
    """
    sinks, keys = getattr(module, "sinks", None), scores.shape[-1]
    if not isinstance(sinks, Tensor) or sinks.numel() != scores.shape[1]:
        return keys, ""
    is_last = torch.equal(scores[..., -1], sinks.to(scores).view(-1, 1).expand(scores.shape[:-1]))
    if is_last or not scores.amax(-1).any():
        return keys - 1, "without its attention sink, so rows sum to less than 1"
    return keys, "before its attention sink"


def _is_between_heads(weights: Tensor, heads: int | None, call: Call) -> bool:
    """Whether a softmax (B, T, H, H) is over the heads of each token, as SAM 2 computes and does not use."""
    if weights.dim() != 4 or not weights.shape[1] != heads == weights.shape[2] == weights.shape[3]:
        return False
    lengths = call.lengths()
    return weights.shape[1] in lengths and heads not in lengths and class_positions(call.module) is None


class FastPath:
    """Runs torch's encoders without interception where it would change their output or fail.

    Torch takes its fast path only without a function mode. It zeros the padded positions of an `nn.TransformerEncoder`,
    and nothing else accepts nested tensors. The module runs once as usual, and once more for its weights.
    """

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.module: nn.Module | None = None
        self.undo = ExitStack()

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module starts its forward pass."""
        if self.module is None and not (paused.is_active or is_editing()) and _needs_fast_path(module, args, kwargs):
            self.module = module
            self.undo.enter_context(paused)
            self.undo.enter_context(torch._C.DisableTorchFunction())

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """It ends; the output is None after an exception."""
        if module is not self.module:
            return
        self.undo.close()
        self.module = None
        if output is None:
            return
        try:
            args, kwargs = _without_nested(module, args, kwargs)
            with torch.no_grad():
                module.forward(*args, **kwargs)
        except SightlineError:
            raise
        except Exception as error:  # a recording must not break the model
            self.recorder.miss(f"{type(error).__name__}: {error!s:.200}")


def _needs_fast_path(module: nn.Module, args: Any, kwargs: Any) -> bool:
    is_encoder = type(module) is nn.TransformerEncoder
    if not is_encoder and type(module) not in (nn.TransformerEncoderLayer, nn.MultiheadAttention):
        return False
    is_padded = (args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")) is not None
    is_nested = any(isinstance(x, Tensor) and x.is_nested for x in (*args, *kwargs.values()))
    return not module.training and (is_nested or (is_encoder and is_padded))


def _without_nested(module: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with nested tensors padded, and a padding mask for the keys."""
    nested = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_nested]
    if not nested:
        return args, kwargs
    args, kwargs = tuple(map(_padded, args)), {name: _padded(x) for name, x in kwargs.items()}
    name = "key_padding_mask" if isinstance(module, nn.MultiheadAttention) else "src_key_padding_mask"
    return args, {**kwargs, name: ~_is_valid(nested[-1])}


def _padded(x: Any) -> Any:
    return x.contiguous().to_padded_tensor(0.0) if isinstance(x, Tensor) and x.is_nested else x


def _is_valid(x: Tensor) -> Tensor:
    """Which positions of a padded nested tensor are there: x (B, ..., T, D) -> (B, T)"""
    lengths = torch.tensor([sequence.shape[-2] for sequence in x.unbind()], device=x.device)
    return torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]


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


def _with_heads(x: Tensor, call: Call) -> Tensor:
    """(..., H, Q, K), (B * H, Q, K), (B, Q, K) or (Q, K) -> (B, H, Q, K); H is 1 if nothing tells it."""
    if x.dim() < 4:
        x = x.unsqueeze(0) if x.dim() == 2 else x
        heads = num_heads(call.module) or _heads_in_batch(x, call)
        return x.unflatten(0, (-1, heads)) if heads and len(x) % heads == 0 else x.unsqueeze(1)
    return x.flatten(0, -4)
