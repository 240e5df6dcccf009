"""Encoder and decoder blocks: attention and feed-forward, each inside a residual.

Legend for all shapes: B batch, N tokens, T target tokens, S source tokens, M model width.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Cache, Mask, MultiHeadAttention
from ..attention.packing import Packing
from ..checks import check_share, check_whole, nearest
from .dropout import Dropout

Norm = Literal["post", "pre"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """Two linear maps with a bend between them, at every token alike."""

    def __init__(self, width: int, hidden: int, *, activation: str = "relu", dropout: float = 0.0, bias: bool = True):
        super().__init__()
        check_whole(1, width=width, hidden=hidden)
        check_share(dropout=dropout)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be {nearest(str(activation), ACTIVATIONS)}")
        self.widen = nn.Linear(width, hidden, bias=bias)
        self.bend = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.narrow = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, M) -> (B, N, M)"""
        x = self.bend(self.widen(x))
        return self.narrow(self.dropout(x) if self.training else x)


class Residual(nn.Module):
    """What a layer adds to x; normalised after the sum (post, as in the paper) or before the layer (pre)."""

    def __init__(self, width: int, *, norm: Norm = "post", dropout: float = 0.0):
        super().__init__()
        if norm not in get_args(Norm):
            raise ValueError(f"norm must be {nearest(str(norm), get_args(Norm))}")
        self.pre = norm == "pre"
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, N, M) -> (B, N, M)"""
        added = layer(self.norm(x) if self.pre else x)
        x = x + (self.dropout(added) if self.training else added)  # decoding is made of small calls: none for nothing
        return x if self.pre else self.norm(x)


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward.

    `attention` takes any option of `MultiHeadAttention`; its dropout and bias are the block's unless they are given as
    `attention_dropout` and `attention_bias`. A score, normaliser or mask that is ready made is copied, so that each
    block learns its own.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        norm: Norm = "post",
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        **attention: Any,
    ):
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, **_attention_options(dropout, bias, attention))
        self.feed_forward = FeedForward(width, hidden, activation=activation, dropout=dropout, bias=bias)
        self.around_attention = Residual(width, norm=norm, dropout=dropout)
        self.around_feed_forward = Residual(width, norm=norm, dropout=dropout)

    def forward(
        self, x: Tensor, *, mask: Mask | None = None, cache: Cache | None = None, packing: Packing | None = None
    ) -> Tensor:
        """x (B, N, M) -> (B, N, M); with a cache, x comes after what is in it, and is added to it"""
        x = self.around_attention(x, lambda x: self.attention(x, mask=mask, cache=cache, packing=packing))
        return self.around_feed_forward(x, self.feed_forward)


@dataclass
class DecoderCache:
    """What one decoder block has seen: its own tokens, and the source."""

    target: Cache = field(default_factory=Cache)
    source: Cache = field(default_factory=Cache)

    def reorder(self, rows: Tensor, *, within: bool = False) -> None:
        """Keep these rows of the batch, in this order; `within` its sentence each, so that sources stay. rows (B',)"""
        self.target.reorder(rows)
        if not within:
            self.source.reorder(rows)


class DecoderBlock(EncoderBlock):
    """Self-attention over what was written, cross-attention over the source, then feed-forward.

    The options are those of `EncoderBlock`; a `mask` among them is for self-attention alone.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        norm: Norm = "post",
        dropout: float = 0.0,
        bias: bool = True,
        **options: Any,
    ):
        super().__init__(width, heads, hidden, norm=norm, dropout=dropout, bias=bias, **options)
        attention = {name: option for name, option in options.items() if name not in ("mask", "activation")}
        self.cross_attention = MultiHeadAttention(width, heads, **_attention_options(dropout, bias, attention))
        self.around_cross_attention = Residual(width, norm=norm, dropout=dropout)

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
        own, other = (None, None) if cache is None else (cache.target, cache.source)
        cross = {"mask": cross_mask, "cache": other, "packing": packing, "context_packing": source_packing}
        x = self.around_attention(x, lambda x: self.attention(x, mask=mask, cache=own, packing=packing))
        x = self.around_cross_attention(x, lambda x: self.cross_attention(x, source, **cross))
        return self.around_feed_forward(x, self.feed_forward)

    def new_cache(self, source: Tensor | None = None) -> DecoderCache:
        """An empty cache, or one that knows the source (B, S, M)."""
        return DecoderCache() if source is None else DecoderCache(source=self.cross_attention.remember(source))


TransformerBlock = EncoderBlock
"""What a stack with no decoder calls its blocks."""


def _attention_options(dropout: float, bias: bool, options: dict[str, Any]) -> dict[str, Any]:
    options = copy.deepcopy(options)
    return {
        "dropout": options.pop("attention_dropout", dropout),
        "bias": options.pop("attention_bias", bias),
        **options,
    }
