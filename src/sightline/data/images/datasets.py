"""Labelled images, in memory or still in their files, and how they are divided."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import SightlineError, check_int
from .reading import check_form, read_image

Indices = Sequence[int] | Tensor | np.ndarray[Any, Any]
Progress = Callable[[int, int], None]
"""Called with how many are done, and of how many."""
THREADS = 8
"""How many files are decoded at once."""
BYTES_AT_ONCE = 1 << 22
"""Of images that are worked on in one go."""
QUEUED = 4096
"""How many files wait to be decoded."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images, all of them in memory."""

    pixels: Tensor
    """uint8 (N, C, H, W), square, of 1 or 3 channels."""
    labels: Tensor
    """int64 (N), the index of a class each."""
    classes: tuple[str, ...]
    """The name of each class."""

    def __post_init__(self) -> None:
        shape = tuple(self.pixels.shape)
        if self.pixels.dtype != torch.uint8 or len(shape) != 4:
            raise SightlineError(
                f"pixels must be uint8 of shape (N, C, H, W), got {self.pixels.dtype} of shape {shape}"
            )
        if shape[1] not in (1, 3):
            raise SightlineError(f"pixels must have 1 or 3 channels, got shape {shape}")
        if shape[2] != shape[3] or shape[2] < 1:
            raise SightlineError(f"pixels must be square, got {shape[3]} x {shape[2]}")
        _check_labels(self.labels, shape[0], self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> int:
        """The side of every image."""
        return self.pixels.shape[-1]

    @property
    def channels(self) -> int:
        """1 for gray, 3 for color."""
        return self.pixels.shape[1]

    def take(self, indices: Indices) -> "ImageSet":
        """These images, in this order."""
        chosen = _indices(indices, len(self)).to(self.labels.device)
        return ImageSet(self.pixels[chosen], self.labels[chosen], self.classes)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Labelled images that stay in their files until they are read."""

    paths: tuple[Path, ...]
    """One file each."""
    labels: Tensor
    """int64 (N), the index of a class each."""
    classes: tuple[str, ...]
    """The name of each class."""
    size: int
    """The side every image is brought to."""
    channels: int
    """1 for gray, 3 for color."""

    def __post_init__(self) -> None:
        check_int(1, size=self.size, channels=self.channels)
        check_form(self.size, self.channels)
        _check_labels(self.labels, len(self.paths), self.classes)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Indices) -> "ImageFiles":
        """These images, in this order."""
        chosen = _indices(indices, len(self))
        paths = tuple(self.paths[i] for i in chosen.tolist())
        return ImageFiles(paths, self.labels[chosen], self.classes, self.size, self.channels)

    def read(self, index: int) -> Tensor:
        """One image, uint8 (C, H, W)."""
        return read_image(self.paths[index], size=self.size, channels=self.channels)

    def loaded(self, progress: Progress | None = None) -> ImageSet:
        """All of them in memory; the files that cannot be read are named in one error."""
        pixels = decoded(self.read, len(self), self.size, self.channels, progress)
        return ImageSet(pixels, self.labels, self.classes)


Images = ImageSet | ImageFiles


def decoded(
    read: Callable[[int], Tensor], count: int, size: int, channels: int, progress: Progress | None = None
) -> Tensor:
    """So many images, read several at once: uint8 (N, C, H, W); what cannot be read is named in one error."""
    pixels = torch.empty(count, channels, size, size, dtype=torch.uint8)

    def fill(index: int) -> str | None:
        try:
            pixels[index] = read(index)
        except ValueError as error:
            return str(error)
        return None

    problems = []
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, count, QUEUED):  # each image that waits in the pool takes 2 KB
            some = range(start, min(start + QUEUED, count))
            for done, problem in enumerate(pool.map(fill, some), start=start + 1):
                if problem:
                    problems.append(problem)
                if progress:
                    progress(done, count)
    refuse(problems)
    return pixels


def at_once(images: Images, most: int) -> int:
    """How many of these images to take in one go: fewer where they are large, at least one."""
    return max(1, min(most, BYTES_AT_ONCE // (images.channels * images.size * images.size)))


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set: what to learn from, and where there is, what to choose and to judge by."""

    train: Images
    validation: Images | None = None
    test: Images | None = None
    kind: str = "images"
    """Which format it was read from."""

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            other = getattr(self, name)
            for what in ("classes", "size", "channels") if other is not None else ():
                ours, theirs = getattr(self.train, what), getattr(other, what)
                if ours != theirs:
                    raise SightlineError(f"{name} must have the {what} of train, {ours!r:.200}, got {theirs!r:.200}")


def split(images: Images, share: float, seed: int) -> tuple[Images, Images]:
    """The rest and the held-out share, divided class by class, the same for the same seed.

    Each class that has images at all has at least one on both sides.
    """
    if not 0 < share < 1:
        raise SightlineError(f"share must be above 0 and below 1, got {share}")
    check_int(0, seed=seed)
    labels = images.labels.cpu().numpy()
    random = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(images.classes):
        own = np.flatnonzero(labels == label)
        if len(own) == 1:
            raise SightlineError(f"each class must have at least 2 images to be divided, got 1 of class {name!r}")
        if len(own):
            count = min(max(round(share * len(own)), 1), len(own) - 1)
            held[random.permutation(own)[:count]] = True
    return images.take(np.flatnonzero(~held)), images.take(np.flatnonzero(held))


def check_classes(classes: Sequence[str]) -> None:
    """Class names must be there, and differ."""
    if not classes:
        raise SightlineError("classes must name at least one class, got none")
    for name in classes:
        if not isinstance(name, str) or not name.strip():
            raise SightlineError(f"classes must be names that are not empty, got {name!r}")
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise SightlineError(f"class names must differ, got {twice[0]!r} more than once")


def refuse(problems: Sequence[str], shown: int = 3) -> None:
    """One error for all unreadable files: the first few, and how many there are."""
    if len(problems) == 1:
        raise SightlineError(problems[0])
    if problems:
        more = f"\n  and {len(problems) - shown:,} more" if len(problems) > shown else ""
        listed = "".join(f"\n  {problem}" for problem in problems[:shown])
        raise SightlineError(f"every image must be readable, got {len(problems):,} that are not:{listed}{more}")


def _check_labels(labels: Tensor, count: int, classes: tuple[str, ...]) -> None:
    check_classes(classes)
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise SightlineError(f"labels must be int64 of shape (N,), got {labels.dtype} of shape {tuple(labels.shape)}")
    if count != len(labels):
        raise SightlineError(f"there must be one label for each image, got {count:,} images and {len(labels):,} labels")
    if not count:
        raise SightlineError("a set must hold at least one image, got none")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        raise SightlineError(f"labels must be 0 to {len(classes) - 1} for {len(classes)} classes, got {low} to {high}")


def _indices(indices: Indices, count: int) -> Tensor:
    chosen = torch.as_tensor(indices)
    if chosen.ndim != 1 or not len(chosen) or chosen.dtype in (torch.bool, torch.float32, torch.float64):
        raise SightlineError(f"indices must be a list of integers that is not empty, got {indices!r:.100}")
    chosen = chosen.long().cpu()
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= count:
        raise SightlineError(f"indices must be 0 to {count - 1}, got {low} to {high}")
    return chosen
