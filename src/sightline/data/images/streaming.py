"""Batches of images on a device, from memory or from files that worker processes decode."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ...errors import SightlineError
from .datasets import ImageFiles, Images, ImageSet

Batch = tuple[Tensor, Tensor] | str
"""Images and labels, or an error message."""


class _FileDataset(torch.utils.data.Dataset[Batch]):
    """Batches of image files by their indices (B,)."""

    def __init__(self, images: ImageFiles):
        self.images = images

    def __getitem__(self, indices: Tensor) -> Batch:
        try:
            return torch.stack([self.images.read(i) for i in indices.tolist()]), self.images.labels[indices]
        except SightlineError as error:
            return str(error)


def stream(
    images: Images, index_batches: Iterator[Tensor], num_workers: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield uint8 images (B, C, H, W) and labels (B,) on the device for each batch of indices (B,)."""
    if isinstance(images, ImageSet):
        for indices in index_batches:
            yield images.pixels[indices].to(device), images.labels[indices].to(device)
        return
    loader = DataLoader(
        _FileDataset(images),
        batch_size=None,
        sampler=index_batches,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=_ignore_signals,
    )
    batches = _start(loader)
    try:
        while (batch := _next(batches)) is not None:
            if isinstance(batch, str):
                raise SightlineError(batch)
            pixels, labels = batch
            yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    finally:
        del batches  # stops the workers; a reference in a traceback would keep them alive


def _next(batches: Iterator[Batch]) -> Batch | None:
    """The next batch or error message, None at the end."""
    try:
        return next(batches, None)
    except (ConnectionError, EOFError, FileNotFoundError):  # the worker died while this process took over its batch
        reason = "DataLoader worker exited while sending a batch"
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        reason = " ".join(str(error).split())
    return f"workers that read images must not be killed, got: {reason}; free memory, or lower data.num_workers"


def _start(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Start the workers. torch's handler of SIGCHLD is removed: it would raise the error of a worker anywhere."""
    handler = signal.getsignal(signal.SIGCHLD)
    batches = iter(loader)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, handler)
    return batches


def _ignore_signals(worker: int) -> None:
    """A terminal also sends signals to workers; the training loop saves a checkpoint before it stops them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
