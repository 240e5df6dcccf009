"""Text decoders as modules over plain tensors, for export: the encoder, and one step of the decoder with its cache.

The encoder gives all that a step needs. A step takes one token per row, and returns logits and the new state.

Shapes: B batch, S source positions, T tokens before this one, M embedding dimension, V vocabulary, L layers, H heads.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import KeyValueCache
from ..attention.masks import Padding
from ..layers import DecoderCache
from .encoders import EncoderOutput
from .text_decoder import (
    RecurrentDecoderState,
    RecurrentTextDecoder,
    TextDecoder,
    TransformerTextDecoder,
)


class DecoderStep(nn.Module):
    """One step of a decoder: `forward(tokens, **tensors, attention_mask)` returns logits and the new state.

    `tokens` int64 (B,), the tensors of `start`, and `attention_mask` bool (B, S) or None for all positions.
    """

    source_names: tuple[str, ...]
    """Tensors of the source, the same in every step."""
    state_names: tuple[str, ...]
    """Tensors that every step replaces."""
    dimensions: dict[str, dict[int, str]]
    """Varying dimensions of these tensors: batch, source and past."""

    def __init__(self, decoder: Any):
        super().__init__()
        self.decoder = decoder

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors of `start`."""
        return (*self.source_names, *self.state_names)

    @abstractmethod
    def start(self, encoder_output: EncoderOutput) -> tuple[Tensor, ...]:
        """The tensors before the first token, in the order of `names`."""


class _AppendedCache(KeyValueCache):
    """Keys and values to which a step appends, without buffers."""

    def extend(self, new: list[Tensor]) -> list[Tensor]:
        self.tensors = [torch.cat(pair, 2) for pair in zip(self.tensors, new, strict=True)]
        return self.tensors


class TransformerStep(DecoderStep):
    """A step of a `TransformerTextDecoder`.

    cross_keys and cross_values (L, B, H, S, D), past (L, B, 2 H, T, D): keys and values of the tokens before this one.
    """

    source_names, state_names = ("cross_keys", "cross_values"), ("past",)
    dimensions = {  # noqa: RUF012
        "cross_keys": {1: "batch", 3: "source"},
        "cross_values": {1: "batch", 3: "source"},
        "past": {1: "batch", 3: "past"},
    }

    def start(self, encoder_output: EncoderOutput) -> tuple[Tensor, ...]:
        source = self.decoder.project(encoder_output)
        caches = [layer.cross_attention.cache_context(source.states).tensors for layer in self.decoder.stack.layers]
        keys, values = (torch.stack([tensors[i] for tensors in caches]) for i in range(2))
        attention = self.decoder.stack.layers[0].attention
        shape = (len(caches), keys.shape[1], 2 * attention.num_heads, 0, attention.head_dim)
        return keys, values, keys.new_zeros(shape)

    def forward(
        self,
        tokens: Tensor,
        cross_keys: Tensor,
        cross_values: Tensor,
        past: Tensor,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """tokens (B,), attention_mask (B, S) -> logits (B, V), past (L, B, 2 H, T + 1, D)"""
        decoder, length = self.decoder, past.shape[3]
        x = decoder.positions.add_at(decoder.embed(tokens.unsqueeze(1)), torch.arange(length, length + 1))
        sources = zip(cross_keys, cross_values, strict=True)
        caches = [
            DecoderCache(_AppendedCache(own), KeyValueCache(*source)) for own, source in zip(past, sources, strict=True)
        ]
        context = x.expand(-1, cross_keys.shape[3], -1)  # unused: the caches hold its keys and values
        mask = None if attention_mask is None else Padding(attention_mask, has_no_empty_rows=True)
        x = decoder.stack(x, context, cross_mask=mask, cache=caches)
        return decoder.logits(x[:, 0]), torch.stack([cache.target.tensors[0] for cache in caches])


class RecurrentStep(DecoderStep):
    """A step of a `RecurrentTextDecoder`: states and keys (B, S, M), context (B, M); hidden and cell (L, B, M)."""

    source_names = ("states", "keys", "context")

    def __init__(self, decoder: RecurrentTextDecoder):
        super().__init__(decoder)
        self.state_names = ("hidden", "cell")[: decoder.stack.num_states]
        rows = {"states": {0: "batch", 1: "source"}, "keys": {0: "batch", 1: "source"}, "context": {0: "batch"}}
        self.dimensions = rows | {name: {1: "batch"} for name in self.state_names}

    def start(self, encoder_output: EncoderOutput) -> tuple[Tensor, ...]:
        state = self.decoder.start(encoder_output)
        return state.encoder_output.states.clone(), state.keys.clone(), state.context, *state.hidden

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        keys: Tensor,
        context: Tensor,
        hidden: Tensor,
        cell: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """tokens (B,), attention_mask (B, S) -> logits (B, V), hidden (L, B, M), and the cell of an LSTM"""
        source = EncoderOutput(states, attention_mask)
        before = (hidden,) if cell is None else (hidden, cell)
        logits, after = self.decoder.step(RecurrentDecoderState(source, keys, context, before), tokens)
        return logits, *after.hidden


STEPS: dict[type[TextDecoder], type[DecoderStep]] = {
    TransformerTextDecoder: TransformerStep,
    RecurrentTextDecoder: RecurrentStep,
}
"""The step of each class of decoders."""


def make_step(decoder: TextDecoder) -> DecoderStep:
    """The step of a decoder."""
    return STEPS[type(decoder)](decoder)
