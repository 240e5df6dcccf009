"""One npz file with images and labels."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import SightlineError
from ....names import display_path, printable
from ..archives import READ_ERRORS, check_compression
from ..datasets import Images
from .arrays import Array, check_array_bytes, image_sets, read_exactly

DESCRIPTION = "an .npz file with x_train, y_train, x_test, y_test, or train_images, train_labels, …, or images, labels"

_KEYS: tuple[dict[str, tuple[str, str]], ...] = (
    {"train": ("x_train", "y_train"), "validation": ("x_val", "y_val"), "test": ("x_test", "y_test")},
    {
        "train": ("train_images", "train_labels"),
        "validation": ("val_images", "val_labels"),
        "test": ("test_images", "test_labels"),
    },
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
            raise SightlineError(
                f"{file.name} must have the keys x_train, y_train, or train_images, train_labels, or images, labels, "
                f"got {', '.join(sorted(file.keys)[:10]) or 'none'}"
            )
        arrays: dict[str, tuple[Array, Array]] = {}
        for split, (images_key, labels_key) in keys.items():
            if {images_key, labels_key} & set(file.keys):
                images, labels = file.read(images_key, _check_images), file.read(labels_key, check_labels)
                arrays[split] = _channels_first(images), labels.reshape(len(labels))
        classes = tuple(map(str, file.read("classes", check_class_names))) if "classes" in file.keys else None
    return image_sets(arrays, path, classes, size, channels)


class NpzFile:
    """Arrays of an npz file. Headers are checked before memory is allocated; pickles are never loaded."""

    def __init__(self, path: Path) -> None:
        self.name = display_path(path)
        self._path = path

    def __enter__(self) -> "NpzFile":
        try:
            self._zip = zipfile.ZipFile(self._path)
        except READ_ERRORS as error:
            raise self._damaged(error) from error
        self.keys = {entry.filename.removesuffix(".npy"): entry for entry in self._zip.infolist()}
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, key: str, check: Callable[[str, tuple[int, ...], Any], None]) -> Array:
        """Read one array; `check(name, shape, dtype)` validates its header."""
        if key not in self.keys:
            raise SightlineError(f"{self.name} must have the key {key}, got none")
        entry, name = self.keys[key], f"{printable(key)} in {self.name}"
        check_compression(name, entry)
        try:
            with self._zip.open(entry) as file:
                try:
                    shape, fortran_order, dtype = _HEADER_READERS[np.lib.format.read_magic(file)](file)
                except Exception as error:  # numpy evaluates the header as Python source, which fails in many ways
                    raise SightlineError(
                        f"{name} must be an array written by np.savez, got an error: {str(error)[:200]}"
                    ) from error
                if dtype.hasobject:
                    raise SightlineError(f"{name} must be numbers or text, got Python objects, which are never loaded")
                check(name, shape, dtype)
                size = check_array_bytes(name, shape, dtype)
                if size > entry.file_size:
                    raise SightlineError(
                        f"{name} must have {size:,} bytes according to its header, got {entry.file_size:,}"
                    )
                data = read_exactly(name, file, size).view(dtype)
        except READ_ERRORS as error:
            raise self._damaged(error) from error
        return data.reshape(shape[::-1]).T if fortran_order else data.reshape(shape)

    def _damaged(self, error: Exception) -> SightlineError:
        return SightlineError(
            f"{self.name} must be a complete npz file, got an error: {error}; write it again with np.savez"
        )


def check_labels(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Labels must be integers (N,) or (N, 1)."""
    if dtype.kind not in "iu" or len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise SightlineError(f"{name} must be integers of shape (N,), got {dtype} of shape {shape}")


def check_class_names(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Class names must be text (classes,)."""
    if dtype.kind != "U" or len(shape) != 1:
        raise SightlineError(f"{name} must be text of shape (classes,), got {dtype} of shape {shape}")


def _check_images(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype != np.uint8:
        raise SightlineError(
            f"{name} must be uint8 with values from 0 to 255, got {dtype}; convert floats from 0 to 1 with "
            "(x * 255).round().astype('uint8')"
        )
    if len(shape) not in (3, 4) or (len(shape) == 4 and not {shape[1], shape[3]} & {1, 3}):
        raise SightlineError(
            f"{name} must have shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, got {shape}"
        )


def _channels_first(images: Array) -> Array:
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if images.shape[3] in (1, 3) else images
