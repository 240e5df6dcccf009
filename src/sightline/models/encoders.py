"""Text encoders, and the output that every encoder gives a decoder or a head.

Shapes: B batch, S source tokens or other source positions, M embedding dimension.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.masks import Padding
from ..attention.scores import SCORES
from ..config import Config, Fraction, ModelDim, NonNegativeInt, Positive, at_least, at_most, choice
from ..errors import SightlineError, check, check_divides
from ..kernels.packing import Packing
from ..layers import (
    SIZES,
    Dropout,
    Encoder,
    LearnedPositions,
    PositionEmbedding,
    RecurrentEncoder,
    SinusoidalPositions,
    TokenEmbedding,
)
from ..layers.blocks import ACTIVATIONS, Norm

Positions = Literal["sinusoidal", "learned"]
VocabSize = Annotated[int, at_least(4), at_most("MAX_MODEL_VOCAB_SIZE")]


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

    def unpacked(self) -> "EncoderOutput":
        """The output with states that are not packed."""
        if self.packing is None:
            return self
        return EncoderOutput(self.packing.unpack(self.states), self.attention_mask, self.pooled)

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

    def __init__(self, vocab_size: int | None, embed_dim: int, dropout: float, *, scale_embeddings: bool = True):
        super().__init__()
        self.embedding = None if vocab_size is None else TokenEmbedding(vocab_size, embed_dim, scaled=scale_embeddings)
        self.dropout = Dropout(dropout)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor, *, embedding: TokenEmbedding | None = None, packed: bool = False
    ) -> EncoderOutput:
        """tokens int64 (B, S), attention_mask bool (B, S), padding last -> states (B, S, M)

        `packed` packs the states, if the encoder supports it.
        """
        embedding, attention_mask = self._checked(tokens, attention_mask, embedding)
        return self.encode(embedding(tokens), attention_mask, packed=packed)

    def _checked(
        self, tokens: Tensor, attention_mask: Tensor, embedding: TokenEmbedding | None
    ) -> tuple[TokenEmbedding, Tensor]:
        """The token embedding to use and the checked mask."""
        embedding = self.embedding if embedding is None else embedding
        assert embedding is not None, "an encoder without a vocab_size takes an embedding"
        return embedding, check_tokens(tokens, attention_mask)

    @abstractmethod
    def encode(self, x: Tensor, attention_mask: Tensor, *, packed: bool = False) -> EncoderOutput:
        """Token embeddings x (B, S, M), attention_mask (B, S) -> states (B, S, M)"""


class TransformerTextEncoder(TextEncoder):
    """Token embeddings, positions and encoder blocks. Further options are those of `EncoderBlock`.

    `num_segments` adds a learned vector for the segment of each token. `embedding_norm` normalizes the sum of the
    embeddings. `scale_embeddings` scales token embeddings by sqrt(embed_dim).
    """

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
        num_segments: int = 0,
        embedding_norm: bool = False,
        scale_embeddings: bool = True,
        dropout: float = 0.0,
        **block: Any,
    ):
        super().__init__(vocab_size, embed_dim, dropout, scale_embeddings=scale_embeddings)
        self.positions = make_positions(positions, max_positions, embed_dim)
        self.segments = nn.Parameter(0.02 * torch.randn(num_segments, embed_dim)) if num_segments else None
        self.norm = nn.LayerNorm(embed_dim, block.get("norm_eps", 1e-5)) if embedding_norm else None
        self.stack = Encoder(embed_dim, num_heads, ffn_dim, depth, dropout=dropout, **block)

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor,
        *,
        embedding: TokenEmbedding | None = None,
        packed: bool = False,
        segment_ids: Tensor | None = None,
    ) -> EncoderOutput:
        """tokens int64 (B, S), attention_mask bool (B, S), padding last -> states (B, S, M)

        segment_ids int64 (B, S), below num_segments; by default 0 for all tokens.
        """
        embedding, attention_mask = self._checked(tokens, attention_mask, embedding)
        x = embedding(tokens)
        if self.segments is not None:
            x = x + (self.segments[0] if segment_ids is None else F.embedding(segment_ids, self.segments))
        elif segment_ids is not None:
            raise SightlineError("segment_ids must be None for an encoder without segments, got a tensor")
        return self.encode(x, attention_mask, packed=packed)

    def encode(self, x: Tensor, attention_mask: Tensor, *, packed: bool = False) -> EncoderOutput:
        packing, mask = Packing(attention_mask) if packed else None, Padding(attention_mask, has_no_empty_rows=True)
        x = self.positions(x)
        x = x if packing is None else packing.pack(x)
        x = self.dropout(x if self.norm is None else self.norm(x))
        return EncoderOutput(self.stack(x, mask=mask, packing=packing), attention_mask, packing=packing)


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(Config):
    """Config of a `TransformerTextEncoder`: the name of a size, and the dimensions that differ from it.

    BERT has norm post, positions learned, num_segments 2, embedding_norm, no scale_embeddings and norm_eps 1e-12.
    """

    data_keys = ("vocab_size", "num_classes")
    dependent_keys: ClassVar[dict[str, tuple[str, ...]]] = {"size": ("embed_dim", "ffn_dim", "num_heads", "depth")}
    """Fields that follow from another one if they are null."""

    size: Literal["tiny", "small", "base"] = "tiny"
    """tiny: embed_dim 128, 4 layers; small: 256, 3 layers; base: 512, 6 layers."""
    embed_dim: ModelDim | None = None
    ffn_dim: ModelDim | None = None
    """Hidden dimension of the feed-forward networks."""
    num_heads: ModelDim | None = None
    depth: ModelDim | None = None
    """Number of encoder blocks."""
    vocab_size: VocabSize | None = None
    """Size of the vocabulary; null for that of the tokenizer."""
    positions: Positions = "learned"
    max_positions: ModelDim = 256
    """Number of learned positions; sinusoidal positions have no limit."""
    num_segments: NonNegativeInt = 0
    """Number of segment ids, each with a learned vector; 0 for none."""
    norm: Norm = "pre"
    embedding_norm: bool = False
    """Normalize the sum of token, position and segment embeddings."""
    scale_embeddings: bool = True
    """Scale token embeddings by the square root of embed_dim."""
    norm_eps: Positive = 1e-5
    """Epsilon of the layer norms."""
    activation: Annotated[str, choice(ACTIVATIONS)] = "gelu"
    score: Annotated[str, choice(SCORES)] = "dot"
    """Name of an attention score."""
    dropout: Fraction = 0.1
    """Dropout of the embeddings, the residual branches and inside the feed-forward networks."""
    attention_dropout: Fraction = 0.0
    """Dropout of the attention weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dimensions(self.dimensions, self.positions)

    @property
    def dimensions(self) -> dict[str, int]:
        """The dimensions of the size, with those that are set in the config."""
        return {name: getattr(self, name) or default for name, default in asdict(SIZES[self.size]).items()}

    def build_encoder(self) -> TransformerTextEncoder:
        """An encoder with random weights."""
        if self.vocab_size is None:
            raise SightlineError("vocab_size must be set, got null")
        options = {f.name: getattr(self, f.name) for f in fields(TextEncoderConfig) if f.name != "size"}
        return TransformerTextEncoder(**options | self.dimensions)


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


