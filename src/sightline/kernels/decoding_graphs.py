"""Decoding steps replayed as CUDA graphs.

A GPU finishes one step of a small decoder before Python has launched all its kernels; a captured graph needs one
launch. It needs tensors of fixed size at fixed addresses, so keys and values lie in preallocated buffers.

Shapes: L layers, R rows, H heads, P positions, S source positions, D head dimension, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..errors import SightlineError
from .cuda_graphs import GraphPool, capture

MAX_ELEMENTS = 1 << 28
"""Elements of the buffers of one graph. Larger steps keep a GPU busy without a graph."""
MAX_SPARE_ROWS = 8
"""How many times the needed rows a graph may have: reusing one is faster than capturing one that fits."""
MIN_POSITIONS, MIN_SOURCE = 64, 16
Size = tuple[int, int, int]
"""Rows, positions and source positions of the buffers."""
Layers = list[tuple[Tensor, ...]]
"""Of each layer, keys and values of the tokens (R, 2 H, P, D), and keys and values of the source, each (R, H, S, D)."""
POOL = GraphPool(max_graphs=8, max_elements=2 * MAX_ELEMENTS)
"""Graphs of each decoder, kept for the next batches."""


class StepGraph:
    """One captured step with its buffers. `step` computes logits (R, V) from the buffers and writes keys and values."""

    def __init__(self, decoder: nn.Module, step: "Step", keys: Tensor, layers: int, size: Size, context: Any):
        rows, positions, source = size
        self.weights = _weights(decoder)  # referenced, so that their memory is not reused
        _, heads, _, head_dim = keys.shape
        self.size, self.context, self.num_elements = size, context, num_elements(size, keys, layers)
        self.all_rows, self.all_positions = (torch.arange(count, device=keys.device) for count in (rows, positions))
        self.rows, self.tokens = self.all_rows.clone(), torch.zeros_like(self.all_rows)
        self.position = self.all_rows.new_zeros(1)
        """The position of `tokens`."""
        self.attention_mask = torch.ones(rows, source, dtype=torch.bool, device=keys.device)
        self.target = keys.new_zeros(layers, rows, heads, positions, head_dim)
        """Keys and values of the tokens so far: (L, R, 2 H, P, D)"""
        self.source = keys.new_zeros(layers, 2, rows, heads // 2, source, head_dim)
        """Keys and values of the source: (L, 2, R, H, S, D)"""
        self.replay = capture(partial(self._run, step), keys.device)

    @property
    def is_past(self) -> Tensor:
        """The positions that a step attends to: bool (1, P)"""
        return (self.all_positions <= self.position).unsqueeze(0)

    def fill(self, layers: Layers, attention_mask: Tensor | None) -> None:
        """Start from these layers and this mask, as in `Replay`."""
        rows, _, source, _ = layers[0][1].shape
        self.target.zero_()
        self.source.zero_()
        for i, (target, *keys_and_values) in enumerate(layers):
            self.target[i, :rows, :, : target.shape[2]] = target
            for j, tensor in enumerate(keys_and_values):
                self.source[i, j, :rows, :, :source] = tensor
        self.attention_mask.fill_(True)[:rows] = False  # unused rows attend to something, or they become NaN
        self.attention_mask[:rows, :source] = True if attention_mask is None else attention_mask
        self.position.fill_(layers[0][0].shape[2])
        self.rows.copy_(self.all_rows)

    def _run(self, step: "Step") -> Tensor:
        self.target.copy_(self.target.index_select(1, self.rows))
        self.rows.copy_(self.all_rows)
        device_type = self.tokens.device.type
        dtype, enabled = torch.get_autocast_dtype(device_type), torch.is_autocast_enabled(device_type)
        with torch.autocast(device_type, dtype, enabled=enabled, cache_enabled=False):  # the cache would be freed
            logits = step(self)
        self.position += 1
        return logits


Step = Callable[[StepGraph], Tensor]


class Replay:
    """A batch whose steps are replayed, until its buffers are full or its sources change.

    Args:
        decoder: The module whose weights `step` reads.
        step: See `StepGraph`.
        size: See `graph_size`.
        layers: The caches to start from.
        attention_mask: bool (R, S); None masks nothing.
    """

    def __init__(self, decoder: nn.Module, step: Step, size: Size, layers: Layers, attention_mask: Tensor | None):
        keys, device = layers[0][0], layers[0][0].device
        self.num_rows, _, self.length, _ = keys.shape
        stream = torch.cuda.current_stream(device).cuda_stream if keys.is_cuda else 0
        autocast_dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        addresses = tuple(tensor.data_ptr() for tensor in _weights(decoder))
        context = addresses, keys.dtype, device, stream, autocast_dtype

        def fits(graph: StepGraph) -> bool:
            enough_rows = size[0] <= graph.size[0] <= MAX_SPARE_ROWS * size[0]
            return enough_rows and graph.size[1:] == size[1:] and graph.context == context

        self.graph: StepGraph = POOL.take(
            decoder,
            is_valid=lambda graph: graph.context[0] == addresses,  # a graph reads the weights directly
            fits=fits,
            make=lambda: StepGraph(decoder, step, keys, len(layers), size, context),
        )
        finalize(self, POOL.give_back, decoder, self.graph)
        self.graph.fill(layers, attention_mask)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another step."""
        return self.length == self.graph.size[1]

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

    def target(self) -> Tensor:
        """Keys and values of the tokens so far, to continue without a graph: (L, R, 2 H, P, D)"""
        return self.graph.target[..., : self.length, :].index_select(1, self.graph.rows[: self.num_rows])


def graph_size(keys: Tensor, source: int, max_positions: int) -> Size:
    """Buffers for keys and values (R, 2 H, P, D), one more position and the source, rounded up to few sizes."""
    rows, _, length, _ = keys.shape
    positions = min(max(MIN_POSITIONS, 1 << length.bit_length()), max_positions)
    return _round_up(rows), positions, max(MIN_SOURCE, _round_up(source))


def num_elements(size: Size, keys: Tensor, layers: int) -> int:
    """Elements of the target buffer, of its reordered copy, and of the source buffer."""
    (rows, positions, source), (_, heads, _, head_dim) = size, keys.shape
    return rows * heads * head_dim * layers * (2 * positions + source)


def fits_graph(size: Size, keys: Tensor, layers: int) -> bool:
    """Whether the buffers are within `MAX_ELEMENTS`."""
    return num_elements(size, keys, layers) <= MAX_ELEMENTS


def has_hooks(module: nn.Module) -> bool:
    """Whether a step runs hooks or dropout."""
    hooks = (child._forward_hooks or child._forward_pre_hooks for child in module.modules())
    return module.training or _has_any_global_hook() or any(hooks)


def _weights(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _round_up(count: int) -> int:
    """Up to a power of two or three quarters of one."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
