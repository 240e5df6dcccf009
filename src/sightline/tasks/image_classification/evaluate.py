"""Evaluation of an image classifier: accuracy, loss and calibration on labeled images."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...data.images.datasets import Images, chunk_size
from ...data.images.streaming import stream
from ...metrics import (
    classification_metrics,
    classification_sums,
    per_class_accuracy,
    update_classification_sums,
    wilson_interval,
)
from ...names import printable
from ...predictor import SPLIT_NOTES, Progress
from ...training.task import BatchSlice

MAX_LISTED_CLASSES = 20


@dataclass(frozen=True)
class ImageEvaluation:
    """Metrics of an image classifier on a labeled set."""

    split: str
    images: int
    accuracy: float
    interval: tuple[float, float]
    """95% Wilson interval of the accuracy."""
    loss: float
    calibration_error: float
    per_class: dict[str, float]

    @classmethod
    def from_sums(cls, split: str, sums: dict[str, Tensor], classes: tuple[str, ...]) -> "ImageEvaluation":
        """Metrics from the sums of `evaluate`."""
        correct, total = float(sums["correct"].sum()), float(sums["total"].sum())
        return cls(
            split=split,
            images=int(total),
            interval=wilson_interval(correct, total),
            per_class=per_class_accuracy(sums, classes),
            **classification_metrics(sums),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        low, high = self.interval
        return (
            f"On the {self.split} set ({self.images:,} images{SPLIT_NOTES.get(self.split, '')}): "
            f"accuracy {self.accuracy:.2%} "
            f"(95% interval {low:.2%} to {high:.2%}), calibration error {self.calibration_error:.4f}."
        )

    def __str__(self) -> str:
        low, high = self.interval
        worst = sorted(self.per_class.items(), key=lambda pair: pair[1])[:MAX_LISTED_CLASSES]
        lines = [
            f"{self.split} set, {self.images:,} images{SPLIT_NOTES.get(self.split, '')}",
            f"accuracy           {self.accuracy:.2%}  (95% interval {low:.2%} to {high:.2%})",
            f"loss               {self.loss:.4f}",
            f"calibration error  {self.calibration_error:.4f}",
            "lowest accuracy by class",
            *(f"  {accuracy:7.2%}  {printable(name)}" for name, accuracy in worst),
        ]
        return "\n".join(lines)


def evaluate(
    model: nn.Module,
    images: Images,
    *,
    device: torch.device,
    batch_size: int,
    num_workers: int,
    batch_slice: BatchSlice | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Classification sums over this process's share of the images.

    All processes make the same number of forward passes, as FSDP requires. Where the images do not divide evenly, the
    last image is evaluated again and not counted.
    """
    share, count = batch_slice or BatchSlice(), len(images)
    indices = torch.arange(share.rank, -(-count // share.world_size) * share.world_size, share.world_size)
    counted = (indices < count).to(device)
    indices = indices.clamp_max(count - 1).to(images.labels.device)
    sums = classification_sums(len(images.classes), device)
    size, done = chunk_size(images, batch_size), 0
    batches = stream(images, iter(indices.split(size)), num_workers, device)
    for (pixels, labels), mask in zip(batches, counted.split(size), strict=True):
        update_classification_sums(sums, model(pixels.float() / 255).float(), labels, mask=mask)
        done += len(labels)
        if progress is not None:
            progress(done, len(indices))
    return sums


def logits_and_labels(
    model: nn.Module, images: Images, *, device: torch.device, batch_size: int, num_workers: int
) -> tuple[Tensor, Tensor]:
    """Logits (N, C) as float64, and labels (N,), of all images."""
    batches = torch.arange(len(images)).split(chunk_size(images, batch_size))
    streamed = stream(images, iter(batches), num_workers, device)
    logits, labels = zip(*((model(pixels.float() / 255).double(), labels) for pixels, labels in streamed), strict=True)
    return torch.cat(logits), torch.cat(labels)
