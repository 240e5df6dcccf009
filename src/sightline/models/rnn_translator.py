"""The recurrent translator: a sentence is read into vectors, and written word by word from them.

Without attention all of the source must fit into one context vector, which is shown to every step of the decoder and of
the output. With attention, each state of the decoder looks at all states of the encoder. The decoder's recurrence
never waits for its attention, so a whole target is one fused call.

Legend for all shapes: B batch, S source tokens, T target tokens, W hidden_size, E hidden_size of a word, V target vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .. import limits
from ..attention import AdditiveScore, Hard, Softmax, attend
from ..attention.masks import Padding
from ..attention.scores import SCORES, make_score
from ..errors import SightlineError, check_fraction, check_int, check_max
from ..layers import RNN, Dropout, RecurrentEncoder, Words
from ..layers.recurrent import Cell, Hidden
from .languages import Languages, check_choice, checked_source

ATTENTIONS = ("none", *SCORES)


@dataclass(frozen=True, kw_only=True)
class RNNTranslatorConfig(Languages):
    """Encoder and decoder of the same hidden_size and num_layers."""

    cell: Cell = "gru"
    hidden_size: int = 512
    """Channels of a state."""
    embed_dim: int = 256
    """Channels of a word."""
    num_layers: int = 1
    """Layers of cells, in the encoder and in the decoder."""
    bidirectional: bool = True
    """Whether the encoder reads both ways, with half of the hidden_size for each."""
    attention: str = "none"
    """How a state of the decoder is compared with those of the encoder; none for one context vector alone."""
    hard: bool = False
    """Whether attention picks one word instead of mixing all; it learns by the gradient of the mixture."""
    dropout: float = 0.3
    """On the words, between the layers and before the output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("cell", self.cell, ("gru", "lstm"))
        check_choice("attention", self.attention, ATTENTIONS)
        sizes = {"hidden_size": self.hidden_size, "embed_dim": self.embed_dim, "num_layers": self.num_layers}
        check_int(1, **sizes)
        check_max(limits.MAX_MODEL_DIM, **sizes)
        check_fraction(dropout=self.dropout)
        if self.bidirectional and self.hidden_size % 2:
            raise SightlineError(f"hidden_size must be even where the encoder is bidirectional, got {self.hidden_size}")
        if self.hard and self.attention == "none":
            raise SightlineError(f"hard must be false where attention is none, got {self.hard}; choose an attention")


@dataclass(frozen=True)
class Memory:
    """A batch of sources as the encoder left them."""

    states: Tensor
    """What is mixed: (B, S, W)"""
    keys: Tensor
    """What is compared with: (B, S, W)"""
    context: Tensor
    """All of the sentence in one vector: (B, W)"""
    mask: Padding
    """Which of them are words, (B, S)"""

    def __len__(self) -> int:
        return len(self.states)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.states.device

    def rows(self, rows: Tensor) -> "Memory":
        """Some of it: rows (B',)"""
        attention_mask = self.mask.attention_mask[:, 0, 0]
        states, keys, context, attention_mask = (
            x.index_select(0, rows) for x in (self.states, self.keys, self.context, attention_mask)
        )
        return Memory(states, keys, context, Padding(attention_mask, has_no_empty_rows=True))


@dataclass(frozen=True)
class State:
    """How far a batch of translations has come."""

    memory: Memory
    hidden: Hidden


class Alignment(nn.Module):
    """Looks at the source: the decoder's states are queries, those of the encoder keys and values."""

    def __init__(self, hidden_size: int, score: str, *, hard: bool = False):
        super().__init__()
        additive = score == "additive"
        self.score = (
            AdditiveScore(hidden_size, keys_projected=True)
            if additive
            else make_score(score, head_dim=hidden_size, num_heads=1)
        )
        self.key = nn.Linear(hidden_size, hidden_size, bias=False) if additive else nn.Identity()
        """What of the keys does not depend on the query, so it is made once for each sentence."""
        self.normalizer = Hard(gradient="straight_through") if hard else Softmax()

    def forward(self, states: Tensor, memory: Memory) -> Tensor:
        """states (B, T, W) -> contexts (B, T, W)"""
        return attend(
            states,
            memory.keys,
            memory.states,
            score=self.score,
            normalizer=self.normalizer,
            mask=memory.mask,
            kind="cross",
        )


