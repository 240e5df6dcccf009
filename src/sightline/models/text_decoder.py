"""Text decoders: the output of any encoder in, text out, one token at a time.

`start`, `step` and `reorder` are what `sightline.decoding` needs. Greedy decoding of two images:

    greedy(decoder, EncoderOutput(regions), DecodingOptions(bos=1, eos=2))

Shapes: B batch, S source positions, T target tokens, M embedding dimension, V vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import AdditiveScore, Hard, KeyValueCache, Softmax, attend
from ..attention.functional import has_observers
from ..attention.masks import Padding
from ..attention.normalizers import Gradient, Normalizer
from ..attention.scores import make_score
from ..kernels.cross_entropy import IGNORE_INDEX
from ..kernels.decoding_graphs import Replay, Size, StepGraph, fits_graph, graph_size, has_hooks
from ..kernels.packing import Packing, packs
from ..layers import RNN, Decoder, DecoderBlock, DecoderCache, Dropout, TokenEmbedding
from ..layers.block_step import BlockStep, has_step
from ..layers.recurrent import Cell, Hidden
from .encoders import EncoderOutput, Positions, make_positions


class TextDecoder(nn.Module, ABC):
    """Base class: a decoder over the output of any encoder.

    `dim` is the width of the encoder states that the decoder works with. States of another width, `encoder_dim`, are
    projected. `tie_embeddings` uses one table for input and output tokens.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        dim: int,
        *,
        encoder_dim: int | None = None,
        tie_embeddings: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, embed_dim)
        self.output_embedding = None if tie_embeddings else TokenEmbedding(vocab_size, embed_dim)
        self.encoder_proj = None if encoder_dim in (None, dim) else nn.Linear(encoder_dim, dim)
        self.dropout = Dropout(dropout)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token embeddings: tokens int64 (B, T) -> (B, T, M)"""
        return self.embedding(tokens)

    def logits(self, x: Tensor) -> Tensor:
        """x (..., M) -> (..., V)"""
        return self._output.logits(x)

    @property
    def _output(self) -> TokenEmbedding:
        return self.embedding if self.output_embedding is None else self.output_embedding

    def forward(self, encoder_output: EncoderOutput, target: Tensor) -> Tensor:
        """Logits of the token after each target token: target int64 (B, T), which starts with BOS -> (B, T, V)"""
        return self.logits(self.decode(encoder_output, target))

    def loss(
        self, encoder_output: EncoderOutput, target: Tensor, labels: Tensor, *, label_smoothing: float = 0.0
    ) -> Tensor:
        """The summed cross entropy: target int64 (B, T), labels int64 (B, T), -100 where there is none -> ()"""
        return self._output.loss(self.decode(encoder_output, target), labels, label_smoothing=label_smoothing)

    def project(self, encoder_output: EncoderOutput) -> EncoderOutput:
        """The output with states of the width that the decoder works with."""
        if self.encoder_proj is None:
            return encoder_output
        pooled = None if encoder_output.pooled is None else self.encoder_proj(encoder_output.pooled)
        return replace(encoder_output, states=self.encoder_proj(encoder_output.states), pooled=pooled)

    @abstractmethod
    def decode(self, encoder_output: EncoderOutput, target: Tensor) -> Tensor:
        """The states that the logits are computed from: target (B, T) -> (B, T, M)"""

    @abstractmethod
    def start(self, encoder_output: EncoderOutput) -> Any:
        """The state before the first token."""

    @abstractmethod
    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        """One token per row: tokens (B,) -> logits of the next token (B, V), and the new state.

        The given state must not be used again.
        """

    @abstractmethod
    def reorder(self, state: Any, indices: Tensor, *, same_source: bool = False) -> Any:
        """The state of the rows at these indices (B',). With `same_source`, the source of every row stays the same.

        The given state must not be used again.
        """


@dataclass
class TransformerDecoderState:
    """The state of a `TransformerTextDecoder` during decoding."""

    encoder_output: EncoderOutput
    caches: list[DecoderCache]
    block_steps: list[BlockStep]
    """The blocks without their modules; empty if they have hooks or options that need the modules."""
    replay: Replay | None = None
    """A CUDA graph that computes the steps; its keys and values are newer than the caches."""

    def stop_replay(self) -> None:
        """Continue without the CUDA graph."""
        if self.replay is not None:
            layers = zip(self.replay.target(), self.caches, strict=True)
            self.caches = [DecoderCache(KeyValueCache(keys), cache.source) for keys, cache in layers]
            self.replay = None


class TransformerTextDecoder(TextDecoder):
    """Token embeddings, positions and decoder blocks: causal self-attention and cross-attention.

    Keys and values are cached during decoding. Small steps on a GPU are replayed as a CUDA graph. Further options are
    those of `DecoderBlock`.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        depth: int,
        *,
        encoder_dim: int | None = None,
        tie_embeddings: bool = True,
        positions: Positions = "sinusoidal",
        max_positions: int = 256,
        dropout: float = 0.0,
        **block: Any,
    ):
        options: dict[str, Any] = {"encoder_dim": encoder_dim, "tie_embeddings": tie_embeddings, "dropout": dropout}
        super().__init__(vocab_size, embed_dim, embed_dim, **options)
        self.positions = make_positions(positions, max_positions, embed_dim)
        self.stack = Decoder(embed_dim, num_heads, ffn_dim, depth, dropout=dropout, **block)

    def decode(self, encoder_output: EncoderOutput, target: Tensor) -> Tensor:
        source, x = self.project(encoder_output), self.dropout(self.positions(self.embed(target)))
        states: Tensor = self.stack(x, source.states, cross_mask=source.mask)
        return states

    def loss(
        self, encoder_output: EncoderOutput, target: Tensor, labels: Tensor, *, label_smoothing: float = 0.0
    ) -> Tensor:
        """The summed cross entropy: target int64 (B, T), labels int64 (B, T), -100 where there is none -> ()

        In training on a CPU, padding is packed away.
        """
        if not packs(self, target):
            return super().loss(encoder_output, target, labels, label_smoothing=label_smoothing)
        source = self.project(encoder_output).packed()
        is_used = (labels != IGNORE_INDEX).flip(1).cummax(1).values.flip(1)  # up to the last label
        packing = Packing(is_used)
        x = self.dropout(packing.pack(self.positions(self.embed(target))))
        x = self.stack(x, source.states, cross_mask=source.mask, packing=packing, source_packing=source.packing)
        return self._output.loss(x, labels[is_used].unsqueeze(0), label_smoothing=label_smoothing)

    def start(self, encoder_output: EncoderOutput) -> TransformerDecoderState:
        """The state before the first token, with the keys and values of the source."""
        source, blocks = self.project(encoder_output).without_trivial_mask(), self.stack.layers
        is_plain = not has_hooks(self) and all(has_step(block) for block in blocks)
        block_steps = [BlockStep(block) for block in blocks if isinstance(block, DecoderBlock)] if is_plain else []
        return TransformerDecoderState(source, self.stack.new_cache(source.states), block_steps)

    def step(self, state: TransformerDecoderState, tokens: Tensor) -> tuple[Tensor, TransformerDecoderState]:
        if state.replay is not None and (state.replay.is_full or not is_unobserved()):
            state.stop_replay()
        position = len(state.caches[0].target)
        if state.replay is None and position and worth_replaying(self, state.caches):  # the first step fills the caches
            size, mask = _graph_size(self, state.caches), state.encoder_output.attention_mask
            self.positions.reserve(max(size[1], position + 1))
            layers = [(cache.target.tensors[0], *cache.source.tensors) for cache in state.caches]
            state.replay = Replay(self, self._graph_step, size, layers, mask)
        if state.replay is not None:
            return state.replay.step(tokens), state
        x, source = self.positions(self.embed(tokens.unsqueeze(1)), offset=position), state.encoder_output
        if state.block_steps and is_unobserved():
            x = x[0, 0] if len(x) == 1 else x[:, 0]
            for block_step, cache in zip(state.block_steps, state.caches, strict=True):
                x = block_step(x, cache, source.mask)
            return self.logits(self.stack.norm(x.view(len(tokens), -1))), state
        x = self.stack(self.dropout(x), source.states, cross_mask=source.mask, cache=state.caches)
        return self.logits(x[:, 0]), state

    def _graph_step(self, graph: StepGraph) -> Tensor:
        """A step on the buffers of a graph: logits (R, V)"""
        mask, cross_mask = (Padding(x, has_no_empty_rows=True) for x in (graph.is_past, graph.attention_mask))
        x = self.positions.add_at(self.embed(graph.tokens.unsqueeze(1)), graph.position)
        context = x.expand(-1, graph.attention_mask.shape[1], -1)  # unused: the caches hold its keys and values
        for layer, target, source in zip(self.stack.layers, graph.target, graph.source, strict=True):
            cache = DecoderCache(_StaticCache(target, graph.position), KeyValueCache(*source))
            x = layer(x, context, mask=mask, cross_mask=cross_mask, cache=cache)
        return self.logits(self.stack.norm(x)[:, 0])

    def reorder(
        self, state: TransformerDecoderState, indices: Tensor, *, same_source: bool = False
    ) -> TransformerDecoderState:
        if state.replay is not None:
            if same_source and len(indices) == state.replay.num_rows:
                state.replay.reorder(indices)
                return state
            state.stop_replay()
        for cache in state.caches:
            cache.reorder(indices, same_source=same_source)
        if same_source:
            return state
        return replace(state, encoder_output=state.encoder_output.take(indices).without_trivial_mask())


