"""Sentences of like length in batches of so many tokens; shapes vary little, and everything waits on the device.

The lengths of a batch, and how many batches there are, are the same in every epoch: only which sentences of one length
come together, and the order of the batches, is drawn anew. So any batch is found by its number alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import SightlineError
from .corpora import BOS, EOS, PAD

IGNORE_INDEX = -100
"""In place of a word where none is labels, as in torch's cross entropy."""
MULTIPLE = 8
"""Lengths are filled up to a multiple of this."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pairs, filled up with PAD."""

    source: Tensor
    """int64 (B, S), each sentence with its EOS."""
    attention_mask: Tensor
    """bool (B, S), True where there is a token."""
    target: Tensor
    """int64 (B, T), what the decoder reads: BOS and the sentence."""
    labels: Tensor
    """int64 (B, T), what it should write: the sentence and EOS, -100 where nothing is labels."""


class Flat:
    """Sequences of ids end to end in one tensor, to be taken in any order."""

    def __init__(self, sequences: Sequence[Sequence[int]]):
        self.lengths = np.array([len(one) for one in sequences], dtype=np.int64)
        self.longest = -(-int(self.lengths.max(initial=1)) // MULTIPLE) * MULTIPLE
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        filling = [PAD] * self.longest  # so that a row at the end can be taken whole
        ids = np.fromiter(chain(*sequences, filling), dtype=np.int32, count=int(self.lengths.sum()) + len(filling))
        self.ids = torch.from_numpy(ids)
        self.starts, self.sizes = torch.from_numpy(starts), torch.from_numpy(self.lengths)

    def to(self, device: torch.device) -> None:
        """Bring them there; the lengths also stay here."""
        self.ids, self.starts, self.sizes = (x.to(device) for x in (self.ids, self.starts, self.sizes))

    def take(self, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """ids (B, length), PAD after the end of each row, and where they are attention_mask"""
        places = torch.arange(length, device=rows.device)
        attention_mask = places < self.sizes[rows, None]
        ids = self.ids[(self.starts[rows, None] + places).clamp_max(len(self.ids) - 1)]
        return torch.where(attention_mask, ids, PAD).long(), attention_mask


class Encoded:
    """Pairs of sentences as ids, ready to be taken in batches."""

    def __init__(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]):
        self.source = Flat([[*one, EOS] for one in source])
        self.target = Flat([[BOS, *one, EOS] for one in target])

    def __len__(self) -> int:
        return len(self.source.lengths)

    def to(self, device: torch.device) -> None:
        self.source.to(device)
        self.target.to(device)

    def batch(self, rows: Tensor, shape: tuple[int, int], blank: Tensor | None = None) -> Batch:
        """The pairs of these rows, filled up to these lengths; of the `blank` ones nothing is labels."""
        source, attention_mask = self.source.take(rows, shape[0])
        both, _ = self.target.take(rows, shape[1] + 1)
        target, labels = both[:, :-1].contiguous(), both[:, 1:]
        none = labels == PAD if blank is None else (labels == PAD) | blank[:, None]
        return Batch(source, attention_mask, target, labels.masked_fill(none, IGNORE_INDEX))

    def shapes(self) -> Array:
        """(N, 2): the length of each pair's source and target, filled up."""
        both = np.stack([self.source.lengths, self.target.lengths - 1], axis=1)
        return -(-both // MULTIPLE) * MULTIPLE


class Buckets:
    """How the pairs of a set come together in batches of at most `budget` tokens, filling included, on either side."""

    def __init__(self, shapes: Array, budget: int):
        longest = int(shapes.max())
        if budget < longest:
            raise SightlineError(
                f"batch_size counts tokens here, and must be at least those of the longest, {longest}, got {budget}"
            )
        self.keys = _keys(shapes)
        ordered = shapes[np.argsort(self.keys, kind="stable")]
        self.cuts: list[tuple[slice, tuple[int, int]]] = []
        """Of each batch, which places in order of length it takes, and the lengths to fill up to."""
        start, shape = 0, (0, 0)
        for i, (source, target) in enumerate(ordered.tolist()):
            wider = max(shape[0], source), max(shape[1], target)
            if (i + 1 - start) * max(wider) > budget:
                self.cuts.append((slice(start, i), shape))
                start, wider = i, (source, target)
            shape = wider
        self.cuts.append((slice(start, len(ordered)), shape))

    def __len__(self) -> int:
        return len(self.cuts)

    def epoch(self, random: np.random.Generator) -> tuple[Array, Array]:
        """Which pairs stand where, and in what order the cuts come."""
        return np.lexsort((random.random(len(self.keys)), self.keys)), random.permutation(len(self.cuts))


def _keys(shapes: Array) -> Array:
    """One number for each shape; like lengths have like numbers."""
    source, target = shapes[:, 0], shapes[:, 1]
    return (np.maximum(source, target) << 40) + (source << 20) + target
