"""Batches of token sequences with similar lengths, limited by their number of tokens.

The lengths of each batch and the number of batches are the same in every epoch. An epoch only changes which sequences
of equal length share a batch, and the order of batches. A batch is therefore determined by its index.

Legend for all shapes: B batch, S source tokens, T target tokens.
"""

import itertools
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ... import seeds
from ...errors import check
from ...kernels.cross_entropy import IGNORE_INDEX
from .tokenizers import SpecialTokens

LENGTH_MULTIPLE = 8
"""Sequences are padded to a multiple of this length."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class PairBatch:
    """A padded batch of sentence pairs."""

    source: Tensor
    """int64 (B, S), sentences that end in EOS."""
    attention_mask: Tensor
    """bool (B, S), True for tokens, False for padding."""
    target: Tensor
    """int64 (B, T), decoder inputs that start with BOS."""
    labels: Tensor
    """int64 (B, T), next tokens that end in EOS, `IGNORE_INDEX` for padding."""


class PackedSequences:
    """Token sequences stored in one tensor without padding."""

    def __init__(self, sequences: Sequence[Sequence[int]], pad_id: int):
        self.pad_id = pad_id
        self.lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        padding = [pad_id] * int(padded_length(self.lengths.max(initial=1)))  # indices past the last sequence are valid
        num_ids = int(self.lengths.sum()) + len(padding)
        self.ids = torch.from_numpy(np.fromiter(chain(*sequences, padding), dtype=np.int32, count=num_ids))
        self._starts, self._lengths = torch.from_numpy(starts), torch.from_numpy(self.lengths)

    def to(self, device: torch.device) -> Self:
        """A copy whose tensors are on a device. `lengths` stays on the CPU."""
        moved = copy(self)
        moved.ids, moved._starts, moved._lengths = (x.to(device) for x in (self.ids, self._starts, self._lengths))
        return moved

    def __len__(self) -> int:
        return len(self.lengths)

    def shapes(self) -> Array:
        """Padded length of each sequence, (number of sequences, 1)."""
        return padded_length(self.lengths)[:, None]

    def take(self, indices: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """ids int64 (B, length), padded or truncated, and attention_mask bool (B, length) for indices (B,)."""
        positions = torch.arange(length, device=indices.device)
        attention_mask = positions < self._lengths[indices, None]
        ids = self.ids[(self._starts[indices, None] + positions).clamp_max(len(self.ids) - 1)]
        return torch.where(attention_mask, ids, self.pad_id).long(), attention_mask


class EncodedPairs:
    """Sentence pairs as token ids."""

    def __init__(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], special_tokens: SpecialTokens):
        pad, bos, eos = (special_tokens.id(name) for name in ("pad", "bos", "eos"))
        self.special_tokens = special_tokens
        self.source = PackedSequences([[*ids, eos] for ids in source], pad)
        self.target = PackedSequences([[bos, *ids, eos] for ids in target], pad)

    def __len__(self) -> int:
        return len(self.source.lengths)

    def to(self, device: torch.device) -> Self:
        """A copy on a device."""
        moved = copy(self)
        moved.source, moved.target = self.source.to(device), self.target.to(device)
        return moved

    def batch(self, indices: Tensor, shape: tuple[int, ...], *, labeled: bool = True) -> PairBatch:
        """Batch of pairs (B,), padded to `shape` = (S, T), with labels or without."""
        source, attention_mask = self.source.take(indices, shape[0])
        ids, _ = self.target.take(indices, shape[1] + 1)
        target, labels = ids[:, :-1].contiguous(), ids[:, 1:]
        has_no_label = (labels == self.source.pad_id) | (not labeled)
        return PairBatch(source, attention_mask, target, labels.masked_fill(has_no_label, IGNORE_INDEX))

    def shapes(self) -> Array:
        """Padded source and target length of each pair, (number of pairs, 2)."""
        return padded_length(np.stack([self.source.lengths, self.target.lengths - 1], axis=1))


class LengthBuckets:
    """Assignment of sequences to batches of at most `max_tokens` tokens per side, padding included.

    Args:
        shapes: (N, sides) padded lengths of each sequence, one column per side of a pair.
        max_tokens: Maximum of batch size times padded length.
    """

    def __init__(self, shapes: Array, max_tokens: int):
        longest = int(shapes.max())
        rule = f"batch_size counts tokens and must be at least the longest sentence, {longest}"
        check(max_tokens >= longest, f"{rule}, got {max_tokens}")
        self._sort_keys = shapes.max(axis=1)  # by the longest side, then by each side
        for column in shapes.T:
            self._sort_keys = (self._sort_keys << 20) + column
        self.batches: list[tuple[slice, tuple[int, ...]]] = []
        """Slice of the epoch's sequence order, and padded shape, of each batch."""
        start, shape = 0, (0,) * shapes.shape[1]
        for i, lengths in enumerate(shapes[np.argsort(self._sort_keys, kind="stable")].tolist()):
            larger = tuple(map(max, shape, lengths))
            if (i + 1 - start) * max(larger) > max_tokens:
                self.batches.append((slice(start, i), shape))
                start, larger = i, tuple(lengths)
            shape = larger
        self.batches.append((slice(start, len(shapes)), shape))

    def __len__(self) -> int:
        return len(self.batches)

    def steps(
        self, first_step: int, seed: int, device: torch.device
    ) -> Iterator[tuple[int, Array, Tensor, tuple[int, ...]]]:
        """Every batch from `first_step` on, endlessly: step, indices of its sequences as an array and as a tensor on a
        device, and padded shape. The order of each epoch follows from the seed.
        """
        epoch, order, batch_order, indices = -1, np.empty(0), np.empty(0), torch.empty(0)
        for step in itertools.count(first_step):
            if step // len(self) != epoch:
                epoch = step // len(self)
                order, batch_order = self.epoch(seeds.make_generator(seed, seeds.ORDER, epoch))
                indices = torch.from_numpy(order).to(device)  # once per epoch, as it waits for the device
            batch, shape = self.batches[batch_order[step % len(self)]]
            yield step, order[batch], indices[batch], shape

    def epoch(self, generator: np.random.Generator) -> tuple[Array, Array]:
        """Order of sequences and order of batches in an epoch."""
        num_sequences = len(self._sort_keys)
        sequence_order = np.lexsort((generator.random(num_sequences), self._sort_keys))
        return sequence_order, generator.permutation(len(self.batches))


def padded_length(lengths: Any) -> Any:
    """Lengths rounded up to `LENGTH_MULTIPLE`."""
    return -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
