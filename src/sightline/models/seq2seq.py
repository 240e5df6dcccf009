"""Encoder-decoder models of text, and their configs.

Shapes: B batch, S source tokens, T target tokens, V target vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from ..attention.scores import SCORES
from ..config import Config, Fraction, ModelDim, choice
from ..errors import SightlineError, check, check_choice
from ..kernels.packing import packs
from ..layers import SIZES
from ..layers.blocks import Norm
from ..layers.recurrent import Cell
from .encoders import (
    EncoderOutput,
    Positions,
    RecurrentTextEncoder,
    TextEncoder,
    TransformerTextEncoder,
    VocabSize,
    check_dimensions,
)
from .text_decoder import RecurrentTextDecoder, TextDecoder, TransformerTextDecoder


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Config, ABC):
    """Vocabulary options of every encoder-decoder model."""

    data_keys = ("source_vocab_size", "target_vocab_size")

    source_vocab_size: VocabSize | None = None
    """Size of the source vocabulary; null to use that of the data."""
    target_vocab_size: VocabSize | None = None
    """Size of the target vocabulary; null to use that of the data."""
    tie_embeddings: Literal["none", "target", "all"] = "target"
    """Embedding tables that are shared: none, target input with target output, or all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {self.source_vocab_size, self.target_vocab_size} - {None}
        check(
            self.tie_embeddings != "all" or len(sizes) < 2,
            f"tie_embeddings must be target or none for different vocabularies, got all with {self.source_vocab_size} "
            f"and {self.target_vocab_size} tokens; or share the vocabulary",
        )

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

    @abstractmethod
    def build(self) -> tuple[TextEncoder, TextDecoder]:
        """An encoder and a decoder with random weights."""

    def _options(self, *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options of the encoder and of the decoder: the fields of these names, and those of their vocabularies."""
        (source, target), tie = self.vocab_sizes, self.tie_embeddings
        shared = {name: getattr(self, name) for name in names}
        encoder = {"vocab_size": None if tie == "all" else source, **shared}
        return encoder, {"vocab_size": target, "tie_embeddings": tie != "none", **shared}


@dataclass(frozen=True, kw_only=True)
class TransformerSeq2SeqConfig(Seq2SeqConfig):
    """Config of a Transformer: the name of a size, and the dimensions that differ from it."""

    dependent_keys: ClassVar[dict[str, tuple[str, ...]]] = {
        "size": ("embed_dim", "ffn_dim", "num_heads", "encoder_layers", "decoder_layers")
    }
    """Fields that follow from another one if they are null."""

    size: Literal["tiny", "small", "base"] = "tiny"
    """tiny: embed_dim 128, 4 + 4 layers; small: 256, 3 + 3 layers; base: 512, 6 + 6 layers, as in the first paper."""
    embed_dim: ModelDim | None = None
    ffn_dim: ModelDim | None = None
    """Hidden dimension of the feed-forward networks."""
    num_heads: ModelDim | None = None
    encoder_layers: ModelDim | None = None
    decoder_layers: ModelDim | None = None
    positions: Positions = "sinusoidal"
    max_positions: ModelDim = 256
    """Number of learned positions; sinusoidal positions have no limit."""
    norm: Norm = "pre"
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
        size = SIZES[self.size]
        defaults = {"embed_dim": size.embed_dim, "ffn_dim": size.ffn_dim, "num_heads": size.num_heads}
        defaults |= {"encoder_layers": size.depth, "decoder_layers": size.depth}
        return {name: getattr(self, name) or default for name, default in defaults.items()}

    @property
    def depth(self) -> int:
        return self.dimensions["encoder_layers"] + self.dimensions["decoder_layers"]

    def build(self) -> tuple[TransformerTextEncoder, TransformerTextDecoder]:
        names = ("positions", "max_positions", "norm", "score", "dropout", "attention_dropout")
        encoder, decoder = self._options(*names)
        sizes: dict[str, Any] = self.dimensions
        encoder["depth"], decoder["depth"] = sizes.pop("encoder_layers"), sizes.pop("decoder_layers")
        return TransformerTextEncoder(**encoder, **sizes), TransformerTextDecoder(**decoder, **sizes)


@dataclass(frozen=True, kw_only=True)
class RecurrentSeq2SeqConfig(Seq2SeqConfig):
    """Config of a recurrent encoder-decoder."""

    cell: Cell = "gru"
    hidden_size: ModelDim = 512
    embed_dim: ModelDim = 256
    num_layers: ModelDim = 1
    """Layers of the encoder, and of the decoder."""
    bidirectional: bool = True
    """The encoder reads in both directions, each with half of the hidden size."""
    attention: str = "none"
    """Name of an attention score; none for one context vector."""
    hard: bool = False
    """Attention selects one source token. The gradient is that of the softmax."""
    dropout: Fraction = 0.3
    """Dropout of the embeddings, between layers and before the output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_odd = self.bidirectional and self.hidden_size % 2
        check(not is_odd, f"hidden_size must be even for a bidirectional encoder, got {self.hidden_size}")
        check_choice("attention", self.attention, ("none", *SCORES))
        has_attention = self.attention != "none"
        check(has_attention or not self.hard, f"hard must be false without attention, got {self.hard}; set attention")

    @property
    def depth(self) -> int:
        return self.num_layers

    def build(self) -> tuple[RecurrentTextEncoder, RecurrentTextDecoder]:
        encoder, decoder = self._options("embed_dim", "hidden_size", "cell", "num_layers", "dropout")
        return (
            RecurrentTextEncoder(**encoder, bidirectional=self.bidirectional),
            RecurrentTextDecoder(**decoder, attention=self.attention, hard=self.hard),
        )


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
