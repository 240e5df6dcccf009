"""The Transformer as a translator: the source looks at itself, the target at its past and at the source.

Legend for all shapes: B batch, S source tokens, T target tokens, M model embed_dim, V target vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import limits
from ..attention.masks import Padding
from ..attention.scores import SCORES
from ..errors import SightlineError, check_fraction, check_int, check_max
from ..kernels.cross_entropy import IGNORE_INDEX
from ..kernels.packing import Packing
from ..layers import SIZES, Decoder, DecoderCache, Dropout, Encoder, LearnedPositions, SinusoidalPositions, Words
from .graphed_decoder import Replay, Writer, unwatched, worth_replaying
from .languages import Languages, check_choice, checked_source


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(Languages):
    """A size by its name, and what is to be other than that size says."""

    size: Literal["tiny", "small", "base"] = "tiny"
    """tiny is 128 wide with 4 + 4 blocks, small 256 with 3 + 3, base 512 with 6 + 6, as in the paper."""
    embed_dim: int | None = None
    """Channels of a token; null for the size's."""
    ffn_dim: int | None = None
    """Width of the feed-forward's middle; null for the size's."""
    num_heads: int | None = None
    """Null for the size's."""
    encoder_layers: int | None = None
    """Blocks of the encoder; null for the size's."""
    decoder_layers: int | None = None
    """Blocks of the decoder; null for the size's."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = 256
    """How many places a learned table has; waves have no end."""
    norm: Literal["pre", "post"] = "pre"
    score: str = "dot"
    """Attention score: a name in `sightline.attention.SCORES`."""
    dropout: float = 0.1
    """On the words, on what attention and feed-forward add, and inside the latter."""
    attention_dropout: float = 0.0
    """On the attention weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("size", self.size, tuple(SIZES))
        check_choice("positions", self.positions, ("sinusoidal", "learned"))
        check_choice("norm", self.norm, ("pre", "post"))
        check_choice("score", self.score, tuple(SCORES))
        form = self.form
        check_int(1, max_positions=self.max_positions, **form)
        check_max(limits.MAX_MODEL_DIM, max_positions=self.max_positions, **form)
        check_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)
        if form["embed_dim"] % form["num_heads"]:
            raise SightlineError(f"num_heads must divide embed_dim={form['embed_dim']}, got {form['num_heads']}")
        if self.positions == "sinusoidal" and form["embed_dim"] % 2:
            raise SightlineError(f"embed_dim must be even where positions are sinusoidal, got {form['embed_dim']}")

    @property
    def form(self) -> dict[str, int]:
        """Every measure, the size's where none was given."""
        size = SIZES[self.size]
        return {
            "embed_dim": size.embed_dim if self.embed_dim is None else self.embed_dim,
            "ffn_dim": size.ffn_dim if self.ffn_dim is None else self.ffn_dim,
            "num_heads": size.num_heads if self.num_heads is None else self.num_heads,
            "encoder_layers": size.depth if self.encoder_layers is None else self.encoder_layers,
            "decoder_layers": size.depth if self.decoder_layers is None else self.decoder_layers,
        }


@dataclass(frozen=True)
class Memory:
    """A batch of sources as the encoder left them."""

    states: Tensor
    """(B, S, M)"""
    mask: Padding
    """Of (B, S), one for all who look at them."""

    @property
    def attention_mask(self) -> Tensor:
        """(B, S)"""
        return self.mask.attention_mask[:, 0, 0]

    def __len__(self) -> int:
        return len(self.states)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.states.device


@dataclass
class State:
    """How far a batch of translations has come."""

    memory: Memory
    mask: Padding | None
    """Of the source; None where no row of it is padded."""
    caches: list[DecoderCache]
    replay: Replay | None = None
    """Where steps are a graph; then the caches are those it began with."""

    def stop_replaying(self) -> None:
        """Go on with caches alone."""
        if self.replay is not None:
            self.caches, self.replay = self.replay.caches(), None