class RNNTranslator(nn.Module):
    """Words, encoder, one vector or attention, decoder, words."""

    def __init__(self, config: RNNTranslatorConfig):
        super().__init__()
        c = self.config = config
        shown = c.hidden_size if c.attention == "none" else 0
        self.words = Words(*c.vocabularies, c.embed_dim, tie_embeddings=c.tie_embeddings)
        self.dropout = Dropout(c.dropout)
        self.encoder = RecurrentEncoder(
            c.embed_dim,
            c.hidden_size,
            cell=c.cell,
            num_layers=c.num_layers,
            bidirectional=c.bidirectional,
            dropout=c.dropout,
        )
        self.context = nn.Sequential(nn.Linear(c.hidden_size, c.hidden_size), nn.Tanh())
        self.decoder = RNN(
            c.embed_dim + shown, c.hidden_size, cell=c.cell, num_layers=c.num_layers, dropout=c.dropout
        )
        self.bridge = nn.Sequential(
            nn.Linear(c.hidden_size, c.num_layers * self.decoder.num_states * c.hidden_size), nn.Tanh()
        )
        self.attention = None if c.attention == "none" else Alignment(c.hidden_size, c.attention, hard=c.hard)
        seen = 2 * c.hidden_size + (c.embed_dim if self.attention is None else 0)
        self.concat = nn.Sequential(nn.Linear(seen, c.embed_dim), nn.Tanh())

    def encode(self, source: Tensor, attention_mask: Tensor) -> Memory:
        """source (B, S), attention_mask (B, S), padding last -> memory"""
        attention_mask = checked_source(source, attention_mask)
        states, last = self.encoder(self.dropout(self.words.read_source(source)), attention_mask)
        keys = states if self.attention is None else self.attention.key(states)
        return Memory(states, keys, self.context(last), Padding(attention_mask, has_no_empty_rows=True))

    def decode(self, memory: Memory, target: Tensor) -> Tensor:
        """From each word of the target, which begins with BOS, what to write next: target (B, T) -> (B, T, E)"""
        return self._read(self.start(memory), target)[0]

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
        states = self.decode(self.encode(source, attention_mask), target)
        return (
            self.words.write(states)
            if labels is None
            else self.words.loss(states, labels, label_smoothing=label_smoothing)
        )

    def start(self, memory: Memory) -> State:
        """Before the first word."""
        first = self.bridge(memory.context).unflatten(1, (self.decoder.num_states, self.config.num_layers, -1))
        return State(memory, tuple(part.contiguous() for part in first.permute(1, 2, 0, 3)))

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """One word more: tokens (B,) -> logits of the next (B, V), and the state after it"""
        states, hidden = self._read(state, tokens.unsqueeze(1))
        return self.words.write(states[:, 0]), replace(state, hidden=hidden)

    def reorder(self, state: State, indices: Tensor, *, same_source: bool = False) -> State:
        """These rows, in this order; `same_source`: each still has its own source."""
        hidden = tuple(part.index_select(1, indices) for part in state.hidden)
        return State(state.memory if same_source else state.memory.rows(indices), hidden)

    def _read(self, state: State, target: Tensor) -> tuple[Tensor, Hidden]:
        """target (B, T) -> what to write next (B, T, E), and what is remembered after it"""
        memory = state.memory
        words = self.dropout(self.words.read_target(target))
        if self.attention is None:
            shown = memory.context.unsqueeze(1).expand(-1, target.shape[1], -1)
            states, hidden = self.decoder(torch.cat((words, shown), -1), state.hidden)
            seen = torch.cat((states, shown, words), -1)
        else:
            states, hidden = self.decoder(words, state.hidden)
            seen = torch.cat((states, self.attention(states, memory)), -1)
        return self.dropout(self.concat(seen)), hidden
