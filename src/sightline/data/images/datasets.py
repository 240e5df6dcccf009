"""Labeled images in memory or in files, and their splits."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import limits, seeds
from ...errors import SightlineError, check_int
from ...names import display_path, printable
from .archives import open_archive
from .reading import ImageHeader, check_image_options, read_header, read_image

Indices = Sequence[int] | Tensor | np.ndarray[Any, Any]
Progress = Callable[[int, int], None]
"""Called with the number of finished items and the total."""
SPLIT_NAMES = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
"""Names of splits in folders and files, and the split of each."""
DECODING_THREADS = 8
"""Threads that decode image files."""
CHUNK_BYTES = 1 << 22
"""Bytes of images that are processed at a time."""
QUEUE_SIZE = 4096
"""Image files submitted to the decoding threads at a time."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labeled images in memory."""

    pixels: Tensor
    """uint8 (N, C, H, W), square, with 1 or 3 channels."""
    labels: Tensor
    """int64 (N,), class indices."""
    classes: tuple[str, ...]
    """Class names."""

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
        """Side length of the images."""
        return self.pixels.shape[-1]

    @property
    def channels(self) -> int:
        """1 for grayscale, 3 for color."""
        return self.pixels.shape[1]

    def take(self, indices: Indices) -> "ImageSet":
        """The images at these indices."""
        indices = _check_indices(indices, len(self)).to(self.labels.device)
        return ImageSet(self.pixels[indices], self.labels[indices], self.classes)

    def to(self, device: torch.device) -> "ImageSet":
        """Move to a device."""
        return ImageSet(self.pixels.to(device), self.labels.to(device), self.classes)

    def read(self, index: int) -> Tensor:
        """One image, uint8 (C, H, W)."""
        return self.pixels[index]


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Labeled images in files, decoded when they are read."""

    paths: tuple[Path, ...]
    """Image files, or their paths inside `archive`."""
    labels: Tensor
    """int64 (N,), class indices."""
    classes: tuple[str, ...]
    """Class names."""
    size: int
    """Side length that images are resized to."""
    channels: int
    """1 for grayscale, 3 for color."""
    archive: Path | None = None
    """Zip file that contains the images."""

    def __post_init__(self) -> None:
        check_int(1, size=self.size, channels=self.channels)
        check_image_options(self.size, self.channels)
        _check_labels(self.labels, len(self.paths), self.classes)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Indices) -> "ImageFiles":
        """The images at these indices."""
        indices = _check_indices(indices, len(self))
        paths = tuple(self.paths[i] for i in indices.tolist())
        return ImageFiles(paths, self.labels[indices], self.classes, self.size, self.channels, self.archive)

    def to(self, device: torch.device) -> "ImageFiles":
        """The files themselves; images are decoded on the CPU."""
        return self

    def read(self, index: int) -> Tensor:
        """Decode one image, uint8 (C, H, W)."""
        source, name = open_image_file(self.paths[index], self.archive)
        return read_image(source, size=self.size, channels=self.channels, name=name)

    def load(self, progress: Progress | None = None) -> ImageSet:
        """Decode all images into memory. One error lists the files that cannot be read."""
        pixels = torch.empty(len(self), self.channels, self.size, self.size, dtype=torch.uint8)

        def decode(index: int) -> str | None:
            try:
                pixels[index] = self.read(index)
            except SightlineError as error:
                return str(error)
            return None

        errors = []
        with ThreadPoolExecutor(DECODING_THREADS) as pool:
            for start in range(0, len(self), QUEUE_SIZE):  # a queued image takes 2 KB
                indices = range(start, min(start + QUEUE_SIZE, len(self)))
                for done, error in enumerate(pool.map(decode, indices), start=start + 1):
                    if error:
                        errors.append(error)
                    if progress:
                        progress(done, len(self))
        raise_unreadable(errors)
        return ImageSet(pixels, self.labels, self.classes)


Images = ImageSet | ImageFiles


def open_image_file(path: Path, archive: Path | None) -> tuple[Path | bytes, str]:
    """Source of an image for `read_image`, and its name in error messages."""
    if archive is None:
        return path, display_path(path)
    return open_archive(archive).read(path.as_posix()), f"{printable(str(path))} in {display_path(archive)}"


def read_file_header(path: Path, archive: Path | None) -> ImageHeader:
    """Header of an image file on disk or in an archive."""
    return read_header(*open_image_file(path, archive))


def load_splits(splits: Mapping[str, Images], progress: Progress | None = None) -> dict[str, ImageSet]:
    """Decode all image files of a data set into memory; `progress` counts the images of all splits."""
    total = sum(len(images) for images in splits.values() if isinstance(images, ImageFiles))
    loaded: dict[str, ImageSet] = {}
    done = 0
    for split, images in splits.items():
        if isinstance(images, ImageSet):
            loaded[split] = images
            continue
        report = None if progress is None else _offset(progress, done, total)
        loaded[split] = images.load(report)
        done += len(images)
    return loaded


def _offset(progress: Progress, offset: int, total: int) -> Progress:
    return lambda done, _: progress(offset + done, total)


def chunk_size(images: Images, maximum: int) -> int:
    """Images to process at a time, so that they take about `CHUNK_BYTES`: 1 to `maximum`."""
    return max(1, min(maximum, CHUNK_BYTES // (images.channels * images.size * images.size)))


@dataclass(frozen=True, eq=False)
class Splits:
    """Training, validation and test set of a data set."""

    train: Images
    validation: Images | None = None
    test: Images | None = None
    format: str = "images"
    """Name of the source format."""
    class_disjoint: bool = False
    """Whether the splits have different classes."""

    def __post_init__(self) -> None:
        for split, images in self.available.items():
            for name in ("size", "channels") if self.class_disjoint else ("classes", "size", "channels"):
                expected, value = getattr(self.train, name), getattr(images, name)
                if expected != value:
                    raise SightlineError(
                        f"{split} must have the {name} of train, {expected!r:.200}, got {value!r:.200}"
                    )
        if self.class_disjoint:
            check_disjoint({split: images.classes for split, images in self.available.items()})

    @property
    def available(self) -> dict[str, Images]:
        """All splits that exist, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: images for split, images in splits.items() if images is not None}


