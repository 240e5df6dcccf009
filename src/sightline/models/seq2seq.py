"""Encoder-decoder models of text, and their configs.

Shapes: B batch, S source tokens, T target tokens, V target vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

from torch import Tensor, nn

from .. import limits
from ..attention.scores import SCORES
from ..errors import SightlineError, check_choice, check_fraction, check_int, check_max
from ..layers import SIZES
from ..layers.blocks import Norm
from ..layers.recurrent import Cell
from .encoders import EncoderOutput, Positions, RecurrentTextEncoder, TextEncoder, TransformerTextEncoder
from .text_decoder import RecurrentTextDecoder, TextDecoder, TransformerTextDecoder, packs

MIN_VOCAB_SIZE = 4
"""The special tokens pad, bos, eos and unk."""
TieEmbeddings = Literal["none", "target", "all"]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(ABC):
    """Vocabulary options of every encoder-decoder model."""

    source_vocab_size: int | None = None
    """Size of the source vocabulary; null to use that of the data."""
    target_vocab_size: int | None = None
    """Size of the target vocabulary; null to use that of the data."""
    tie_embeddings: TieEmbeddings = "target"
    """Embedding tables that are shared: none, target input with target output, or all."""

    def __post_init__(self) -> None:
        check_choice("tie_embeddings", self.tie_embeddings, get_args(TieEmbeddings))
        for name in ("source_vocab_size", "target_vocab_size"):
            if (size := getattr(self, name)) is not None:
                check_int(MIN_VOCAB_SIZE, **{name: size})
                check_max(limits.MAX_MODEL_VOCAB_SIZE, **{name: size})
        sizes = {self.source_vocab_size, self.target_vocab_size} - {None}
        if self.tie_embeddings == "all" and len(sizes) == 2:
            raise SightlineError(
                f"tie_embeddings must be target or none for different vocabularies, got all with "
                f"{self.source_vocab_size} and {self.target_vocab_size} tokens; or share the vocabulary"
            )

    def with_vocab_sizes(self, source: int, target: int) -> Self:
        """The config with these vocabulary sizes, which must not contradict it."""
        sizes: dict[str, Any] = {"source_vocab_size": source, "target_vocab_size": target}
        for name, size in sizes.items():
            if (value := getattr(self, name)) not in (None, size):
                raise SightlineError(f"model.{name} must be null or that of the data, {size}, got {value}")
        return replace(self, **sizes)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Sizes of the source and target vocabularies, which must be known."""
        source, target = self.source_vocab_size, self.target_vocab_size
        if source is None or target is None:
            raise SightlineError(f"source_vocab_size and target_vocab_size must be set, got {source} and {target}")
        return source, target

    @property
    @abstractmethod
    def depth(self) -> int:
        """The number of layers of encoder and decoder."""

    def build(self) -> tuple[TextEncoder, TextDecoder]:
        """An encoder and a decoder with random weights."""
        source, target = self.vocab_sizes
        encoder = self._encoder(None if self.tie_embeddings == "all" else source)
        return encoder, self._decoder(target, tie_embeddings=self.tie_embeddings != "none")

    @abstractmethod
    def _encoder(self, vocab_size: int | None) -> TextEncoder: ...
    @abstractmethod
    def _decoder(self, vocab_size: int, *, tie_embeddings: bool) -> TextDecoder: ...


