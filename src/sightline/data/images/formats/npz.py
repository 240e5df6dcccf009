"""One npz file with images and labels."""

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import SightlineError
from ..datasets import Splits
from .arrays import Array, build, check_room, read_exactly

_KEYS: tuple[dict[str, tuple[str, str]], ...] = (
    {"train": ("x_train", "y_train"), "validation": ("x_val", "y_val"), "test": ("x_test", "y_test")},
    {
        "train": ("train_images", "train_labels"),
        "validation": ("val_images", "val_labels"),
        "test": ("test_images", "test_labels"),
    },
    {"train": ("images", "labels")},
)


BROKEN = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""What reading a zip file stumbles over."""
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How files in a zip may be packed: of other kinds Python unpacks all at once, however much that is."""


def read_npz(path: Path, size: int | None, channels: int | None) -> Splits:
    """One `.npz` with x_train, y_train, x_test, y_test; or train_images, train_labels, …; or images, labels."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = next((keys for keys in _KEYS if keys["train"][0] in members), None)
            if keys is None:
                raise SightlineError(
                    f"{path} must have the keys x_train, y_train, or train_images, train_labels, or images, labels, "
                    f"got {', '.join(sorted(members)[:10]) or 'none'}"
                )
            arrays: dict[str, tuple[Array, Array]] = {}
            for role, (images_key, labels_key) in keys.items():
                if not {images_key, labels_key} & set(members):
                    continue
                for key in (images_key, labels_key):
                    if key not in members:
                        raise SightlineError(f"{path} must have the key {key} beside its twin, got no such key")
                images = read_npy(path, archive, members[images_key], _check_images)
                labels = read_npy(path, archive, members[labels_key], check_label_array)
                arrays[role] = _channels_first(images), labels.reshape(len(labels))
            classes = None
            if "classes" in members:
                names = read_npy(path, archive, members["classes"], check_names)
                classes = tuple(str(name) for name in names)
    except BROKEN as error:
        raise SightlineError(
            f"{path} must be a whole npz file, got an error: {error}; write it again with np.savez"
        ) from error
    return build(arrays, path, classes, size, channels, "npz")


def read_npy(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, check: Callable[[str, tuple[int, ...], Any], None]
) -> Array:
    """One array of the archive, its header checked before its room is made; never a pickle."""
    where = f"{info.filename.removesuffix('.npy')} in {path}"
    check_packed(where, info)
    with archive.open(info) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, by_column, dtype = read(file)
        except (ValueError, KeyError) as error:
            raise SightlineError(f"{where} must be an array as np.savez writes it, got {str(error)[:200]}") from error
        if dtype.hasobject:
            raise SightlineError(f"{where} must hold plain numbers or text, got Python objects, which are never loaded")
        check(where, shape, dtype)
        expected = check_room(where, shape, dtype)
        if expected > info.file_size:
            raise SightlineError(f"{where} must hold {expected:,} bytes as its header says, got {info.file_size:,}")
        data = read_exactly(where, file, expected).view(dtype)
    return data.reshape(shape[::-1]).T if by_column else data.reshape(shape)


def check_packed(where: str, info: zipfile.ZipInfo) -> None:
    """A file in a zip must be packed so that it can be unpacked bit by bit."""
    if info.compress_type not in PACKED:
        raise SightlineError(f"{where} must be stored or deflated, got kind {info.compress_type}; pack it again")


def _check_images(where: str, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype != np.uint8:
        raise SightlineError(
            f"{where} must be of type uint8 with values from 0 to 255, got {dtype}; "
            "convert it, such as (x * 255).round().astype('uint8') where x runs from 0 to 1"
        )
    if len(shape) not in (3, 4) or (len(shape) == 4 and not {shape[1], shape[3]} & {1, 3}):
        raise SightlineError(f"{where} must have shape (N, H, W), (N, H, W, C) or (N, C, H, W), C 1 or 3, got {shape}")


def check_label_array(where: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Labels are integers, one for each image."""
    if dtype.kind not in "iu" or len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise SightlineError(f"{where} must be integers of shape (N,), the class of each image, got {dtype} {shape}")


def check_names(where: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Class names are text, one for each class."""
    if dtype.kind != "U" or len(shape) != 1:
        raise SightlineError(f"{where} must be text of shape (classes,), got {dtype} {shape}")


def _channels_first(images: Array) -> Array:
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if images.shape[3] in (1, 3) else images
