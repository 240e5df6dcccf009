"""Multi-head attention.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, M embedding dimension, T tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check_divides, check_fraction, check_int
from ..kernels.packing import Packing
from .functional import Kind, attend
from .key_value_cache import KeyValueCache
from .masks import Bias, Mask, check_mask
from .normalizers import Normalizer, make_normalizer
from .scores import Score, make_score

Linear = tuple[Tensor, Tensor | None]
"""Weight and bias of a linear map."""


class MultiHeadAttention(nn.Module):
    """Attention with several heads of `head_dim` channels each (default: embed_dim / num_heads).

    One linear layer computes queries, keys and values. With a `context`, keys and values are computed from the context
    (cross-attention). `mask` applies at every call, in addition to the mask of the call. `in_context_bias` adds a
    learned linear function of each key's token to the scores of that key, one number per head.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        score: str | Score = "dot",
        normalizer: str | Normalizer = "softmax",
        mask: Mask | None = None,
        bias: bool = True,
        in_context_bias: bool = False,
        dropout: float = 0.0,
        head_dim: int | None = None,
    ):
        super().__init__()
        check_int(1, embed_dim=embed_dim, num_heads=num_heads)
        check_fraction(dropout=dropout)
        if head_dim is None:
            check_divides("embed_dim", embed_dim, num_heads=num_heads, fix="; or give head_dim")
            head_dim = embed_dim // num_heads
        check_int(1, head_dim=head_dim)
        self.embed_dim, self.num_heads, self.dropout, self.head_dim = embed_dim, num_heads, dropout, head_dim
        self.score = make_score(score, head_dim=head_dim, num_heads=num_heads)
        self.normalizer = make_normalizer(normalizer)
        self.mask = None if mask is None else check_mask(mask, "mask")
        self.qkv = nn.Linear(embed_dim, 3 * num_heads * head_dim, bias=bias)
        self.key_bias = nn.Linear(embed_dim, num_heads, bias=False) if in_context_bias else None
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: KeyValueCache | None = None,
        packing: Packing | None = None,
        context_packing: Packing | None = None,
    ) -> Tensor:
        """x (B, Q, M), context (B, K, M) -> (B, Q, M)

        With `packing`, x and the output are packed; with `context_packing`, the context is.
        """
        self._check_shape("x", x)
        if context is None:
            q, k, v, *key_bias = self._project_self(x, cache, packing)
        else:
            self._check_shape("context", context)
            if context.shape[0] != x.shape[0]:
                raise SightlineError(f"context must have the batch size of x, {x.shape[0]}, got {context.shape[0]}")
            query, (k, v, *key_bias) = self._project_cross(x, context, cache, context_packing)
            q = self._split_heads(query, packing).transpose(1, 2)
        if self.mask is not None:
            mask = self.mask if mask is None else self.mask & mask
        if key_bias:
            bias = Bias(key_bias[0].mT, finite=True)
            mask = bias if mask is None else bias & mask
        dropout = self.dropout if self.training else 0.0
        kind: Kind | None = None if context is None else "cross"
        out = attend(q, k, v, score=self.score, normalizer=self.normalizer, mask=mask, dropout=dropout, kind=kind)
        out = out.transpose(1, 2).flatten(2)
        return self.out_proj(out if packing is None else packing.pack(out))

    def cache_context(self, context: Tensor) -> KeyValueCache:
        """A cache that holds the keys and values of a context (B, K, M)."""
        self._check_shape("context", context)
        return KeyValueCache(*self._project_context(context, self.split_qkv()[1]))

    def _project_self(self, x: Tensor, cache: KeyValueCache | None, packing: Packing | None) -> list[Tensor]:
        """q, k, v and key biases of the same tokens: x (B, T, M) -> (B, H, T, D) each"""
        qkv, key_bias = self._split_heads(self.qkv(x), packing), self._key_bias(x, packing)
        if cache is None:
            return [*_chunk_heads(qkv, 3), *key_bias]
        q, new = qkv.transpose(1, 2).split_with_sizes([self.num_heads, 2 * self.num_heads], 1)
        keys_values, *key_bias = cache.extend([new, *key_bias])
        return [q, *keys_values.chunk(2, 1), *key_bias]

    def _project_cross(
        self, x: Tensor, context: Tensor, cache: KeyValueCache | None, context_packing: Packing | None
    ) -> tuple[Tensor, list[Tensor]]:
        """q (B, Q, H * D) of x, and k, v and key biases of the context, from the cache if it holds them."""
        if cache is not None and cache.tensors:
            size, bias = self.num_heads * self.head_dim, self.qkv.bias
            return F.linear(x, self.qkv.weight[:size], None if bias is None else bias[:size]), cache.tensors
        query, key_value = self.split_qkv()
        from_context = self._project_context(context, key_value, context_packing)
        if cache is not None:
            cache.tensors = from_context
        return F.linear(x, *query), from_context

    def _project_context(self, context: Tensor, key_value: Linear, packing: Packing | None = None) -> list[Tensor]:
        """k, v and key biases: context (B, K, M) -> (B, H, K, D), (B, H, K, D), (B, H, K, 1)"""
        projected = self._split_heads(F.linear(context, *key_value), packing)
        return [*_chunk_heads(projected, 2), *self._key_bias(context, packing)]

    def split_qkv(self) -> tuple[Linear, Linear]:
        """The parameters of the query map and of the key-value map. One split, so there is one gradient to join."""
        sizes = [self.num_heads * self.head_dim, 2 * self.num_heads * self.head_dim]
        weight, bias = _autocast(self.qkv.weight), None if self.qkv.bias is None else _autocast(self.qkv.bias)
        query_weight, context_weight = weight.split_with_sizes(sizes)
        query_bias, context_bias = (None, None) if bias is None else bias.split_with_sizes(sizes)
        return (query_weight, query_bias), (context_weight, context_bias)

    def _key_bias(self, x: Tensor, packing: Packing | None) -> list[Tensor]:
        """The in-context bias (B, H, T, 1), or an empty list."""
        if self.key_bias is None:
            return []
        bias = self.key_bias(x) if packing is None else packing.unpack(self.key_bias(x))
        return [bias.mT.unsqueeze(-1)]

    def _split_heads(self, x: Tensor, packing: Packing | None) -> Tensor:
        """(B, T, heads * D) -> (B, T, heads, D)"""
        x = x if packing is None else packing.unpack(x)
        batch, tokens, channels = x.shape
        return x.view(batch, tokens, channels // self.head_dim, self.head_dim)

    def _check_shape(self, name: str, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise SightlineError(f"{name} must have shape (batch, tokens, {self.embed_dim}), got {tuple(x.shape)}")

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, dropout={self.dropout}"
        )


def _chunk_heads(x: Tensor, chunks: int) -> list[Tensor]:
    """(B, T, chunks * H, D) -> chunks of (B, H, T, D)"""
    return [chunk.transpose(1, 2) for chunk in x.chunk(chunks, 2)]


def _autocast(parameter: Tensor) -> Tensor:
    """The parameter in autocast's dtype. Cast before it is split; autocast would cast each part."""
    device_type = parameter.device.type
    lowers = torch.is_autocast_enabled(device_type) and parameter.dtype is not torch.float64  # float64 is never cast
    return parameter.to(torch.get_autocast_dtype(device_type)) if lowers else parameter