@dataclass(frozen=True, kw_only=True)
class TransformerSeq2SeqConfig(Seq2SeqConfig):
    """Config of a Transformer: the name of a size, and the dimensions that differ from it."""

    size: Literal["tiny", "small", "base"] = "tiny"
    """tiny: embed_dim 128, 4 + 4 layers; small: 256, 3 + 3 layers; base: 512, 6 + 6 layers, as in the first paper."""
    embed_dim: int | None = None
    ffn_dim: int | None = None
    """Hidden dimension of the feed-forward networks."""
    num_heads: int | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    positions: Positions = "sinusoidal"
    max_positions: int = 256
    """Number of learned positions; sinusoidal positions have no limit."""
    norm: Norm = "pre"
    score: str = "dot"
    """Name of an attention score."""
    dropout: float = 0.1
    """Dropout of the embeddings, the residual branches and inside the feed-forward networks."""
    attention_dropout: float = 0.0
    """Dropout of the attention weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("size", self.size, SIZES)
        check_choice("positions", self.positions, get_args(Positions))
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("score", self.score, SCORES)
        dimensions = self.dimensions
        check_int(1, max_positions=self.max_positions, **dimensions)
        check_max(limits.MAX_MODEL_DIM, max_positions=self.max_positions, **dimensions)
        check_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)
        embed_dim, num_heads = dimensions["embed_dim"], dimensions["num_heads"]
        if embed_dim % num_heads:
            raise SightlineError(f"num_heads must divide embed_dim={embed_dim}, got {num_heads}")
        if self.positions == "sinusoidal" and embed_dim % 2:
            raise SightlineError(f"embed_dim must be even for sinusoidal positions, got {embed_dim}")

    @property
    def dimensions(self) -> dict[str, int]:
        """The dimensions of the size, with those that are set in the config."""
        size = SIZES[self.size]
        defaults = {"embed_dim": size.embed_dim, "ffn_dim": size.ffn_dim, "num_heads": size.num_heads}
        defaults |= {"encoder_layers": size.depth, "decoder_layers": size.depth}
        own = {name: getattr(self, name) for name in defaults}
        return {name: default if own[name] is None else own[name] for name, default in defaults.items()}

    @property
    def depth(self) -> int:
        return self.dimensions["encoder_layers"] + self.dimensions["decoder_layers"]

    def _encoder(self, vocab_size: int | None) -> TransformerTextEncoder:
        return TransformerTextEncoder(vocab_size, **self._options("encoder_layers"))

    def _decoder(self, vocab_size: int, *, tie_embeddings: bool) -> TransformerTextDecoder:
        return TransformerTextDecoder(vocab_size, **self._options("decoder_layers"), tie_embeddings=tie_embeddings)

    def _options(self, depth: str) -> dict[str, Any]:
        sizes = {name: self.dimensions[name] for name in ("embed_dim", "num_heads", "ffn_dim")}
        names = ("positions", "max_positions", "norm", "score", "dropout", "attention_dropout")
        return {**sizes, "depth": self.dimensions[depth], **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, kw_only=True)
class RecurrentSeq2SeqConfig(Seq2SeqConfig):
    """Config of a recurrent encoder-decoder."""

    cell: Cell = "gru"
    hidden_size: int = 512
    embed_dim: int = 256
    num_layers: int = 1
    """Layers of the encoder, and of the decoder."""
    bidirectional: bool = True
    """The encoder reads in both directions, each with half of the hidden size."""
    attention: str = "none"
    """Name of an attention score; none for one context vector."""
    hard: bool = False
    """Attention selects one source token. The gradient is that of the softmax."""
    dropout: float = 0.3
    """Dropout of the embeddings, between layers and before the output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("cell", self.cell, get_args(Cell))
        check_choice("attention", self.attention, ("none", *SCORES))
        sizes = {"hidden_size": self.hidden_size, "embed_dim": self.embed_dim, "num_layers": self.num_layers}
        check_int(1, **sizes)
        check_max(limits.MAX_MODEL_DIM, **sizes)
        check_fraction(dropout=self.dropout)
        if self.bidirectional and self.hidden_size % 2:
            raise SightlineError(f"hidden_size must be even for a bidirectional encoder, got {self.hidden_size}")
        if self.hard and self.attention == "none":
            raise SightlineError(f"hard must be false without attention, got {self.hard}; set attention")

    @property
    def depth(self) -> int:
        return self.num_layers

    def _encoder(self, vocab_size: int | None) -> RecurrentTextEncoder:
        return RecurrentTextEncoder(vocab_size, **self._options("bidirectional"))

    def _decoder(self, vocab_size: int, *, tie_embeddings: bool) -> RecurrentTextDecoder:
        return RecurrentTextDecoder(vocab_size, **self._options("attention", "hard"), tie_embeddings=tie_embeddings)

    def _options(self, *names: str) -> dict[str, Any]:
        shared = ("embed_dim", "hidden_size", "cell", "num_layers", "dropout")
        return {name: getattr(self, name) for name in (*shared, *names)}


class Seq2Seq(nn.Module):
    """A text encoder and a text decoder.

    Decode with `greedy(model.decoder, model.encode(source, attention_mask), options)`.
    """

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = config.build()

    def encode(self, source: Tensor, attention_mask: Tensor, *, packed: bool = False) -> EncoderOutput:
        """source int64 (B, S), attention_mask bool (B, S) -> states (B, S, M)"""
        embedding = self.decoder.embedding if self.encoder.embedding is None else None
        output: EncoderOutput = self.encoder(source, attention_mask, embedding=embedding, packed=packed)
        return output

    def forward(
        self,
        source: Tensor,
        attention_mask: Tensor,
        target: Tensor,
        *,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """source int64 (B, S), attention_mask bool (B, S), target int64 (B, T) -> logits (B, T, V)

        With labels int64 (B, T), -100 where there is none: the summed cross entropy.
        """
        if labels is None:
            return self.decoder(self.encode(source, attention_mask), target)
        output = self.encode(source, attention_mask, packed=packs(self, source))
        return self.decoder.loss(output, target, labels, label_smoothing=label_smoothing)