def split(images: Images, fraction: float, seed: int) -> tuple[Images, Images]:
    """Split images at random into the rest and a held-out fraction, stratified by class.

    Each class with images has at least one image in both parts.
    """
    if not 0 < fraction < 1:
        raise SightlineError(f"fraction must be above 0 and below 1, got {fraction}")
    check_int(0, seed=seed)
    labels = images.labels.cpu().numpy()
    generator = seeds.make_generator(seed, seeds.DATA)
    is_held_out = np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(images.classes):
        indices = np.flatnonzero(labels == label)
        if len(indices) == 1:
            raise SightlineError(f"each class must have at least 2 images to be split, got 1 of class {name!r}")
        if len(indices):
            count = min(max(round(fraction * len(indices)), 1), len(indices) - 1)
            is_held_out[generator.permutation(indices)[:count]] = True
    return images.take(np.flatnonzero(~is_held_out)), images.take(np.flatnonzero(is_held_out))


def check_class_names(classes: Sequence[str]) -> None:
    """Class names must be non-empty, valid Unicode and distinct."""
    if not classes:
        raise SightlineError("classes must have at least one name, got none")
    for name in classes:
        if not isinstance(name, str) or not name.strip():
            raise SightlineError(f"classes must be non-empty names, got {name!r}")
        if any("\ud800" <= char <= "\udfff" for char in name):  # undecodable bytes of a folder name
            raise SightlineError(f"class names must be valid Unicode, got {name!r}; rename the folder")
    duplicates = [name for name, count in Counter(classes).items() if count > 1]
    if duplicates:
        raise SightlineError(f"class names must be distinct, got {duplicates[0]!r} more than once")


def check_disjoint(classes: Mapping[str, Sequence[str]]) -> None:
    """No class may be in two splits."""
    split_of: dict[str, str] = {}
    for split, names in classes.items():
        for name in names:
            if name in split_of:
                raise SightlineError(
                    f"a class must be in one split, got {name!r} in {split_of[name]} and in {split}; remove it from one"
                )
        split_of |= dict.fromkeys(names, split)


def check_memory(count: int, channels: int, size: int) -> None:
    """Images that are held in memory must be within the limit."""
    if (total := count * channels * size * size) > limits.MAX_IMAGE_SET_BYTES:
        raise SightlineError(
            f"images in memory must take at most {limits.MAX_IMAGE_SET_BYTES:,} bytes, got {total:,} for {count:,} "
            f"images of {size} x {size} x {channels}; use a smaller size or fewer images"
        )


def raise_unreadable(errors: Sequence[str], max_listed: int = 3) -> None:
    """Raise one error for all unreadable images, if any."""
    if len(errors) == 1:
        raise SightlineError(errors[0])
    if errors:
        more = f"\n  and {len(errors) - max_listed:,} more" if len(errors) > max_listed else ""
        listed = "".join(f"\n  {error}" for error in errors[:max_listed])
        raise SightlineError(f"all images must be readable, got {len(errors):,} that are not:{listed}{more}")


def _check_labels(labels: Tensor, count: int, classes: tuple[str, ...]) -> None:
    check_class_names(classes)
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise SightlineError(f"labels must be int64 of shape (N,), got {labels.dtype} of shape {tuple(labels.shape)}")
    if count != len(labels):
        raise SightlineError(f"labels must have one entry for each of {count:,} images, got {len(labels):,}")
    if not count:
        raise SightlineError("a data set must have at least one image, got none")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        raise SightlineError(f"labels must be 0 to {len(classes) - 1} for {len(classes)} classes, got {low} to {high}")


def _check_indices(indices: Indices, count: int) -> Tensor:
    tensor = torch.as_tensor(indices)
    if tensor.ndim != 1 or not len(tensor) or tensor.dtype in (torch.bool, torch.float32, torch.float64):
        raise SightlineError(f"indices must be a non-empty list of integers, got {indices!r:.100}")
    tensor = tensor.long().cpu()
    low, high = int(tensor.min()), int(tensor.max())
    if low < 0 or high >= count:
        raise SightlineError(f"indices must be 0 to {count - 1}, got {low} to {high}")
    return tensor
