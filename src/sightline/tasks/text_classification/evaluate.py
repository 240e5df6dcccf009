"""Evaluation of a text classifier: accuracy, loss and calibration on labeled texts."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...data.text.batching import PackedSequences
from ...data.text.labeled import LabeledText
from ...errors import SightlineError
from ...metrics import classification_sums, update_classification_sums
from ...predictor import Progress
from ...training.task import BatchSlice
from ..classification import ClassifierEvaluation

TOKENS_PER_BATCH = {"cpu": 1 << 13, "cuda": 1 << 15}
"""Tokens that are classified together, padding included."""


@dataclass(frozen=True, kw_only=True)
class TextEvaluation(ClassifierEvaluation):
    """Metrics of a text classifier on a labeled set."""

    noun = "texts"
    texts: int


def label_indices(text: LabeledText, classes: tuple[str, ...]) -> Tensor:
    """The index of the class of each text: int64 (N,)"""
    index = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(text.labels) - index.keys())
    if unknown:
        known = ", ".join(classes[:10]) + ("…" if len(classes) > 10 else "")
        raise SightlineError(f"labels must be classes of the training set, {known}, got {unknown[0]!r:.100}")
    return torch.tensor([index[label] for label in text.labels])


def logits_of(
    model: Any, encoded: PackedSequences, batch_slice: BatchSlice | None = None, progress: Progress | None = None
) -> Tensor:
    """Logits of the texts at indices rank, rank + world_size and so on, in this order: float32 (N, C)

    All processes make the same number of forward passes. Where the texts do not divide evenly, the last text is
    classified again.
    """
    share, device, count = batch_slice or BatchSlice(), encoded.ids.device, len(encoded)
    end = -(-count // share.world_size) * share.world_size
    indices = [min(i, count - 1) for i in range(share.rank, end, share.world_size)]
    order = sorted(range(len(indices)), key=lambda i: (encoded.lengths[indices[i]], i))
    size = max(1, TOKENS_PER_BATCH[device.type] // int(encoded.lengths.max()))
    parts = []
    for start in range(0, len(order), size):
        chunk = [indices[i] for i in order[start : start + size]]
        tokens, attention_mask = encoded.take(torch.tensor(chunk, device=device), int(encoded.lengths[chunk].max()))
        parts.append(model(tokens, attention_mask).float())
        if progress is not None:
            progress(min(start + size, len(order)), len(order))
    logits = torch.cat(parts)
    return torch.empty_like(logits).index_copy_(0, torch.tensor(order, device=device), logits)


def evaluate(logits: Tensor, labels: Tensor, batch_slice: BatchSlice | None = None) -> dict[str, Tensor]:
    """Classification sums of the logits of `logits_of`; labels (N,) are those of all texts."""
    share = batch_slice or BatchSlice()
    own = torch.arange(len(logits), device=labels.device) * share.world_size + share.rank
    sums = classification_sums(logits.shape[1], logits.device)
    update_classification_sums(sums, logits, labels[own.clamp_max(len(labels) - 1)], mask=own < len(labels))
    return sums
