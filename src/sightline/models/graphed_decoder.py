"""A decoder's step as a CUDA graph: recorded once for a size, replayed for every token.

A GPU has written one token of a small decoder long before Python has asked for all that it takes; a graph is asked for
once. It wants everything to stay where it lay, so keys and values have room of a fixed size, filled from the left.

Legend for all shapes: L layers, R rows, H heads, T places, S source tokens, D head head_dim, V vocabulary.
"""

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..attention import Cache
from ..attention.functional import OBSERVERS
from ..attention.masks import Padding
from ..errors import SightlineError
from ..layers import Decoder, DecoderCache, LearnedPositions, SinusoidalPositions, Words

LARGEST = 1 << 28
"""Numbers that a graph may hold. Beyond, a step is work enough to keep a GPU busy."""
KEPT, KEPT_NUMBERS = 8, 2 * LARGEST
"""Graphs of one decoder that are kept for the next sentences, and the numbers they may hold together."""
SPARE = 8
"""How many times as many rows as are asked for a graph may have: one that is there is better than one that fits."""
LEAST_PLACES, LEAST_SOURCE = 64, 16


class Writer(NamedTuple):
    """What writes the next word."""

    words: Words
    positions: SinusoidalPositions | LearnedPositions
    decoder: Decoder

    def tensors(self) -> list[Tensor]:
        """All it is made of."""
        return [one for module in self for one in (*module.parameters(), *module.buffers())]


class Size(NamedTuple):
    """How much room there is."""

    rows: int
    places: int
    source: int

    @classmethod
    def around(cls, keys: Tensor, source: int, most: int) -> "Size":
        """Room for keys and values (R, 2 H, T, D), one place more, and so much of the source; few sizes serve all."""
        rows, _, written, _ = keys.shape
        places = min(max(LEAST_PLACES, 1 << written.bit_length()), most)
        return cls(_rounded(rows), places, max(LEAST_SOURCE, _rounded(source)))

    def numbers(self, keys: Tensor, layers: int) -> int:
        """How many it takes: the room, as much again to change places in, and the source."""
        _, pairs, _, head_dim = keys.shape
        return self.rows * pairs * head_dim * layers * (2 * self.places + self.source)


def worth_replaying(writer: Writer, caches: list[DecoderCache]) -> bool:
    """Whether steps may be a graph, and gain by it: on a GPU, where nobody watches, and where they are small."""
    return caches[0].target.parts[0].is_cuda and unwatched() and not hooked(writer) and small(writer, caches)


def unwatched() -> bool:
    """Whether what happens inside a step is nobody's business, gradients' neither."""
    return torch.is_inference_mode_enabled() and not OBSERVERS


def hooked(writer: Writer) -> bool:
    """Whether anybody else's code runs inside a step, or chance does."""
    parts = (part for module in writer for part in module.modules())
    return (
        writer.decoder.training
        or _has_any_global_hook()
        or any(part._forward_hooks or part._forward_pre_hooks for part in parts)
    )


def small(writer: Writer, caches: list[DecoderCache]) -> bool:
    """Whether the next step has room in a graph."""
    keys, source = caches[0].target.parts[0], caches[0].source.parts[0].shape[2]
    return Size.around(keys, source, writer.positions.most).numbers(keys, len(caches)) <= LARGEST


class Replay:
    """A batch whose steps are a graph, from what its caches hold until its room is full or its sentences change."""

    def __init__(self, writer: Writer, caches: list[DecoderCache], attention_mask: Tensor):
        self.writer, self.given = writer, caches
        self.rows, _, self.place, _ = caches[0].target.parts[0].shape
        self.graph = _take(writer, caches, attention_mask.shape[1])
        self.graph.fill(caches, attention_mask)

    @property
    def full(self) -> bool:
        """Whether there is no room for another step."""
        return self.place == self.graph.key.size.places

    def step(self, tokens: Tensor) -> Tensor:
        """One word more: tokens (R,) -> logits of the next (R, V)"""
        if tokens.shape != (self.rows,):
            raise SightlineError(f"tokens must be one for each of {self.rows} rows, got shape {tuple(tokens.shape)}")
        self.graph.tokens[: self.rows] = tokens
        self.place += 1
        return self.graph.replay()[: self.rows].clone()

    def reorder(self, rows: Tensor) -> None:
        """These rows, in this order, each standing for its own sentence still; the graph does it before its step."""
        self.graph.rows[: self.rows] = self.graph.rows[rows]

    def caches(self) -> list[DecoderCache]:
        """What it has come to, to go on without it."""
        rows = self.graph.rows[: self.rows]
        written = self.graph.target[..., : self.place, :].index_select(1, rows)
        return [DecoderCache(_holding(one), cache.source) for one, cache in zip(written, self.given, strict=True)]

    def __del__(self) -> None:
        if hasattr(self, "graph"):  # there is none where none could be made
            _give_back(self.writer.decoder, self.graph)


class _Key(NamedTuple):
    """What a graph was recorded for."""

    size: Size
    kind: tuple[torch.dtype, torch.device, int, torch.dtype | None]
    """Of keys and values, where, on which stream, and what autocast makes of the rest."""
    where: tuple[int, ...]
    """Where the weights lie: a graph would not notice that others have come."""

    def serves(self, other: "_Key") -> bool:
        """Whether a graph of this key will do for another."""
        enough = other.size.rows <= self.size.rows <= SPARE * other.size.rows
        return enough and self.size[1:] == other.size[1:] and self[1:] == other[1:]


