"""Transformer blocks: attention and a feed-forward network, each with a residual connection.

Shapes: B batch, T tokens (target tokens in a decoder), S source tokens, M embedding dimension.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import KeyValueCache, Mask, MultiHeadAttention
from ..errors import check_choice, check_fraction, check_int
from ..kernels.dropout import Dropout
from ..kernels.packing import Packing
from ..kernels.weight_casts import cast_weights, casts_weights

Norm = Literal["post", "pre"]
NOT_CROSS = ("mask", "activation", "norm", "norm_eps")
"""Options of a decoder block that are not those of its cross-attention."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to every token."""

    def __init__(
        self, embed_dim: int, ffn_dim: int, *, activation: str = "relu", dropout: float = 0.0, bias: bool = True
    ):
        super().__init__()
        check_int(1, embed_dim=embed_dim, ffn_dim=ffn_dim)
        check_fraction(dropout=dropout)
        check_choice("activation", activation, ACTIVATIONS)
        self.fc1 = nn.Linear(embed_dim, ffn_dim, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.fc2 = nn.Linear(ffn_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, M) -> (B, T, M)"""
        x = self.activation(self.fc1(x))
        return self.fc2(self.dropout(x) if self.training else x)


class EncoderBlock(nn.Module):
    """Self-attention, then a feed-forward network.

    `norm="pre"` normalizes the input of each layer, `norm="post"` the sum after it, as in the original Transformer;
    `norm_eps` is the epsilon of the layer norms. Further options are those of `MultiHeadAttention`; its dropout and
    bias are the block's unless given as `attention_dropout` and `attention_bias`. A score, normalizer or mask instance
    is copied, so every block has its own parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        *,
        norm: Norm = "post",
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        norm_eps: float = 1e-5,
        **attention: Any,
    ):
        super().__init__()
        check_choice("norm", norm, get_args(Norm))
        self.pre_norm = norm == "pre"
        self.attention = MultiHeadAttention(embed_dim, num_heads, **_attention_options(dropout, bias, attention))
        self.mlp = FeedForward(embed_dim, ffn_dim, activation=activation, dropout=dropout, bias=bias)
        self.norm1, self.norm2 = nn.LayerNorm(embed_dim, norm_eps), nn.LayerNorm(embed_dim, norm_eps)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, *, mask: Mask | None = None, cache: KeyValueCache | None = None, packing: Packing | None = None
    ) -> Tensor:
        """x (B, T, M) -> (B, T, M); with a cache, the tokens of x follow the cached ones and are added to the cache"""
        attention = partial(self.attention, mask=mask, cache=cache, packing=packing)
        return self.residuals(x, (self.norm1, attention), (self.norm2, self.mlp))

    def residuals(self, x: Tensor, *layers: tuple[nn.LayerNorm, Callable[[Tensor], Tensor]]) -> Tensor:
        """The layers one after another, each with its norm and a residual connection: x (B, T, M) -> (B, T, M)"""
        with cast_weights(self.linears()) if casts_weights(x.device) else nullcontext():
            for norm, layer in layers:
                x = self.residual(x, norm, layer)
        return x

    def linears(self) -> list[nn.Linear]:
        """The linear layers of the block."""
        return [self.attention.qkv, self.attention.out_proj, self.mlp.fc1, self.mlp.fc2]

    def residual(self, x: Tensor, norm: nn.LayerNorm, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """x + layer(norm(x)) for pre-norm, norm(x + layer(x)) for post-norm; x (B, T, M) -> (B, T, M)"""
        added = layer(norm(x) if self.pre_norm else x)
        x = x + (self.dropout(added) if self.training else added)  # skips a module call when decoding
        return x if self.pre_norm else norm(x)


@dataclass
class DecoderCache:
    """Keys and values of one decoder block: those of its own tokens and those of the source."""

    target: KeyValueCache = field(default_factory=KeyValueCache)
    source: KeyValueCache = field(default_factory=KeyValueCache)

    def reorder(self, indices: Tensor, *, same_source: bool = False) -> None:
        """Select rows of the batch: indices (B',). With `same_source`, the source of every row stays the same."""
        self.target.reorder(indices)
        if not same_source:
            self.source.reorder(indices)


class DecoderBlock(EncoderBlock):
    """Causal self-attention, cross-attention over the source, then a feed-forward network.

    Takes the options of `EncoderBlock`; a `mask` among them applies to self-attention only.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, ffn_dim: int, *, dropout: float = 0.0, bias: bool = True, **options: Any
    ):
        super().__init__(embed_dim, num_heads, ffn_dim, dropout=dropout, bias=bias, **options)
        attention = {name: option for name, option in options.items() if name not in NOT_CROSS}
        self.cross_attention = MultiHeadAttention(embed_dim, num_heads, **_attention_options(dropout, bias, attention))
        self.norm3 = nn.LayerNorm(embed_dim, self.norm1.eps)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        source: Tensor,
        *,
        mask: Mask | None = None,
        cross_mask: Mask | None = None,
        cache: DecoderCache | None = None,
        packing: Packing | None = None,
        source_packing: Packing | None = None,
    ) -> Tensor:
        """x (B, T, M), source (B, S, M) -> (B, T, M); the masks are (T, T) and (T, S)"""
        target_cache, source_cache = (None, None) if cache is None else (cache.target, cache.source)
        cross = {"mask": cross_mask, "cache": source_cache, "packing": packing, "context_packing": source_packing}
        attention = partial(self.attention, mask=mask, cache=target_cache, packing=packing)
        cross_attention = partial(self.cross_attention, context=source, **cross)
        return self.residuals(x, (self.norm1, attention), (self.norm2, cross_attention), (self.norm3, self.mlp))

    def linears(self) -> list[nn.Linear]:
        return [*super().linears(), self.cross_attention.qkv, self.cross_attention.out_proj]

    def new_cache(self, source: Tensor | None = None) -> DecoderCache:
        """An empty cache, or one that holds the keys and values of the source (B, S, M)."""
        return DecoderCache() if source is None else DecoderCache(source=self.cross_attention.cache_context(source))


def _attention_options(dropout: float, bias: bool, options: dict[str, Any]) -> dict[str, Any]:
    options = {"attention_dropout": dropout, "attention_bias": bias, **copy.deepcopy(options)}
    return {name.removeprefix("attention_"): option for name, option in options.items()}
