"""Omniglot: folders `images_background` and `images_evaluation`, or all drawings packed into one npz file."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .... import limits
from ....errors import SightlineError, check
from ..datasets import CHUNK_BYTES, Images, ImageSet, check_memory, select_classes
from ..paths import is_hidden
from . import class_folders, npz
from .arrays import convert

DESCRIPTION = "Omniglot: images_background/ and images_evaluation/ with alphabets of characters, or a packed .npz file"

DEFAULT_SIDE = 105
"""Side length of packed images without `shape`."""


def detect(path: Path) -> bool:
    """Whether the path is a folder of Omniglot's folders, or an npz file of packed images."""
    if class_folders.detect(path):
        folders = {entry.name.lower() for entry in path.iterdir() if entry.is_dir()}
        return {folder for folder in folders if not is_hidden(folder)} <= set(class_folders.OMNIGLOT_FOLDERS)
    if npz.detect(path):
        with suppress(SightlineError), npz.NpzFile(path) as file:
            return "images_packed" in file.keys
    return False


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read Omniglot with its background alphabets as train and its evaluation alphabets as test."""
    return _read_packed(path, size, channels) if path.is_file() else class_folders.read(path, size, channels)


def _read_packed(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read `images_packed` (np.packbits of each image, 1 is ink), `label` and `classes`.

    Ink is dark on white, as in the image files. Classes such as "background/Latin/character01" name their split.
    """
    with npz.NpzFile(path) as file:
        packed = file.read("images_packed", _check_packed)
        labels = file.read("label", npz.check_labels).reshape(-1).astype(np.int64)
        classes = tuple(map(str, file.read("classes", npz.check_text)))
        side = DEFAULT_SIDE
        if "shape" in file.keys:
            shape = file.read("shape", npz.check_labels).reshape(-1).tolist()
            is_valid = len(shape) == 2 and shape[0] == shape[1] and 1 <= shape[0] <= limits.MAX_IMAGE_SIZE
            check(is_valid, f"shape in {file.name} must be two equal side lengths, got {shape!r:.100}")
            side = shape[0]
    length, expected = packed.shape[1], (side * side + 7) // 8
    message = f"images_packed in {file.name} must have {expected} bytes for {side} x {side}, got {length}"
    check(length == expected, message)
    check_memory(len(packed), channels or 1, size or side)
    pixels = torch.empty(len(packed), channels or 1, size or side, size or side, dtype=torch.uint8)
    step = max(1, CHUNK_BYTES // (side * side))
    for start in range(0, len(packed), step):
        chunk = slice(start, start + step)
        ink = np.unpackbits(packed[chunk], axis=1)[:, : side * side].reshape(-1, 1, side, side)
        pixels[chunk] = convert(torch.from_numpy(255 - 255 * ink), size, channels, f"images of {file.name}")
    return _by_split(ImageSet(pixels, torch.from_numpy(labels), classes))


def _by_split(images: ImageSet) -> dict[str, Images]:
    """Divide images by the split at the start of each class name. Without such names, all are train."""
    folders, names = zip(*(name.partition("/")[::2] for name in images.classes), strict=True)
    split_of = class_folders.OMNIGLOT_FOLDERS
    if not all(names) or len(set(names)) < len(names) or not set(folders) <= set(split_of):
        return {"train": images}
    members: dict[str, list[str]] = {}
    for name, folder in sorted(zip(names, folders, strict=True)):
        members.setdefault(split_of[folder], []).append(name)
    if "train" not in members:
        members = {"train": members["test"]}
    images = replace(images, classes=names)
    return {split: select_classes(images, members[split]) for split in sorted(members, reverse=True)}


def _check_packed(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    is_valid = dtype == np.uint8 and len(shape) == 2 and shape[0]
    check(is_valid, f"{name} must be uint8 of shape (N, bytes per image), got {dtype} of shape {shape}")
