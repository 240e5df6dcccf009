"""The weights that torch's fused attention functions do not return, computed a second time.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


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
        attn_mask = is_valid(key)[:, None, None]
        query, key = padded(query), padded(key)
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


def padded(x: Any) -> Any:
    """A nested tensor with zeros as padding; anything else as it is."""
    return x.contiguous().to_padded_tensor(0.0) if isinstance(x, Tensor) and x.is_nested else x


def is_valid(x: Tensor) -> Tensor:
    """Which positions of a padded nested tensor are there: x (B, ..., T, D) -> (B, T)"""
    lengths = torch.tensor([sequence.shape[-2] for sequence in x.unbind()], device=x.device)
    return torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]


class SoftmaxInput(TorchDispatchMode):
    """Stores the input of the last softmax, also inside torch's composite functions."""

    scores: Tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._softmax.default, torch.ops.aten.softmax.int):
            self.scores = args[0]
        return func(*args, **(kwargs or {}))
