"""The Transformer as a translator: the source looks at itself, the target at its past and at the source.

Legend for all shapes: B batch, S source tokens, T target tokens, M model width, V target vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention.masks import Padding
from ..attention.packing import Packing
from ..checks import check_most, check_share, check_whole
from ..layers import SIZES, Decoder, DecoderCache, Dropout, Encoder, LearntPositions, SinusoidalPositions, Words
from ..layers.words import NONE_WANTED
from .languages import Languages, check_choice, checked_source
from .replay import Replay, Writer, unwatched, worth_replaying

MOST_CHANNELS = 1 << 14
"""No model is wider, deeper, has more heads or more places."""


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(Languages):
    """A size by its name, and what is to be other than that size says."""

    size: Literal["tiny", "small", "base"] = "tiny"
    """tiny is 128 wide with 4 + 4 blocks, small 256 with 3 + 3, base 512 with 6 + 6, as in the paper."""
    width: int | None = None
    """Channels of a token; null for the size's."""
    hidden: int | None = None
    """Width of the feed-forward's middle; null for the size's."""
    heads: int | None = None
    """Null for the size's."""
    encoder_depth: int | None = None
    """Blocks of the encoder; null for the size's."""
    decoder_depth: int | None = None
    """Blocks of the decoder; null for the size's."""
    positions: Literal["sinusoidal", "learnt"] = "sinusoidal"
    most_tokens: int = 256
    """How many places a learnt table has; waves have no end."""
    norm: Literal["pre", "post"] = "pre"
    score: Literal["dot", "cosine"] = "dot"
    dropout: float = 0.1
    """On the words, on what attention and feed-forward add, and inside the latter."""
    attention_dropout: float = 0.0
    """On the attention weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("size", self.size, tuple(SIZES))
        check_choice("positions", self.positions, ("sinusoidal", "learnt"))
        check_choice("norm", self.norm, ("pre", "post"))
        check_choice("score", self.score, ("dot", "cosine"))
        form = self.form
        check_whole(1, most_tokens=self.most_tokens, **form)
        check_most(MOST_CHANNELS, most_tokens=self.most_tokens, **form)
        check_share(dropout=self.dropout, attention_dropout=self.attention_dropout)
        if form["width"] % form["heads"]:
            raise ValueError(f"heads must divide width={form['width']}, got {form['heads']}")
        if self.positions == "sinusoidal" and form["width"] % 2:
            raise ValueError(f"width must be even where positions are sinusoidal, got {form['width']}")

    @property
    def form(self) -> dict[str, int]:
        """Every measure, the size's where none was given."""
        size = SIZES[self.size]
        return {
            "width": size.width if self.width is None else self.width,
            "hidden": size.hidden if self.hidden is None else self.hidden,
            "heads": size.heads if self.heads is None else self.heads,
            "encoder_depth": size.depth if self.encoder_depth is None else self.encoder_depth,
            "decoder_depth": size.depth if self.decoder_depth is None else self.decoder_depth,
        }


@dataclass(frozen=True)
class Memory:
    """A batch of sources as the encoder left them."""

    states: Tensor
    """(B, S, M)"""
    mask: Padding
    """Of (B, S), one for all who look at them."""

    @property
    def real(self) -> Tensor:
        """(B, S)"""
        return self.mask.real[:, 0, 0]

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
        width, options = form["width"], _block_options(c)
        self.words = Words(*c.vocabularies, width, tied=c.tied)
        self.source_positions, self.target_positions = _positions(c, width), _positions(c, width)
        self.dropout = Dropout(c.dropout)
        self.encoder = Encoder(width, form["heads"], form["hidden"], form["encoder_depth"], **options)
        self.decoder = Decoder(width, form["heads"], form["hidden"], form["decoder_depth"], **options)

    def encode(self, source: Tensor, real: Tensor) -> Memory:
        """source (B, S), real (B, S) -> memory"""
        mask = Padding(checked_source(source, real), sighted=True)
        x = self.dropout(self.source_positions(self.words.read_source(source)))
        return Memory(self.encoder(x, mask=mask), mask)

    def decode(self, memory: Memory, target: Tensor) -> Tensor:
        """From each word of the target, which begins with BOS, what to write next: target (B, T) -> (B, T, M)"""
        x = self.dropout(self.target_positions(self.words.read_target(target)))
        states: Tensor = self.decoder(x, memory.states, cross_mask=memory.mask)
        return states

    def forward(
        self, source: Tensor, real: Tensor, target: Tensor, *, wanted: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor:
        """source (B, S), real (B, S), target (B, T) -> logits (B, T, V)

        Given the `wanted` words (B, T), -100 where there are none: the sum of what each costs, with no logits kept.
        """
        if wanted is not None and self.training and source.device.type == "cpu" and not torch.compiler.is_compiling():
            return self._packed_loss(source, real, target, wanted, smoothing)
        states = self.decode(self.encode(source, real), target)
        return self.words.write(states) if wanted is None else self.words.loss(states, wanted, smoothing=smoothing)

    def _packed_loss(self, source: Tensor, real: Tensor, target: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
        """The same without a thought for filling: a CPU pays for each token, a GPU for each shape it has not seen."""
        real = checked_source(source, real)
        there = (wanted != NONE_WANTED).flip(1).cummax(1).values.flip(1)  # up to the last word that is wanted
        read, written, mask = Packing(real), Packing(there), Padding(real, sighted=True)
        x = self.dropout(read.pack(self.source_positions(self.words.read_source(source))))
        x = self.encoder(x, mask=mask, packing=read)
        y = self.dropout(written.pack(self.target_positions(self.words.read_target(target))))
        y = self.decoder(y, x, cross_mask=mask, packing=written, source_packing=read)
        return self.words.loss(y, wanted[there].unsqueeze(0), smoothing=smoothing)

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
                state.replay = Replay(writer, state.caches, state.memory.real)
        if state.replay is not None:
            return state.replay.step(tokens), state
        x = self.words.read_target(tokens.unsqueeze(1))
        x = self.target_positions(x, first=len(state.caches[0].target))
        x = self.decoder(self.dropout(x), state.memory.states, cross_mask=state.mask, cache=state.caches)
        return self.words.write(x[:, 0]), state

    def reorder(self, state: State, rows: Tensor, *, within: bool = False) -> State:
        """These rows, in this order; `within` says that each stands for its own sentence still. The state is spent."""
        if state.replay is not None:
            if within and len(rows) == state.replay.rows:
                state.replay.reorder(rows)
                return state
            state.stop_replaying()
        for cache in state.caches:
            cache.reorder(rows, within=within)
        if within:
            return state
        mask = Padding(state.memory.real.index_select(0, rows), sighted=True)
        memory = Memory(state.memory.states.index_select(0, rows), mask)
        return State(memory, None if state.mask is None else _mask(memory), state.caches)


def _mask(memory: Memory) -> Padding | None:
    return None if bool(memory.mask.real.all()) else memory.mask


def _positions(c: TranslatorConfig, width: int) -> SinusoidalPositions | LearntPositions:
    return SinusoidalPositions(width) if c.positions == "sinusoidal" else LearntPositions(c.most_tokens, width)


def _block_options(c: TranslatorConfig) -> dict[str, Any]:
    return {
        "norm": c.norm,
        "score": c.score,
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
    }