class _StaticCache(KeyValueCache):
    """Keys and values in a fixed buffer, written at a position that is a tensor on the device."""

    def __init__(self, buffer: Tensor, position: Tensor):
        super().__init__(buffer)
        self.position = position

    def extend(self, new: list[Tensor]) -> list[Tensor]:
        self.tensors[0].index_copy_(2, self.position, new[0])
        return self.tensors


def worth_replaying(decoder: TransformerTextDecoder, caches: list[DecoderCache]) -> bool:
    """Whether steps can be a graph and gain from it: small steps on a GPU, without observers or hooks."""
    keys = caches[0].target.tensors[0]
    if not keys.is_cuda or not is_unobserved() or has_hooks(decoder):
        return False
    return fits_graph(_graph_size(decoder, caches), keys, len(caches))


def is_unobserved() -> bool:
    """Whether steps need neither gradients nor attention weights."""
    return torch.is_inference_mode_enabled() and not has_observers()


def _graph_size(decoder: TransformerTextDecoder, caches: list[DecoderCache]) -> Size:
    keys, source = caches[0].target.tensors[0], caches[0].source.tensors[0].shape[2]
    return graph_size(keys, source, decoder.positions.max_positions)


@dataclass(frozen=True)
class RecurrentDecoderState:
    """The state of a `RecurrentTextDecoder` during decoding."""

    encoder_output: EncoderOutput
    keys: Tensor
    """Encoder states as keys: (B, S, M)"""
    context: Tensor
    """The source as one vector: (B, M)"""
    hidden: Hidden


