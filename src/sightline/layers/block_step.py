"""A decoding step of a decoder block without calls of its modules.

On a CPU, calling the modules of a small block takes as long as computing one token. `DecoderBlock.forward` is the plain
version with the same result.

Shapes: R rows, M embedding dimension.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import MultiHeadAttention, Softmax
from ..attention.masks import Padding
from ..attention.scores import DotProductScore
from ..kernels.dropout import Dropout
from .blocks import DecoderBlock, DecoderCache, FeedForward

MODULES = (DecoderBlock, MultiHeadAttention, FeedForward, nn.Linear, nn.LayerNorm, Dropout, Softmax)
"""Modules that a step replaces. A subclass may compute something else."""


def has_step(block: nn.Module) -> bool:
    """Whether `BlockStep` computes what the block computes in eval mode and without hooks."""
    if not all(type(module) in MODULES or isinstance(module, DotProductScore) for module in block.modules()):
        return False
    attentions = [module for module in block.modules() if isinstance(module, MultiHeadAttention)]
    return all(attention.mask is None and attention.key_bias is None for attention in attentions)


class BlockStep:
    """One token per row through a block that `has_step`. It holds the weights: create one when decoding starts."""

    def __init__(self, block: DecoderBlock):
        attention, cross_attention, mlp = block.attention, block.cross_attention, block.mlp
        self.pre_norm, self.activation, self.num_heads = block.pre_norm, mlp.activation, attention.num_heads
        self.score, self.cross_score = (cast(DotProductScore, x.score) for x in (attention, cross_attention))
        linears = (attention.qkv, attention.out_proj, cross_attention.out_proj, mlp.fc1, mlp.fc2)
        self.qkv, self.out_proj, self.cross_out_proj, self.fc1, self.fc2 = ((x.weight, x.bias) for x in linears)
        self.cross_query, _ = cross_attention.split_qkv()
        self.norms = [(x.normalized_shape, x.weight, x.bias, x.eps) for x in (block.norm1, block.norm2, block.norm3)]

    def __call__(self, x: Tensor, cache: DecoderCache, cross_mask: Padding | None) -> Tensor:
        """x (R, M) -> (R, M). The token is added to the cache, which holds the keys and values of the source."""
        norm1, norm2, norm3 = self.norms
        x = self._residual(x, norm1, self._attention, cache)
        x = self._residual(x, norm2, self._cross_attention, cache, cross_mask)
        return self._residual(x, norm3, self._mlp)

    def _residual(self, x: Tensor, norm: tuple[Any, ...], layer: Callable[..., Tensor], *arguments: Any) -> Tensor:
        if self.pre_norm:
            return x + layer(torch.layer_norm(x, *norm), *arguments)
        return torch.layer_norm(x + layer(x, *arguments), *norm)

    def _attention(self, x: Tensor, cache: DecoderCache) -> Tensor:
        q, new = self._heads(F.linear(x, *self.qkv), 3).tensor_split((self.num_heads,), 1)
        (keys_values,) = cache.target.extend([new])
        k, v = keys_values.chunk(2, 1)
        return F.linear(_attend(self.score, q, k, v, None), *self.out_proj)

    def _cross_attention(self, x: Tensor, cache: DecoderCache, mask: Padding | None) -> Tensor:
        q, (k, v) = self._heads(F.linear(x, *self.cross_query), 1), cache.source.tensors
        return F.linear(_attend(self.cross_score, q, k, v, mask), *self.cross_out_proj)

    def _mlp(self, x: Tensor) -> Tensor:
        return F.linear(self.activation(F.linear(x, *self.fc1)), *self.fc2)

    def _heads(self, x: Tensor, parts: int) -> Tensor:
        """(R, parts * H * D) -> (R, parts * H, 1, D)"""
        return x.view(x.shape[0], parts * self.num_heads, 1, -1)


def _attend(score: DotProductScore, q: Tensor, k: Tensor, v: Tensor, mask: Padding | None) -> Tensor:
    """q (R, H, 1, D), k (R, H, K, D), v (R, H, K, D) -> (R, H * D)"""
    q, k, scale = score.to_dot_product(q, k)
    bias = None if mask is None else mask.as_bias(q)
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale).flatten(1)
