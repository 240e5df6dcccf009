"""A decoding step of a decoder block without calls of its modules.

On a CPU, calling the modules of a small block takes as long as computing one token. `DecoderBlock.forward` is the plain
version with the same result.

Shapes: R rows, M embedding dimension.
"""

from typing import cast

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
        self.pre_norm, self.activation = block.pre_norm, mlp.activation
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.score, self.cross_score = (cast(DotProductScore, x.score) for x in (attention, cross_attention))
        linears = (attention.qkv, attention.out_proj, cross_attention.out_proj, mlp.fc1, mlp.fc2)
        self.qkv, self.out_proj, self.cross_out_proj, self.fc1, self.fc2 = ((x.weight, x.bias) for x in linears)
        self.cross_query, _ = cross_attention.split_qkv()
        self.norms = [(x.normalized_shape, x.weight, x.bias, x.eps) for x in (block.norm1, block.norm2, block.norm3)]

    def __call__(self, x: Tensor, cache: DecoderCache, cross_mask: Padding | None) -> Tensor:
        """x (R, M), or (M,) for one row -> the same shape. The token is added to the cache, which has the source."""
        norm1, norm2, norm3 = self.norms
        if self.pre_norm:
            x = x + self._attention(torch.layer_norm(x, *norm1), cache)
            x = x + self._cross_attention(torch.layer_norm(x, *norm2), cache, cross_mask)
            return x + self._mlp(torch.layer_norm(x, *norm3))
        x = torch.layer_norm(x + self._attention(x, cache), *norm1)
        x = torch.layer_norm(x + self._cross_attention(x, cache, cross_mask), *norm2)
        return torch.layer_norm(x + self._mlp(x), *norm3)

    def _attention(self, x: Tensor, cache: DecoderCache) -> Tensor:
        heads = self.num_heads
        qkv = _linear(x, *self.qkv).view(-1, 3 * heads, 1, self.head_dim)
        (keys_values,) = cache.target.extend([qkv[:, heads:]])
        out = _attend(self.score, qkv[:, :heads], keys_values[:, :heads], keys_values[:, heads:], None)
        return _linear(out.view(*x.shape[:-1], -1), *self.out_proj)

    def _cross_attention(self, x: Tensor, cache: DecoderCache, mask: Padding | None) -> Tensor:
        q = _linear(x, *self.cross_query).view(-1, self.num_heads, 1, self.head_dim)
        k, v = cache.source.tensors
        out = _attend(self.cross_score, q, k, v, mask)
        return _linear(out.view(*x.shape[:-1], -1), *self.cross_out_proj)

    def _mlp(self, x: Tensor) -> Tensor:
        return _linear(self.activation(_linear(x, *self.fc1)), *self.fc2)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`. For one row x (M,) on a CPU, a product of a matrix and a vector starts faster.

    Autocast does not cast the inputs of this product.
    """
    if x.dim() == 2 or bias is None or not x.is_cpu or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    return torch.addmv(bias, weight, x)


def _attend(score: DotProductScore, q: Tensor, k: Tensor, v: Tensor, mask: Padding | None) -> Tensor:
    """q (R, H, 1, D), k (R, H, K, D), v (R, H, K, D) -> (R, H, 1, D), contiguous"""
    q, k, scale = score.to_dot_product(q, k)
    bias = None if mask is None else mask.as_bias(q)
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale).contiguous()
