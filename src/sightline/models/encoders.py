"""Text encoders, and the output that every encoder gives a decoder.

Shapes: B batch, S source tokens or other source positions, M embedding dimension.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention.masks import Padding
from ..errors import SightlineError
from ..kernels.packing import Packing
from ..layers import (
    Dropout,
    Encoder,
    LearnedPositions,
    PositionEmbedding,
    RecurrentEncoder,
    SinusoidalPositions,
    TokenEmbedding,
)

Positions = Literal["sinusoidal", "learned"]


@dataclass(eq=False)
class EncoderOutput:
    """The states of a batch of sources: tokens of a text, regions of an image or other features."""

    states: Tensor
    """(B, S, M); or packed, (1, N, M) for the N positions of the attention mask"""
    attention_mask: Tensor | None = None
    """bool (B, S), True for positions that a decoder attends to, at least one in every row; None for all positions"""
    pooled: Tensor | None = None
    """(B, M), the source as one vector; None if the encoder has none"""
    packing: Packing | None = None
    """The packing of the states; None if they are not packed."""
    mask: Padding | None = field(init=False, repr=False)
    """`attention_mask` as a mask, shared by all layers of a decoder."""

    def __post_init__(self) -> None:
        self.mask = None if self.attention_mask is None else Padding(self.attention_mask, has_no_empty_rows=True)

    def __len__(self) -> int:
        return len(self.states)

    @property
    def device(self) -> torch.device:
        return self.states.device

    def take(self, indices: Tensor) -> "EncoderOutput":
        """The rows at these indices (B',)."""
        mask, pooled = (None if x is None else x.index_select(0, indices) for x in (self.attention_mask, self.pooled))
        return EncoderOutput(self.states.index_select(0, indices), mask, pooled)

    def without_trivial_mask(self) -> "EncoderOutput":
        """The output without its mask if the mask is True everywhere."""
        is_trivial = self.attention_mask is not None and bool(self.attention_mask.all())
        return EncoderOutput(self.states, None, self.pooled) if is_trivial else self

    def packed(self) -> "EncoderOutput":
        """The output with packed states."""
        if self.packing is not None:
            return self
        mask = self.attention_mask
        packing = Packing(self.states.new_ones(self.states.shape[:2], dtype=torch.bool) if mask is None else mask)
        return EncoderOutput(packing.pack(self.states), mask, self.pooled, packing)

    def pooled_states(self) -> Tensor:
        """`pooled`, or the mean of the states: (B, M)"""
        if self.pooled is not None:
            return self.pooled
        if self.attention_mask is None:
            return self.states.mean(1)
        mask = self.attention_mask.unsqueeze(-1).to(self.states.dtype)
        return (self.states * mask).sum(1) / mask.sum(1)


class TextEncoder(nn.Module, ABC):
    """Base class: token ids to an `EncoderOutput`.

    Without a `vocab_size`, the encoder has no token embedding, and `forward` takes that of a decoder.
    """

    def __init__(self, vocab_size: int | None, embed_dim: int, dropout: float):
        super().__init__()
        self.embedding = None if vocab_size is None else TokenEmbedding(vocab_size, embed_dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor, *, embedding: TokenEmbedding | None = None, packed: bool = False
    ) -> EncoderOutput:
        """tokens int64 (B, S), attention_mask bool (B, S), padding last -> states (B, S, M)

        `packed` packs the states, if the encoder supports it.
        """
        embedding = self.embedding if embedding is None else embedding
        assert embedding is not None, "an encoder without a vocab_size takes an embedding"
        attention_mask = check_tokens(tokens, attention_mask)
        return self.encode(embedding(tokens), attention_mask, packed=packed)

    @abstractmethod
    def encode(self, x: Tensor, attention_mask: Tensor, *, packed: bool = False) -> EncoderOutput:
        """Token embeddings x (B, S, M), attention_mask (B, S) -> states (B, S, M)"""


class TransformerTextEncoder(TextEncoder):
    """Token embeddings, positions and encoder blocks. Further options are those of `EncoderBlock`."""

    def __init__(
        self,
        vocab_size: int | None,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        depth: int,
        *,
        positions: Positions = "sinusoidal",
        max_positions: int = 256,
        dropout: float = 0.0,
        **block: Any,
    ):
        super().__init__(vocab_size, embed_dim, dropout)
        self.positions = make_positions(positions, max_positions, embed_dim)
        self.stack = Encoder(embed_dim, num_heads, ffn_dim, depth, dropout=dropout, **block)

    def encode(self, x: Tensor, attention_mask: Tensor, *, packed: bool = False) -> EncoderOutput:
        packing, mask = Packing(attention_mask) if packed else None, Padding(attention_mask, has_no_empty_rows=True)
        x = self.positions(x)
        x = self.dropout(x if packing is None else packing.pack(x))
        return EncoderOutput(self.stack(x, mask=mask, packing=packing), attention_mask, packing=packing)


class RecurrentTextEncoder(TextEncoder):
    """Token embeddings and recurrent layers; M is the hidden size. Further options are those of `RecurrentEncoder`."""

    def __init__(
        self, vocab_size: int | None, embed_dim: int, hidden_size: int, *, dropout: float = 0.0, **recurrence: Any
    ):
        super().__init__(vocab_size, embed_dim, dropout)
        self.stack = RecurrentEncoder(embed_dim, hidden_size, dropout=dropout, **recurrence)

    def encode(self, x: Tensor, attention_mask: Tensor, *, packed: bool = False) -> EncoderOutput:
        """`pooled` is the last state of each direction. The states are never packed."""
        states, last = self.stack(self.dropout(x), attention_mask)
        return EncoderOutput(states, attention_mask, pooled=last)


def make_positions(positions: Positions, max_positions: int, embed_dim: int, **learned: Any) -> PositionEmbedding:
    """The position embedding of this name; further options are those of `LearnedPositions`."""
    is_fixed = positions == "sinusoidal"
    return SinusoidalPositions(embed_dim) if is_fixed else LearnedPositions(max_positions, embed_dim, **learned)


def check_tokens(tokens: Tensor, attention_mask: Tensor) -> Tensor:
    """Check the inputs of an encoder; returns the mask, in which a row without tokens has its first position."""
    shape, mask_shape = tuple(tokens.shape), tuple(attention_mask.shape)
    if tokens.dim() != 2 or tokens.dtype != torch.int64 or not shape[1]:
        rule = "tokens must be int64 of shape (batch, tokens) with at least one token"
        raise SightlineError(f"{rule}, got {tokens.dtype} {shape}")
    if attention_mask.dtype != torch.bool or mask_shape != shape:
        got = f"{attention_mask.dtype} {mask_shape}"
        raise SightlineError(f"attention_mask must be bool of shape {shape}, got {got}")
    return attention_mask | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
