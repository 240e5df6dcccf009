"""Interception of torch's attention functions.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from ..errors import SightlineError
from .calls import Call, num_heads
from .explicit_weights import SoftmaxInput, flex_weights, sdpa_weights
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
        with paused, torch._C.DisableTorchFunction(), SoftmaxInput() as softmax_input:
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
    return _unpack_groups(x.flatten(0, -4), call)


def _unpack_groups(x: Tensor, call: Call) -> Tensor:
    """(B, H / G, G, K) of a module with G heads for each head of its keys and one query -> (B, H, 1, K)

    Hugging Face computes a step of `generate()` with a mask this way. Other weights are returned as they are.
    """
    groups = getattr(call.module, "num_key_value_groups", None)
    states = next(iter(call.sequences().values()), None)
    is_one_query = states is not None and states.dim() == 3 and states.shape[:2] == (len(x), 1)
    is_packed = isinstance(groups, int) and groups > 1 and x.shape[2] == groups and is_one_query
    return x.flatten(1, 2).unsqueeze(2) if is_packed else x