class _Room(Cache):
    """Keys and values at fixed places, the next of which only the device knows."""

    def __init__(self, room: Tensor, place: Tensor):
        super().__init__()
        self.parts, self.place = [room], place

    def extend(self, new: list[Tensor]) -> list[Tensor]:
        self.parts[0].index_copy_(2, self.place, new[0])
        return self.parts


class _Graph:
    """One step, recorded for a size. Its rows and places are filled as far as there are some."""

    def __init__(self, writer: Writer, key: _Key, keys: Tensor):
        rows, places, source = key.size
        _, pairs, _, head_dim = keys.shape
        layers = len(writer.decoder.layers)
        self.key, self.numbers = key, key.size.numbers(keys, layers)
        self.weights = writer.tensors()  # kept, for they are read where they lie
        self.own, self.all_places = (torch.arange(count, device=keys.device) for count in (rows, places))
        self.rows, self.tokens, self.place = self.own.clone(), torch.zeros_like(self.own), self.own.new_zeros(1)
        self.attention_mask = torch.ones(rows, source, dtype=torch.bool, device=keys.device)
        self.target = keys.new_zeros(layers, rows, pairs, places, head_dim)
        self.source = keys.new_zeros(layers, 2, rows, pairs // 2, source, head_dim)
        self.caches = [
            DecoderCache(_Room(room, self.place), _holding(*pair))
            for room, pair in zip(self.target, self.source, strict=True)
        ]
        step = partial(self._step, writer)
        self.replay = _recorded(step, keys.device) if keys.is_cuda else step

    def fill(self, caches: list[DecoderCache], attention_mask: Tensor) -> None:
        """Begin with what caches hold, and the source's attention_mask tokens (R, S)."""
        rows, source = attention_mask.shape
        self.target.zero_()
        self.source.zero_()
        for i, one in enumerate(caches):
            keys = one.target.parts[0]
            self.target[i, :rows, :, : keys.shape[2]] = keys
            for j in range(2):
                self.source[i, j, :rows, :, :source] = one.source.parts[j]
        self.attention_mask.fill_(True)[:rows] = (
            False  # a row that nobody asks for sees something too, or it is no number
        )
        self.attention_mask[:rows, :source] = attention_mask
        self.place.fill_(len(caches[0].target))
        self.rows.copy_(self.own)

    def _step(self, writer: Writer) -> Tensor:
        self.target.copy_(self.target.index_select(1, self.rows))
        self.rows.copy_(self.own)
        words, positions, decoder = writer
        written = Padding((self.all_places <= self.place).unsqueeze(0), has_no_empty_rows=True)
        attention_mask = Padding(self.attention_mask, has_no_empty_rows=True)
        kind = self.tokens.device.type
        half, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        with torch.autocast(kind, half, enabled=enabled, cache_enabled=False):  # what it kept would not stay
            x = words.read_target(self.tokens.unsqueeze(1))
            x = positions.at(x, self.place)
            context = x.expand(-1, self.attention_mask.shape[1], -1)  # known to the caches already
            for layer, one in zip(decoder.layers, self.caches, strict=True):
                x = layer(x, context, mask=written, cross_mask=attention_mask, cache=one)
            self.place += 1
            return words.write(decoder.norm(x)[:, 0])


_FREE: WeakKeyDictionary[nn.Module, list[_Graph]] = WeakKeyDictionary()
"""Of each decoder the graphs that nobody uses now, the one used last at the end."""
_ALONE = threading.RLock()
"""One at a time takes a graph, gives one back or records one."""


def _take(writer: Writer, caches: list[DecoderCache], source: int) -> _Graph:
    """A graph with room for this and one place more; no other batch goes on in it meanwhile."""
    keys, positions = caches[0].target.parts[0], writer.positions
    size = Size.around(keys, source, positions.most)
    positions.reserve(max(size.places, keys.shape[2] + 1))
    device = keys.device
    stream = torch.cuda.current_stream(device).cuda_stream if keys.is_cuda else 0
    half = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    key = _Key(size, (keys.dtype, device, stream, half), tuple(one.data_ptr() for one in writer.tensors()))
    with _ALONE:
        free = [one for one in _FREE.get(writer.decoder, []) if one.key.where == key.where]  # others serve no more
        fitting = [one for one in free if one.key.serves(key)]
        chosen = min(fitting, key=lambda one: one.key.size.rows) if fitting else _Graph(writer, key, keys)
        _FREE[writer.decoder] = [one for one in free if one is not chosen]
        return chosen


def _give_back(decoder: nn.Module, graph: _Graph) -> None:
    with _ALONE:
        free = _FREE.setdefault(decoder, [])
        free.append(graph)
        while len(free) > KEPT or sum(one.numbers for one in free) > KEPT_NUMBERS:
            del free[0]


def _rounded(count: int) -> int:
    """Up to a power of two or three quarters of one."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


def _holding(*parts: Tensor) -> Cache:
    made = Cache()
    made.parts = list(parts)
    return made


def _recorded(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Run it twice, so that all it needs is there, then record it."""
    with torch.cuda.device(device):
        graph, stream = torch.cuda.CUDAGraph(), _stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
            run()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                made = run()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return made

    return replay


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """What graphs are recorded on; one for all, for torch keeps work space for each."""
    return torch.cuda.Stream(device)
