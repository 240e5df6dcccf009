"""Omniglot packed into one npz file: a bit for each pixel, 1 where there is ink."""

import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from ....errors import SightlineError
from ..class_pool import Pool, apart, check_memory
from ..datasets import BYTES_AT_ONCE, ImageSet
from ..reading import MOST_SIZE
from .arrays import fit
from .nested_folders import OMNIGLOT
from .npz import BROKEN, check_label_array, check_names, read_npy

SIDE: Final = 105
"""Of an image where the file does not say otherwise in `shape`."""


def is_packed(path: Path) -> bool:
    """Whether this file is an npz with packed images."""
    if not path.is_file() or path.suffix.lower() != ".npz":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "images_packed.npy" in archive.namelist()
    except BROKEN:
        return False


def read_packed(path: Path, size: int | None, channels: int | None) -> Pool:
    """`images_packed` (np.packbits along each row), `label` and `classes` ("background/Alphabet/character01", …).

    Ink becomes dark on white paper, as it is in the PNG files.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for key in ("images_packed", "label", "classes"):
                if key not in members:
                    raise SightlineError(f"{path} must have the keys images_packed, label and classes, got no {key}")
            packed = read_npy(path, archive, members["images_packed"], _check_packed)
            labels = read_npy(path, archive, members["label"], check_label_array).reshape(-1).astype(np.int64)
            names = [str(name) for name in read_npy(path, archive, members["classes"], check_names)]
            side = SIDE
            if "shape" in members:
                sides = read_npy(path, archive, members["shape"], check_label_array).reshape(-1).tolist()
                if len(sides) != 2 or sides[0] != sides[1] or not 1 <= sides[0] <= MOST_SIZE:
                    raise SightlineError(f"shape in {path} must be the two equal sides of an image, got {sides!r:.100}")
                side = sides[0]
    except BROKEN as error:
        raise SightlineError(f"{path} must be a whole npz file, got an error: {error}") from error
    if packed.shape[1] != (row := (side * side + 7) // 8):
        raise SightlineError(
            f"images_packed in {path} must have {row} bytes for {side} x {side}, got {packed.shape[1]}"
        )
    check_memory(len(packed), channels or 1, size or side)
    pixels = torch.empty(len(packed), channels or 1, size or side, size or side, dtype=torch.uint8)
    step = max(1, BYTES_AT_ONCE // (side * side))
    for start in range(0, len(packed), step):
        some = slice(start, start + step)
        ink = np.unpackbits(packed[some], axis=1)[:, : side * side].reshape(-1, 1, side, side)
        pixels[some] = fit(torch.from_numpy(255 - 255 * ink), size, channels, f"the images of {path}")
    return _divided(ImageSet(pixels, torch.from_numpy(labels), tuple(names)))


def _divided(images: ImageSet) -> Pool:
    """The first part of each name says where the class belongs, if it does so everywhere."""
    firsts, rests = zip(
        *((first, rest) for first, _, rest in (name.partition("/") for name in images.classes)), strict=True
    )
    if not all(rests) or not set(firsts) <= set(OMNIGLOT):
        return Pool(images, {}, "packed npz")
    order = sorted(range(len(rests)), key=rests.__getitem__)  # as the folders have them
    ranks = torch.empty(len(order), dtype=torch.int64)
    ranks[torch.tensor(order)] = torch.arange(len(order))
    images = ImageSet(images.pixels, ranks[images.labels], tuple(rests[number] for number in order))
    found: dict[str, list[str]] = {}
    for first, rest in zip(firsts, rests, strict=True):
        found.setdefault(OMNIGLOT[first], []).append(rest)
    return Pool(images, apart(found), "Omniglot")


def _check_packed(where: str, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype != np.uint8 or len(shape) != 2 or not shape[0]:
        raise SightlineError(f"{where} must be uint8 of shape (N, bytes of an image), got {dtype} {shape}")
