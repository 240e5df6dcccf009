"""One npz file with images and labels."""

import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import SightlineError, check, reraise
from ....names import display_path, printable
from ..archives import READ_ERRORS, check_compression
from ..datasets import Images
from .arrays import Array, check_array_bytes, image_sets, read_exactly

DESCRIPTION = "an .npz file with x_train, y_train, x_test, y_test, or train_images, train_labels, …, or images, labels"

_SPLITS = {"train": "train", "validation": "val", "test": "test"}
_KEYS = (
    {split: (f"x_{key}", f"y_{key}") for split, key in _SPLITS.items()},
    {split: (f"{key}_images", f"{key}_labels") for split, key in _SPLITS.items()},
    {"train": ("images", "labels")},
)
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def detect(path: Path) -> bool:
    """Whether the path is an npz file."""
    return path.is_file() and path.suffix.lower() == ".npz"


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read images (N, H, W), (N, H, W, C) or (N, C, H, W), labels (N,), and optionally `classes` with class names."""
    with NpzFile(path) as file:
        keys = next((keys for keys in _KEYS if keys["train"][0] in file.keys), None)
        if keys is None:
            rule = "the keys x_train, y_train, or train_images, train_labels, or images, labels"
            raise SightlineError(f"{file.name} must have {rule}, got {', '.join(sorted(file.keys)[:10]) or 'none'}")
        arrays: dict[str, tuple[Array, Array]] = {}
        for split, (images_key, labels_key) in keys.items():
            if {images_key, labels_key} & set(file.keys):
                images, labels = file.read(images_key, _check_images), file.read(labels_key, check_labels)
                arrays[split] = _channels_first(images), labels.reshape(len(labels))
        classes = tuple(map(str, file.read("classes", check_text))) if "classes" in file.keys else None
    return image_sets(arrays, path, classes, size, channels)


class NpzFile:
    """Arrays of an npz file. Headers are checked before memory is allocated; pickles are never loaded."""

    def __init__(self, path: Path) -> None:
        self.name = display_path(path)
        with self._reraise_damage():
            self._zip = zipfile.ZipFile(path)
        self.keys = {entry.filename.removesuffix(".npy"): entry for entry in self._zip.infolist()}

    def __enter__(self) -> "NpzFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, key: str, check_header: Callable[[str, tuple[int, ...], Any], None]) -> Array:
        """Read one array; `check_header(name, shape, dtype)` validates its header."""
        check(key in self.keys, f"{self.name} must have the key {key}, got none")
        entry, name = self.keys[key], f"{printable(key)} in {self.name}"
        check_compression(name, entry)
        with self._reraise_damage(), self._zip.open(entry) as file:
            # numpy evaluates the header as Python source, which fails in many ways
            with reraise(f"{name} must be an array written by np.savez", Exception):
                shape, fortran_order, dtype = _HEADER_READERS[np.lib.format.read_magic(file)](file)
            check(not dtype.hasobject, f"{name} must be numbers or text, got Python objects, which are never loaded")
            check_header(name, shape, dtype)
            size, stored = check_array_bytes(name, shape, dtype), entry.file_size
            check(size <= stored, f"{name} must have {size:,} bytes according to its header, got {stored:,}")
            data = read_exactly(name, file, size).view(dtype)
        return data.reshape(shape[::-1]).T if fortran_order else data.reshape(shape)

    def _reraise_damage(self) -> AbstractContextManager[None]:
        rule = f"{self.name} must be a complete npz file"
        return reraise(rule, *READ_ERRORS, fix="write it again with np.savez")


def check_labels(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Labels must be integers (N,) or (N, 1)."""
    is_valid = dtype.kind in "iu" and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))
    check(is_valid, f"{name} must be integers of shape (N,), got {dtype} of shape {shape}")


def check_text(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Class names must be text (classes,)."""
    is_valid = dtype.kind == "U" and len(shape) == 1
    check(is_valid, f"{name} must be text of shape (classes,), got {dtype} of shape {shape}")


def _check_images(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    fix = "convert floats from 0 to 1 with (x * 255).round().astype('uint8')"
    check(dtype == np.uint8, f"{name} must be uint8 with values from 0 to 255, got {dtype}; {fix}")
    rule = f"{name} must have shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
    check(len(shape) == 3 or (len(shape) == 4 and {shape[1], shape[3]} & {1, 3}), f"{rule}, got {shape}")


def _channels_first(images: Array) -> Array:
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if images.shape[3] in (1, 3) else images
