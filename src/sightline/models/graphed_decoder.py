"""Decoding steps replayed as CUDA graphs.

A GPU finishes one step of a small decoder before Python has launched all its kernels; a captured graph needs one
launch. It needs tensors of fixed size at fixed addresses, so keys and values lie in preallocated buffers.

Shapes: L layers, R rows, H heads, P positions, S source positions, D head dimension, V vocabulary.
"""

from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..attention import KeyValueCache
from ..attention.functional import has_observers
from ..attention.masks import Padding
from ..errors import SightlineError
from ..kernels.cuda_graphs import GraphPool, capture
from ..layers import Decoder, DecoderCache, PositionEmbedding

MAX_ELEMENTS = 1 << 28
"""Elements of the buffers of one graph. Larger steps keep a GPU busy without a graph."""
MAX_SPARE_ROWS = 8
"""How many times the needed rows a graph may have: reusing one is faster than capturing one that fits."""
MIN_POSITIONS, MIN_SOURCE = 64, 16


class GraphableDecoder(Protocol):
    """The members of `TransformerTextDecoder` that a step uses."""

    positions: PositionEmbedding
    stack: Decoder

    def embed(self, tokens: Tensor, /) -> Tensor: ...
    def logits(self, x: Tensor, /) -> Tensor: ...


class GraphSize(NamedTuple):
    """Sizes of the buffers."""

    rows: int
    positions: int
    source: int

    @classmethod
    def for_step(cls, keys: Tensor, source: int, max_positions: int) -> "GraphSize":
        """Buffers for keys and values (R, 2 H, P, D), one more position and the source, rounded up to few sizes."""
        rows, _, length, _ = keys.shape
        positions = min(max(MIN_POSITIONS, 1 << length.bit_length()), max_positions)
        return cls(_round_up(rows), positions, max(MIN_SOURCE, _round_up(source)))

    def num_elements(self, keys: Tensor, layers: int) -> int:
        """Elements of the target buffer, of its reordered copy, and of the source buffer."""
        _, heads, _, head_dim = keys.shape
        return self.rows * heads * head_dim * layers * (2 * self.positions + self.source)


def worth_replaying(decoder: Any, caches: list[DecoderCache]) -> bool:
    """Whether steps can be a graph and gain from it: small steps on a GPU, without observers or hooks."""
    is_cuda = caches[0].target.tensors[0].is_cuda
    return is_cuda and is_unobserved() and not has_hooks(decoder) and fits_graph(decoder, caches)


def is_unobserved() -> bool:
    """Whether steps need neither gradients nor attention weights."""
    return torch.is_inference_mode_enabled() and not has_observers()


def has_hooks(decoder: nn.Module) -> bool:
    """Whether a step runs hooks or dropout."""
    hooks = (module._forward_hooks or module._forward_pre_hooks for module in decoder.modules())
    return decoder.training or _has_any_global_hook() or any(hooks)


def fits_graph(decoder: GraphableDecoder, caches: list[DecoderCache]) -> bool:
    """Whether the buffers of the next step are within `MAX_ELEMENTS`."""
    keys, source = caches[0].target.tensors[0], caches[0].source.tensors[0].shape[2]
    size = GraphSize.for_step(keys, source, decoder.positions.max_positions)
    return size.num_elements(keys, len(caches)) <= MAX_ELEMENTS


