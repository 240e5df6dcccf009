"""Batches of labelled pixels on the device, from memory or from files that workers read."""

import signal
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ...errors import SightlineError
from .loading import ImageFiles, Images, ImageSet


class _Files(torch.utils.data.Dataset[tuple[Tensor | str, Tensor]]):
    """Image files as torch's loader wants them; for one that cannot be read, why."""

    def __init__(self, images: ImageFiles):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor | str, Tensor]:
        try:
            return self.images.read(index), self.images.labels[index]
        except ValueError as error:
            return str(error), self.images.labels[index]


def stream(
    images: Images, orders: Iterator[Tensor], workers: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """uint8 images (B, C, H, W) and labels (B,) on the device, batch by batch: those of these orders."""
    if isinstance(images, ImageSet):
        for order in orders:
            yield images.pixels[order].to(device), images.labels[order].to(device)
        return
    loader = DataLoader(
        _Files(images),
        batch_sampler=(order.tolist() for order in orders),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        collate_fn=_collate,
        worker_init_fn=_ignore_signals,
    )
    for pixels, labels in loader:
        if isinstance(pixels, str):
            raise SightlineError(pixels)
        yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def _collate(read: list[tuple[Tensor | str, Tensor]]) -> tuple[Tensor | str, Tensor]:
    """A batch, or what is wrong with an image of it."""
    images = [image for image, _ in read if not isinstance(image, str)]
    wrong = [image for image, _ in read if isinstance(image, str)]
    return wrong[0] if wrong else torch.stack(images), torch.stack([label for _, label in read])


def _ignore_signals(worker: int) -> None:
    """A terminal or a service manager sends them to the workers too; the loop saves first, then lets these go."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