class RecurrentTextDecoder(TextDecoder):
    """Token embeddings and recurrent layers over one context vector, or with attention over all encoder states.

    Without attention, the context vector is an input of every step. With attention, the score of this name compares
    each decoder state with the encoder states; `hard` attention selects one state. The recurrence does not depend on
    the attention, so a whole target is one call. Further options are those of `TextDecoder`.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        hidden_size: int,
        *,
        cell: Cell = "gru",
        num_layers: int = 1,
        attention: str = "none",
        hard: bool = False,
        hard_gradient: Gradient = "straight_through",
        soft_share: float = 0.0,
        dropout: float = 0.0,
        **options: Any,
    ):
        super().__init__(vocab_size, embed_dim, hidden_size, dropout=dropout, **options)
        self.context = nn.Linear(hidden_size, hidden_size)
        self.attention = None
        if attention != "none":
            normalizer = Hard(gradient=hard_gradient, soft_share=soft_share) if hard else Softmax()
            self.attention = CrossAttention(hidden_size, attention, normalizer)
        input_size = embed_dim + (hidden_size if self.attention is None else 0)
        self.stack = RNN(input_size, hidden_size, cell=cell, num_layers=num_layers, dropout=dropout)
        self.bridge = nn.Linear(hidden_size, num_layers * self.stack.num_states * hidden_size)
        """Context vector to initial hidden states."""
        self.concat = nn.Linear(2 * hidden_size + (embed_dim if self.attention is None else 0), embed_dim)
        self.num_layers = num_layers

    def decode(self, encoder_output: EncoderOutput, target: Tensor) -> Tensor:
        return self._advance(self.start(encoder_output), target)[0]

    def start(self, encoder_output: EncoderOutput) -> RecurrentDecoderState:
        source = self.project(encoder_output)
        context = torch.tanh(self.context(source.pooled_states()))
        hidden = torch.tanh(self.bridge(context)).unflatten(1, (self.stack.num_states, self.num_layers, -1))
        keys = source.states if self.attention is None else self.attention.key(source.states)
        return RecurrentDecoderState(source, keys, context, tuple(x.contiguous() for x in hidden.permute(1, 2, 0, 3)))

    def step(self, state: RecurrentDecoderState, tokens: Tensor) -> tuple[Tensor, RecurrentDecoderState]:
        x, hidden = self._advance(state, tokens.unsqueeze(1))
        return self.logits(x[:, 0]), replace(state, hidden=hidden)

    def reorder(
        self, state: RecurrentDecoderState, indices: Tensor, *, same_source: bool = False
    ) -> RecurrentDecoderState:
        hidden = tuple(x.index_select(1, indices) for x in state.hidden)
        if same_source:
            return replace(state, hidden=hidden)
        keys, context = (x.index_select(0, indices) for x in (state.keys, state.context))
        return RecurrentDecoderState(state.encoder_output.take(indices), keys, context, hidden)

    def _advance(self, state: RecurrentDecoderState, target: Tensor) -> tuple[Tensor, Hidden]:
        """target (B, T) -> (B, T, M), and the hidden state after the last token"""
        tokens = self.dropout(self.embed(target))
        if self.attention is None:
            context = state.context.unsqueeze(1).expand(-1, target.shape[1], -1)
            states, hidden = self.stack(torch.cat((tokens, context), -1), state.hidden)
            features = torch.cat((states, context, tokens), -1)
        else:
            states, hidden = self.stack(tokens, state.hidden)
            features = torch.cat((states, self.attention(states, state.keys, state.encoder_output)), -1)
        return self.dropout(torch.tanh(self.concat(features))), hidden


class CrossAttention(nn.Module):
    """Attention of decoder states over encoder states, with one head and any score."""

    def __init__(self, hidden_size: int, score: str, normalizer: Normalizer):
        super().__init__()
        is_additive = score == "additive"  # keys are projected once per source instead of once per step
        additive = AdditiveScore(hidden_size, keys_projected=True) if is_additive else None
        self.score = additive or make_score(score, head_dim=hidden_size, num_heads=1)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False) if is_additive else nn.Identity()
        """Encoder states to keys."""
        self.normalizer = normalizer

    def forward(self, states: Tensor, keys: Tensor, source: EncoderOutput) -> Tensor:
        """states (B, T, M), keys (B, S, M) -> contexts (B, T, M)"""
        options: dict[str, Any] = {"score": self.score, "normalizer": self.normalizer, "mask": source.mask}
        return attend(states, keys, source.states, **options, kind="cross")
