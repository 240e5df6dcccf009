"""A decoder's step as a CUDA graph: recorded once for a size, replayed for every token.

A GPU has written one token of a small decoder long before Python has asked for all that it takes; a graph is asked for
once. It wants everything to stay where it lay, so keys and values have room of a fixed size, filled from the left.

Legend for all shapes: L layers, R rows, H heads, T places, S source tokens, D head width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..attention import Cache
from ..attention.attend import WATCHERS
from ..attention.masks import Padding
from ..layers import Decoder, DecoderCache, LearntPositions, SinusoidalPositions, Words

KEPT = 8
"""Graphs of one decoder that are kept for the next sentences."""
LARGEST, FORESEEN = 1 << 28, 256
"""Numbers that the room for keys and values may hold, for so many places. Beyond, a step is work enough for a GPU."""
LEAST_PLACES, LEAST_SOURCE = 64, 16


class Writer(NamedTuple):
    """What writes the next word."""

    words: Words
    positions: SinusoidalPositions | LearntPositions
    decoder: Decoder

    def tensors(self) -> list[Tensor]:
        """All it is made of."""
        return [one for module in self for one in (*module.parameters(), *module.buffers())]


@dataclass(frozen=True)
class Seen:
    """The keys and values of every layer."""

    target: Tensor
    """(L, R, 2 H, T, D)"""
    source: Tensor
    """(L, 2, R, H, S, D)"""
    real: Tensor
    """(R, S)"""

    @classmethod
    def of(cls, caches: list[DecoderCache], real: Tensor) -> "Seen":
        """What caches hold."""
        target = torch.stack([cache.target.parts[0] for cache in caches])
        return cls(target, torch.stack([torch.stack(cache.source.parts) for cache in caches]), real)

    def at(self, rows: Tensor) -> "Seen":
        """These rows, in this order."""
        return Seen(
            self.target.index_select(1, rows), self.source.index_select(2, rows), self.real.index_select(0, rows)
        )


def worth_replaying(writer: Writer, caches: list[DecoderCache]) -> bool:
    """Whether steps may be a graph, and gain by it: on a GPU, where nobody watches, and where they are small."""
    keys = caches[0].target.parts[0]
    if not (keys.is_cuda and torch.is_inference_mode_enabled()) or WATCHERS or keys.shape[2] == 0:
        return False
    hooked = any(part._forward_hooks or part._forward_pre_hooks for module in writer for part in module.modules())
    return not hooked and keys.numel() // keys.shape[2] * FORESEEN * len(caches) <= LARGEST


class Replayed:
    """How far a batch of translations has come, each step of which is a graph."""

    def __init__(self, writer: Writer, seen: Seen):
        self.writer, self.graph = writer, _take(writer, seen)
        self._fill(seen)

    def step(self, tokens: Tensor) -> Tensor:
        """One word more: tokens (R,) -> logits of the next (R, V)"""
        if self.place == self.graph.places:
            self._go_on(self._seen())
        self.graph.tokens[: self.rows] = tokens
        self.place += 1
        return self.graph.replay()[: self.rows].clone()

    def reorder(self, rows: Tensor, *, within: bool) -> None:
        """These rows, in this order; `within` says that each stands for its own sentence still."""
        if within:  # the graph does it, before its next step
            self.graph.rows[: self.rows] = self.graph.rows[rows]
        else:
            self._go_on(self._seen().at(rows))

    def _seen(self) -> Seen:
        graph, rows = self.graph, self.graph.rows[: self.rows]
        target = graph.target[..., : self.place, :].index_select(1, rows)
        return Seen(target, graph.source[:, :, : self.rows], graph.real[: self.rows])

    def _go_on(self, seen: Seen) -> None:
        """With this, in a graph that has room for one place more."""
        if not self.graph.fits(seen):
            graph = _take(self.writer, seen)
            self._leave()
            self.graph = graph
        self._fill(seen)

    def _fill(self, seen: Seen) -> None:
        self.rows, self.place = seen.target.shape[1], seen.target.shape[3]
        self.graph.fill(seen)

    def _leave(self) -> None:
        free = _FREE.setdefault(self.writer.decoder, [])
        free.append(self.graph)
        del free[:-KEPT]

    def __del__(self) -> None:
        if hasattr(self, "graph"):  # which a place too many prevents
            self._leave()


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

    def __init__(self, writer: Writer, key: "_Key", like: Seen):
        (_, rows, places, source), target = key.size, like.target
        self.key, self.places = key, places
        self.own, self.all_places = (torch.arange(count, device=target.device) for count in (rows, places))
        self.rows, self.tokens, self.place = self.own.clone(), torch.zeros_like(self.own), self.own.new_zeros(1)
        self.real = like.real.new_ones(rows, source)
        layers, _, pairs, _, width = target.shape
        self.target = target.new_zeros(layers, rows, pairs, places, width)
        self.source = target.new_zeros(layers, 2, rows, pairs // 2, source, width)
        self.caches = [
            DecoderCache(_Room(room, self.place), _filled(list(pair)))
            for room, pair in zip(self.target, self.source, strict=True)
        ]
        step = partial(self._step, writer)
        self.replay = _recorded(step) if target.is_cuda else step  # a graph outlives no weights: it does not keep them

    def fits(self, seen: Seen) -> bool:
        """Whether there is room for this, and for one place more."""
        _, rows, _, place, _ = seen.target.shape
        return rows <= len(self.rows) and place < self.places and seen.real.shape[1] <= self.real.shape[1]

    def fill(self, seen: Seen) -> None:
        """Begin with this."""
        _, rows, _, places, _ = seen.target.shape
        self.target.zero_()[:, :rows, :, :places] = seen.target
        self.source.zero_()[:, :, :rows, :, : seen.source.shape[4]] = seen.source
        self.real.fill_(True)[:rows] = False  # a row that nobody asks for sees something too, or it is no number
        self.real[:rows, : seen.real.shape[1]] = seen.real
        self.place.fill_(places)
        self.rows.copy_(self.own)

    def _step(self, writer: Writer) -> Tensor:
        self.target.copy_(self.target.index_select(1, self.rows))
        self.rows.copy_(self.own)
        words, positions, decoder = writer
        written = Padding((self.all_places <= self.place).unsqueeze(0), sighted=True)
        real = Padding(self.real, sighted=True)
        kind = self.tokens.device.type
        half, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        with torch.autocast(kind, half, enabled=enabled, cache_enabled=False):  # what it kept would not stay
            x = words.read_target(self.tokens.unsqueeze(1))
            x = positions.at(x, self.place)
            context = x.expand(-1, self.real.shape[1], -1)  # known to the caches already
            for layer, cache in zip(decoder.layers, self.caches, strict=True):
                x = layer(x, context, mask=written, cross_mask=real, cache=cache)
            self.place += 1
            return words.write(decoder.norm(x)[:, 0])


class _Key(NamedTuple):
    """What a graph was recorded for."""

    size: tuple[int, int, int, int]
    """Layers, rows, places, source tokens."""
    kind: tuple[torch.dtype, torch.device, torch.dtype | None]
    """Of keys and values, where, and what autocast makes of the rest."""
    where: tuple[int, ...]
    """Where the weights lie: a graph would not notice that they have gone."""


_FREE: WeakKeyDictionary[nn.Module, list[_Graph]] = WeakKeyDictionary()
"""Of each decoder the graphs that nobody uses now."""


def _take(writer: Writer, seen: Seen) -> _Graph:
    """A graph with room for this and one place more; no other batch goes on in it meanwhile."""
    layers, rows, _, place, _ = seen.target.shape
    places = min(max(LEAST_PLACES, 1 << place.bit_length()), writer.positions.most)
    writer.positions.reserve(max(places, place + 1))
    device = seen.target.device
    half = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    key = _Key(
        (layers, _rounded(rows), places, max(LEAST_SOURCE, _rounded(seen.real.shape[1]))),
        (seen.target.dtype, device, half),
        tuple(one.data_ptr() for one in writer.tensors()),
    )
    free = _FREE.get(writer.decoder, [])
    for i in reversed(range(len(free))):
        if free[i].key == key:
            return free.pop(i)
    return _Graph(writer, key, seen)


def _rounded(count: int) -> int:
    """Up to a power of two or three quarters of one, so that few sizes serve all."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


def _filled(parts: list[Tensor]) -> Cache:
    cache = Cache()
    cache.parts = parts
    return cache


def _recorded(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Run it twice, so that all it needs is there, then record it."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
        graph.capture_begin(capture_error_mode="thread_local")
        made = run()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return made

    return replay
