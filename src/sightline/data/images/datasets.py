"""Labeled images in memory or in files, and their splits."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from ... import limits, seeds
from ...errors import SightlineError, check, check_int
from ...names import display_path, printable
from ...progress import Progress as Progress
from .archives import open_archive
from .reading import check_image_options, read_image

Indices = Sequence[int] | Tensor | np.ndarray[Any, Any]
SPLIT_NAMES = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
"""Names of splits in folders and files, and the split of each."""
DECODING_THREADS = 8
"""Threads that decode image files."""
CHUNK_BYTES = 1 << 22
"""Bytes of images that are processed at a time."""
QUEUE_SIZE = 4096
"""Image files submitted to the decoding threads at a time."""
_SURROGATES = re.compile("[\ud800-\udfff]")  # undecodable bytes of a folder name


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
        dtype, shape = self.pixels.dtype, tuple(self.pixels.shape)
        has_images = dtype == torch.uint8 and len(shape) == 4
        check(has_images, f"pixels must be uint8 of shape (N, C, H, W), got {dtype} of shape {shape}")
        check(shape[1] in (1, 3), f"pixels must have 1 or 3 channels, got shape {shape}")
        check(shape[2] == shape[3] > 0, f"pixels must be square, got {shape[3]} x {shape[2]}")
        _check_labels(self.labels, len(self.pixels), self.classes)

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
        return _changed(self, pixels=self.pixels[indices], labels=self.labels[indices])

    def to(self, device: torch.device) -> "ImageSet":
        """Move to a device."""
        return _changed(self, pixels=self.pixels.to(device), labels=self.labels.to(device))

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
        return _changed(self, paths=paths, labels=self.labels[indices])

    def to(self, device: torch.device) -> "ImageFiles":
        """The files themselves; images are decoded on the CPU."""
        return self

    def read(self, index: int) -> Tensor:
        """Decode one image, uint8 (C, H, W)."""
        source, name = open_image_file(self.paths[index], self.archive)
        return read_image(source, size=self.size, channels=self.channels, name=name)

    def load(self, progress: Progress | None = None, offset: int = 0, total: int | None = None) -> ImageSet:
        """Decode all images into memory. One error lists the files that cannot be read.

        `progress` counts from `offset` to `total`, by default the number of images.
        """
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
                        progress(offset + done, total or len(self))
        raise_unreadable(errors)
        return ImageSet(pixels, self.labels, self.classes)


Images = ImageSet | ImageFiles
AnyImages = TypeVar("AnyImages", ImageSet, ImageFiles)


def _changed(images: AnyImages, **values: Any) -> AnyImages:
    """A copy with other values, which are not checked again."""
    images = copy(images)
    vars(images).update(values)
    return images


def _check_labels(labels: Tensor, count: int, classes: Sequence[str]) -> None:
    """Each of `count` images must have the label of one of the classes."""
    check_class_names(classes)
    has_indices = labels.dtype == torch.int64 and labels.ndim == 1
    check(has_indices, f"labels must be int64 of shape (N,), got {labels.dtype} of shape {tuple(labels.shape)}")
    check(len(labels) == count, f"labels must have one entry for each of {count:,} images, got {len(labels):,}")
    check(count, "a data set must have at least one image, got none")
    low, high, last = int(labels.min()), int(labels.max()), len(classes) - 1
    check(0 <= low <= high <= last, f"labels must be 0 to {last} for {last + 1} classes, got {low} to {high}")


def open_image_file(path: Path, archive: Path | None) -> tuple[Path | bytes, str]:
    """Source of an image for `read_image`, and its name in error messages."""
    if archive is None:
        return path, display_path(path)
    return open_archive(archive).read(path.as_posix()), f"{printable(str(path))} in {display_path(archive)}"


def as_array(pixels: Tensor) -> np.ndarray[Any, Any]:
    """One image as Pillow and the viewer take it: (C, H, W) -> (H, W), or (H, W, 3) in color"""
    return np.ascontiguousarray(pixels.permute(1, 2, 0).squeeze(-1).cpu().numpy())


def load_splits(splits: Mapping[str, Images], progress: Progress | None = None) -> dict[str, ImageSet]:
    """Decode all image files of a data set into memory; `progress` counts the images of all splits."""
    total = sum(len(images) for images in splits.values() if isinstance(images, ImageFiles))
    loaded: dict[str, ImageSet] = {}
    done = 0
    for split, images in splits.items():
        if isinstance(images, ImageFiles):
            images = images.load(progress, done, total)
            done += len(images)
        loaded[split] = images
    return loaded


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
        shared = ("size", "channels") if self.class_disjoint else ("classes", "size", "channels")
        for split, images in self.available.items():
            for name in shared:
                expected, value = getattr(self.train, name), getattr(images, name)
                if expected != value:
                    rule = f"{split} must have the {name} of train, {expected!r:.200}"
                    raise SightlineError(f"{rule}, got {value!r:.200}")
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
    check(0 < fraction < 1, f"fraction must be above 0 and below 1, got {fraction}")
    check_int(0, seed=seed)
    labels = images.labels.cpu().numpy()
    generator = seeds.make_generator(seed, seeds.DATA)
    is_held_out = np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(images.classes):
        indices = np.flatnonzero(labels == label)
        check(len(indices) != 1, f"each class must have at least 2 images to be split, got 1 of class {name!r}")
        if len(indices):
            count = min(max(round(fraction * len(indices)), 1), len(indices) - 1)
            is_held_out[generator.permutation(indices)[:count]] = True
    return images.take(np.flatnonzero(~is_held_out)), images.take(np.flatnonzero(is_held_out))


def select_classes(images: Images, names: Sequence[str]) -> Images:
    """The images of these classes. Labels are indices of `names`."""
    if images.classes == tuple(names):
        return images
    label_of = {name: label for label, name in enumerate(names)}
    labels = torch.tensor([label_of.get(name, -1) for name in images.classes])[images.labels]
    indices = (labels >= 0).nonzero().flatten()
    return replace(images.take(indices), labels=labels[indices], classes=tuple(names))


def check_class_names(classes: Sequence[str]) -> None:
    """Class names must be non-empty, valid Unicode, and differ by more than white space at their ends."""
    check(classes, "classes must have at least one name, got none")
    first: dict[str, str] = {}
    for name in classes:
        if not isinstance(name, str) or not name.strip():
            raise SightlineError(f"classes must be non-empty names, got {name!r}")
        if _SURROGATES.search(name):
            raise SightlineError(f"class names must be valid Unicode, got {name!r}; rename the folder")
        normalized = unicodedata.normalize("NFC", name).strip()
        if normalized in first:
            raise SightlineError(f"class names must differ, got {first[normalized]!r} and {name!r}")
        first[normalized] = name


def check_disjoint(classes: Mapping[str, Sequence[str]]) -> None:
    """No class may be in two splits."""
    split_of: dict[str, str] = {}
    for split, names in classes.items():
        for name in names:
            other = split_of.setdefault(name, split)
            if other != split:
                raise SightlineError(
                    f"a class must be in one split, got {name!r} in {other} and in {split}; remove one"
                )


def check_memory(count: int, channels: int, size: int) -> None:
    """Images that are held in memory must be within the limit."""
    total, maximum = count * channels * size * size, limits.MAX_IMAGE_SET_BYTES
    images = f"{count:,} images of {size} x {size} x {channels}"
    fix = "use a smaller size or fewer images"
    check(total <= maximum, f"images in memory must take at most {maximum:,} bytes, got {total:,} for {images}; {fix}")


def raise_unreadable(errors: Sequence[str]) -> None:
    """Raise one error for all unreadable images, if any."""
    if errors:
        raise_all("all images must be readable, got {} that are not", errors)


def raise_all(rule: str, errors: Sequence[str], max_listed: int = 10) -> NoReturn:
    """Raise several errors as one, or a single one as it is; `rule` has a place for their number."""
    more = f"\n  and {len(errors) - max_listed:,} more" if len(errors) > max_listed else ""
    listed = "".join(f"\n  {error}" for error in errors[:max_listed])
    raise SightlineError(f"{rule.format(f'{len(errors):,}')}:{listed}{more}" if len(errors) > 1 else errors[0])


def _check_indices(indices: Indices, count: int) -> Tensor:
    tensor = torch.as_tensor(indices)
    if tensor.ndim != 1 or not len(tensor) or tensor.dtype == torch.bool or tensor.is_floating_point():
        raise SightlineError(f"indices must be a non-empty list of integers, got {indices!r:.100}")
    tensor = tensor.long().cpu()
    low, high = int(tensor.min()), int(tensor.max())
    check(0 <= low <= high < count, f"indices must be 0 to {count - 1}, got {low} to {high}")
    return tensor