class Replay:
    """A batch whose steps are replayed, until its buffers are full or its sources change."""

    def __init__(self, decoder: Any, caches: list[DecoderCache], attention_mask: Tensor | None):
        self.decoder, self.initial_caches = decoder, caches
        self.num_rows, _, self.length, _ = caches[0].target.tensors[0].shape
        self.graph = _take(decoder, caches)
        self.graph.fill(caches, attention_mask)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another step."""
        return self.length == self.graph.key.size.positions

    def step(self, tokens: Tensor) -> Tensor:
        """tokens (R,) -> logits of the next token (R, V)"""
        if tokens.shape != (self.num_rows,):
            raise SightlineError(f"tokens must have shape ({self.num_rows},), got {tuple(tokens.shape)}")
        self.graph.tokens[: self.num_rows] = tokens
        self.length += 1
        return self.graph.replay()[: self.num_rows].clone()

    def reorder(self, indices: Tensor) -> None:
        """Select rows that keep their sources: indices (R,). The graph applies it before its next step."""
        self.graph.rows[: self.num_rows] = self.graph.rows[indices]

    def caches(self) -> list[DecoderCache]:
        """The caches to continue with without a graph."""
        rows = self.graph.rows[: self.num_rows]
        target = self.graph.target[..., : self.length, :].index_select(1, rows)
        return [
            DecoderCache(KeyValueCache(layer), cache.source)
            for layer, cache in zip(target, self.initial_caches, strict=True)
        ]

    def __del__(self) -> None:
        if hasattr(self, "graph"):  # absent if its capture failed
            POOL.give_back(self.decoder, self.graph)


class _Key(NamedTuple):
    """What a graph was captured for."""

    size: GraphSize
    context: tuple[torch.dtype, torch.device, int, torch.dtype | None]
    """Dtype and device of keys and values, stream, and autocast dtype."""
    addresses: tuple[int, ...]
    """Addresses of the weights, which a graph reads directly."""

    def serves(self, needed: "_Key") -> bool:
        """Whether a graph of this key can replace one of the needed key."""
        enough_rows = needed.size.rows <= self.size.rows <= MAX_SPARE_ROWS * needed.size.rows
        return enough_rows and self.size[1:] == needed.size[1:] and self[1:] == needed[1:]


class _StaticCache(KeyValueCache):
    """Keys and values in a fixed buffer, written at a position that is a tensor on the device."""

    def __init__(self, buffer: Tensor, position: Tensor):
        super().__init__(buffer)
        self.position = position

    def extend(self, new: list[Tensor]) -> list[Tensor]:
        self.tensors[0].index_copy_(2, self.position, new[0])
        return self.tensors


class _GraphedStep:
    """One captured step with its buffers."""

    def __init__(self, decoder: Any, key: _Key, keys: Tensor):
        rows, positions, source = key.size
        _, heads, _, head_dim = keys.shape
        layers = len(decoder.stack.layers)
        self.key, self.num_elements = key, key.size.num_elements(keys, layers)
        self.weights = _weights(decoder)  # referenced, so that their memory is not reused
        self.all_rows, self.all_positions = (torch.arange(count, device=keys.device) for count in (rows, positions))
        self.rows, self.tokens = self.all_rows.clone(), torch.zeros_like(self.all_rows)
        self.position = self.all_rows.new_zeros(1)
        self.attention_mask = torch.ones(rows, source, dtype=torch.bool, device=keys.device)
        self.target = keys.new_zeros(layers, rows, heads, positions, head_dim)
        self.source = keys.new_zeros(layers, 2, rows, heads // 2, source, head_dim)
        self.caches = [
            DecoderCache(_StaticCache(target, self.position), KeyValueCache(*source))
            for target, source in zip(self.target, self.source, strict=True)
        ]
        self.replay = capture(partial(self._step, decoder), keys.device)

    def fill(self, caches: list[DecoderCache], attention_mask: Tensor | None) -> None:
        """Start from caches and the attention mask (R, S) of the source, None if nothing is masked."""
        rows, _, source, _ = caches[0].source.tensors[0].shape
        self.target.zero_()
        self.source.zero_()
        for i, cache in enumerate(caches):
            keys = cache.target.tensors[0]
            self.target[i, :rows, :, : keys.shape[2]] = keys
            for j in range(2):
                self.source[i, j, :rows, :, :source] = cache.source.tensors[j]
        self.attention_mask.fill_(True)[:rows] = False  # unused rows attend to something, or they become NaN
        self.attention_mask[:rows, :source] = True if attention_mask is None else attention_mask
        self.position.fill_(len(caches[0].target))
        self.rows.copy_(self.all_rows)

    def _step(self, decoder: GraphableDecoder) -> Tensor:
        self.target.copy_(self.target.index_select(1, self.rows))
        self.rows.copy_(self.all_rows)
        mask = Padding((self.all_positions <= self.position).unsqueeze(0), has_no_empty_rows=True)
        cross_mask = Padding(self.attention_mask, has_no_empty_rows=True)
        device_type = self.tokens.device.type
        dtype, enabled = torch.get_autocast_dtype(device_type), torch.is_autocast_enabled(device_type)
        with torch.autocast(device_type, dtype, enabled=enabled, cache_enabled=False):  # the cache would be freed
            x = decoder.positions.add_at(decoder.embed(self.tokens.unsqueeze(1)), self.position)
            context = x.expand(-1, self.attention_mask.shape[1], -1)  # unused: the caches hold its keys and values
            for layer, cache in zip(decoder.stack.layers, self.caches, strict=True):
                x = layer(x, context, mask=mask, cross_mask=cross_mask, cache=cache)
            self.position += 1
            return decoder.logits(decoder.stack.norm(x)[:, 0])


POOL: GraphPool[_GraphedStep] = GraphPool(max_graphs=8, max_elements=2 * MAX_ELEMENTS)
"""Graphs of each decoder, kept for the next batches."""


def _take(decoder: Any, caches: list[DecoderCache]) -> _GraphedStep:
    """A graph with room for these caches and at least one more position."""
    keys, positions = caches[0].target.tensors[0], decoder.positions
    size = GraphSize.for_step(keys, caches[0].source.tensors[0].shape[2], positions.max_positions)
    positions.reserve(max(size.positions, keys.shape[2] + 1))
    device = keys.device
    stream = torch.cuda.current_stream(device).cuda_stream if keys.is_cuda else 0
    autocast_dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    addresses = tuple(tensor.data_ptr() for tensor in _weights(decoder))
    key = _Key(size, (keys.dtype, device, stream, autocast_dtype), addresses)
    return POOL.take(
        decoder,
        is_valid=lambda graph: graph.key.addresses == addresses,
        fits=lambda graph: graph.key.serves(key),
        make=lambda: _GraphedStep(decoder, key, keys),
    )


def _weights(decoder: nn.Module) -> list[Tensor]:
    return [*decoder.parameters(), *decoder.buffers()]


def _round_up(count: int) -> int:
    """Up to a power of two or three quarters of one."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
