"""Omniglot: folders `images_background` and `images_evaluation`, or all drawings packed into one npz file."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from .... import limits
from ....errors import SightlineError
from ..datasets import CHUNK_BYTES, Images, ImageSet, check_memory
from . import class_folders
from .arrays import convert
from .folder_trees import OMNIGLOT_FOLDERS, image_files, list_files
from .npz import NpzFile, check_class_names, check_labels

DESCRIPTION = "Omniglot: images_background/ and images_evaluation/ with alphabets of characters, or a packed .npz file"

DEFAULT_SIDE = 105
"""Side length of packed images without `shape`."""


def detect(path: Path) -> bool:
    """Whether the path is a folder of Omniglot's folders, or an npz file of packed images."""
    if class_folders.detect(path):
        folders = {entry.name.lower() for entry in path.iterdir() if entry.is_dir()}
        return {folder for folder in folders if not folder.startswith((".", "__"))} <= set(OMNIGLOT_FOLDERS)
    if not path.is_file() or path.suffix.lower() != ".npz":
        return False
    try:
        with NpzFile(path) as file:
            return "images_packed" in file.keys
    except SightlineError:
        return False


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read Omniglot with its background alphabets as train and its evaluation alphabets as test."""
    if path.is_file():
        return _read_packed(path, size, channels)
    return image_files(path, list_files(path), size, channels)


def _read_packed(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read `images_packed` (np.packbits of each image, 1 is ink), `label` and `classes`.

    Ink is dark on white, as in the image files. Classes such as "background/Latin/character01" name their split.
    """
    with NpzFile(path) as file:
        packed = file.read("images_packed", _check_packed)
        labels = file.read("label", check_labels).reshape(-1).astype(np.int64)
        classes = tuple(map(str, file.read("classes", check_class_names)))
        side = DEFAULT_SIDE
        if "shape" in file.keys:
            shape = file.read("shape", check_labels).reshape(-1).tolist()
            if len(shape) != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= limits.MAX_IMAGE_SIZE:
                raise SightlineError(f"shape in {file.name} must be two equal side lengths, got {shape!r:.100}")
            side = shape[0]
    if packed.shape[1] != (row := (side * side + 7) // 8):
        raise SightlineError(
            f"images_packed in {file.name} must have {row} bytes for {side} x {side}, got {packed.shape[1]}"
        )
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
    if not all(names) or len(set(names)) < len(names) or not set(folders) <= set(OMNIGLOT_FOLDERS):
        return {"train": images}
    has_train = any(OMNIGLOT_FOLDERS[folder] == "train" for folder in folders)
    members: dict[str, list[int]] = {}
    for label, folder in enumerate(folders):
        members.setdefault(OMNIGLOT_FOLDERS[folder] if has_train else "train", []).append(label)
    result: dict[str, Images] = {}
    for split in sorted(members, reverse=True):
        ordered = sorted(members[split], key=names.__getitem__)
        new_labels = torch.full((len(names),), -1)
        new_labels[torch.tensor(ordered)] = torch.arange(len(ordered))
        labels = new_labels[images.labels]
        indices = (labels >= 0).nonzero().flatten()
        result[split] = ImageSet(images.pixels[indices], labels[indices], tuple(names[i] for i in ordered))
    return result


def _check_packed(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype != np.uint8 or len(shape) != 2 or not shape[0]:
        raise SightlineError(f"{name} must be uint8 of shape (N, bytes per image), got {dtype} of shape {shape}")
