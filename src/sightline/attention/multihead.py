"""Multi-head attention.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, M embedding dimension, T tokens.
"""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check_divides, check_fraction, check_int
from ..kernels.packing import Packing
from . import torch_interface
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

    The module also takes the arguments of `nn.MultiheadAttention`, (query, key, value) with torch's masks, and then
    returns (output, weights), so it can be the `self_attn` of an `nn.TransformerEncoderLayer`. `batch_first` must then
    be that of the layer: whether (query, key, value) have the batch first. Without a value, x and context always have.
    """

    merge_masks = nn.MultiheadAttention.merge_masks

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
        batch_first: bool = True,
    ):
        super().__init__()
        check_int(1, embed_dim=embed_dim, num_heads=num_heads)
        check_fraction(dropout=dropout)
        if head_dim is None:
            check_divides("embed_dim", embed_dim, num_heads=num_heads, fix="; or give head_dim")
            head_dim = embed_dim // num_heads
        check_int(1, head_dim=head_dim)
        self.embed_dim, self.num_heads, self.dropout, self.head_dim = embed_dim, num_heads, dropout, head_dim
        self.batch_first = batch_first
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

    @classmethod
    def from_torch(cls, attention: nn.MultiheadAttention) -> Self:
        """A module with a copy of the weights of torch's, and the same outputs."""
        module = cls(**torch_interface.options_of(attention))
        torch_interface.copy_parameters(attention, module, names=torch_interface.NAMES)
        return module

    def to_torch(self) -> nn.MultiheadAttention:
        """An `nn.MultiheadAttention` with a copy of the weights and the same outputs.

        The score must be `dot`, the normalizer `softmax`, and there must be no mask and no in-context bias.
        """
        return torch_interface.to_torch(self)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: KeyValueCache | None = None,
        packing: Packing | None = None,
        context_packing: Packing | None = None,
        **torch_options: Any,
    ) -> Any:
        """x (B, Q, M), context (B, K, M) -> (B, Q, M)

        With `packing`, x and the output are packed; with `context_packing`, the context is. With a value, x, context
        and value are the query, key and value of `torch_interface.call`, which takes the other options.
        """
        if value is not None and context is not None:
            return torch_interface.call(self, x, context, value, mask=mask, **torch_options)
        if torch_options or value is not None:
            rule, names = "torch's arguments must come with query, key and value", ", ".join(torch_options)
            raise SightlineError(f"{rule}, got {names or 'a value'} without them")
        self._check_shape("x", x)
        if context is None:
            q, k, v, *key_bias = self._project_self(x, cache, packing)
        else:
            self._check_shape("context", context)
            if context.shape[0] != x.shape[0]:
                raise SightlineError(f"context must have the batch size of x, {x.shape[0]}, got {context.shape[0]}")
            query, (k, v, *key_bias) = self._project_cross(x, context, cache, context_packing)
            q = self._split_heads(query, packing).transpose(1, 2)
        out = self.attend_heads(q, k, v, self.full_mask(mask, *key_bias), None if context is None else "cross")
        return self.out_proj(out if packing is None else packing.pack(out))

    def attend_heads(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, kind: Kind | None) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D), v (B, H, K, D) -> (B, Q, H * D)"""
        dropout = self.dropout if self.training else 0.0
        out = attend(q, k, v, score=self.score, normalizer=self.normalizer, mask=mask, dropout=dropout, kind=kind)
        out = out.transpose(1, 2)
        if torch.compiler.is_exporting():  # the layout of `out` depends on the kernel, which ONNX replaces
            out = out.clone(memory_format=torch.contiguous_format)
        return out.flatten(2)

    def full_mask(self, mask: Mask | None, key_bias: Tensor | None = None) -> Mask | None:
        """The mask of a call with that of the module and the in-context bias: key_bias (B, H, K, 1)"""
        if self.mask is not None:
            mask = self.mask if mask is None else self.mask & mask
        if key_bias is not None:
            bias = Bias(key_bias.mT, finite=True)
            mask = bias if mask is None else bias & mask
        return mask

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """q, k, v and key biases: query (B, Q, M), key and value (B, K, M) -> (B, H, Q, D), (B, H, K, D) twice"""
        for name, x in (("query", query), ("key", key), ("value", value)):
            self._check_shape(name, x)
        if query is key is value:
            return self._project_self(query, None, None)
        (weight, bias), (context_weight, context_bias) = self.split_qkv()
        q = self._split_heads(F.linear(query, weight, bias), None).transpose(1, 2)
        if key is value:
            return [q, *self._project_context(key, (context_weight, context_bias))]
        biases = (None, None) if context_bias is None else context_bias.chunk(2)
        maps = zip((key, value), context_weight.chunk(2), biases, strict=True)
        heads = [self._split_heads(F.linear(*linear), None).transpose(1, 2) for linear in maps]
        return [q, *heads, *self._key_bias(key, None)]

    @property
    def in_proj_weight(self) -> Tensor:
        """The name of torch's module for the weight of `qkv`."""
        return self.qkv.weight

    @property
    def in_proj_bias(self) -> Tensor | None:
        """The name of torch's module for the bias of `qkv`."""
        return self.qkv.bias

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """Read by torch's encoder, whose fast path computes dot-product attention from the weights."""
        return torch_interface.is_plain(self)

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