def check_dimensions(dimensions: Mapping[str, int], positions: Positions) -> None:
    """Check that the embedding dimension of a Transformer fits its heads and its positions."""
    embed_dim = dimensions["embed_dim"]
    check_divides("embed_dim", embed_dim, num_heads=dimensions["num_heads"])
    is_odd = positions == "sinusoidal" and embed_dim % 2
    check(not is_odd, f"embed_dim must be even for sinusoidal positions, got {embed_dim}")


def make_positions(positions: Positions, max_positions: int, embed_dim: int, **learned: Any) -> PositionEmbedding:
    """The position embedding of this name; further options are those of `LearnedPositions`."""
    is_fixed = positions == "sinusoidal"
    return SinusoidalPositions(embed_dim) if is_fixed else LearnedPositions(max_positions, embed_dim, **learned)


def check_tokens(tokens: Tensor, attention_mask: Tensor) -> Tensor:
    """Check the inputs of an encoder; returns the mask, in which a row without tokens has its first position.

    The mask is of bools, or of integers, 0 for padding, as the tokenizers of Hugging Face return it.
    """
    shape, mask_shape = tuple(tokens.shape), tuple(attention_mask.shape)
    if tokens.dim() != 2 or tokens.dtype != torch.int64 or not shape[1]:
        rule = "tokens must be int64 of shape (batch, tokens) with at least one token"
        raise SightlineError(f"{rule}, got {tokens.dtype} {shape}")
    if attention_mask.is_floating_point() or attention_mask.is_complex() or mask_shape != shape:
        got = f"{attention_mask.dtype} {mask_shape}"
        raise SightlineError(f"attention_mask must be of bools or integers and of shape {shape}, got {got}")
    attention_mask = attention_mask.bool()
    if attention_mask.is_cpu and not torch.compiler.is_compiling():  # on a GPU it would wait for the device
        is_last = not (attention_mask[:, 1:] & ~attention_mask[:, :-1]).any()
        check(is_last, "padding must come last in attention_mask, got tokens after padding; pad on the right")
    return attention_mask | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
