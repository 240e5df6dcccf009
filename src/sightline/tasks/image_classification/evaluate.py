"""Evaluation of an image classifier: accuracy, loss and calibration on labeled images."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...data.images.datasets import Images, chunk_size
from ...data.images.streaming import stream
from ...metrics import classification_sums, update_classification_sums
from ...predictor import Progress
from ...training.task import BatchSlice
from ..classification import ClassifierEvaluation


@dataclass(frozen=True, kw_only=True)
class ImageEvaluation(ClassifierEvaluation):
    """Metrics of an image classifier on a labeled set."""

    noun = "images"
    images: int


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