class Translator(nn.Module):
    """Words and places, encoder, decoder, words."""

    def __init__(self, config: TranslatorConfig):
        super().__init__()
        c = self.config = config
        form = c.form
        embed_dim, options = form["embed_dim"], _block_options(c)
        self.words = Words(*c.vocabularies, embed_dim, tie_embeddings=c.tie_embeddings)
        self.source_positions, self.target_positions = _positions(c, embed_dim), _positions(c, embed_dim)
        self.dropout = Dropout(c.dropout)
        self.encoder = Encoder(embed_dim, form["num_heads"], form["ffn_dim"], form["encoder_layers"], **options)
        self.decoder = Decoder(embed_dim, form["num_heads"], form["ffn_dim"], form["decoder_layers"], **options)

    def encode(self, source: Tensor, attention_mask: Tensor) -> Memory:
        """source (B, S), attention_mask (B, S) -> memory"""
        mask = Padding(checked_source(source, attention_mask), has_no_empty_rows=True)
        x = self.dropout(self.source_positions(self.words.read_source(source)))
        return Memory(self.encoder(x, mask=mask), mask)

    def decode(self, memory: Memory, target: Tensor) -> Tensor:
        """From each word of the target, which begins with BOS, what to write next: target (B, T) -> (B, T, M)"""
        x = self.dropout(self.target_positions(self.words.read_target(target)))
        states: Tensor = self.decoder(x, memory.states, cross_mask=memory.mask)
        return states

    def forward(
        self,
        source: Tensor,
        attention_mask: Tensor,
        target: Tensor,
        *,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """source (B, S), attention_mask (B, S), target (B, T) -> logits (B, T, V)

        Given the `labels` words (B, T), -100 where there are none: the sum of what each costs, with no logits kept.
        """
        if labels is not None and self.training and source.device.type == "cpu" and not torch.compiler.is_compiling():
            return self._packed_loss(source, attention_mask, target, labels, label_smoothing)
        states = self.decode(self.encode(source, attention_mask), target)
        return (
            self.words.write(states)
            if labels is None
            else self.words.loss(states, labels, label_smoothing=label_smoothing)
        )

    def _packed_loss(
        self, source: Tensor, attention_mask: Tensor, target: Tensor, labels: Tensor, label_smoothing: float
    ) -> Tensor:
        """The same without a thought for filling: a CPU pays for each token, a GPU for each shape it has not seen."""
        attention_mask = checked_source(source, attention_mask)
        there = (labels != IGNORE_INDEX).flip(1).cummax(1).values.flip(1)  # up to the last word that is labels
        read, written, mask = Packing(attention_mask), Packing(there), Padding(attention_mask, has_no_empty_rows=True)
        x = self.dropout(read.pack(self.source_positions(self.words.read_source(source))))
        x = self.encoder(x, mask=mask, packing=read)
        y = self.dropout(written.pack(self.target_positions(self.words.read_target(target))))
        y = self.decoder(y, x, cross_mask=mask, packing=written, source_packing=read)
        return self.words.loss(y, labels[there].unsqueeze(0), label_smoothing=label_smoothing)

    def start(self, memory: Memory) -> State:
        """Before the first word; the source's keys and values are made here, once."""
        return State(memory, _mask(memory), self.decoder.new_cache(memory.states))

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """One word more: tokens (B,) -> logits of the next (B, V), and the state after it; the one given is spent."""
        if state.replay is not None and (state.replay.full or not unwatched()):
            state.stop_replaying()
        if state.replay is None and len(state.caches[0].target):  # the first word shows what is to be recorded
            writer = Writer(self.words, self.target_positions, self.decoder)
            if worth_replaying(writer, state.caches):
                state.replay = Replay(writer, state.caches, state.memory.attention_mask)
        if state.replay is not None:
            return state.replay.step(tokens), state
        x = self.words.read_target(tokens.unsqueeze(1))
        x = self.target_positions(x, offset=len(state.caches[0].target))
        x = self.decoder(self.dropout(x), state.memory.states, cross_mask=state.mask, cache=state.caches)
        return self.words.write(x[:, 0]), state

    def reorder(self, state: State, indices: Tensor, *, same_source: bool = False) -> State:
        """Select rows: indices (B',). With `same_source`, the source of every row stays the same. Changes the state."""
        if state.replay is not None:
            if same_source and len(indices) == state.replay.rows:
                state.replay.reorder(indices)
                return state
            state.stop_replaying()
        for cache in state.caches:
            cache.reorder(indices, same_source=same_source)
        if same_source:
            return state
        mask = Padding(state.memory.attention_mask.index_select(0, indices), has_no_empty_rows=True)
        memory = Memory(state.memory.states.index_select(0, indices), mask)
        return State(memory, None if state.mask is None else _mask(memory), state.caches)


def _mask(memory: Memory) -> Padding | None:
    return None if bool(memory.mask.attention_mask.all()) else memory.mask


def _positions(c: TranslatorConfig, embed_dim: int) -> SinusoidalPositions | LearnedPositions:
    return (
        SinusoidalPositions(embed_dim) if c.positions == "sinusoidal" else LearnedPositions(c.max_positions, embed_dim)
    )


def _block_options(c: TranslatorConfig) -> dict[str, Any]:
    return {
        "norm": c.norm,
        "score": c.score,
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
    }
