"""Helpers for formats that store images as arrays.

Sizes declared in a header are checked against the file and the limits before memory is allocated.
"""

import gzip
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .... import limits
from ....errors import SightlineError, check, reraise
from ....names import display_path
from ..datasets import Images, ImageSet, check_class_names

CHUNK = 1024
"""Images converted at a time."""

Array = np.ndarray[Any, Any]


def image_sets(
    arrays: Mapping[str, tuple[Array, Array]],
    source: Path,
    classes: tuple[str, ...] | None,
    size: int | None,
    channels: int | None,
) -> dict[str, Images]:
    """Image sets from images (N, C, H, W) and labels (N,) of each split.

    Without class names, classes are named by their index.
    """
    name = display_path(source)
    for split, (images, labels) in arrays.items():
        where, count, lowest = f"{split} of {name}", len(images), labels.min(initial=0)
        check(count == len(labels), f"{where} must have one label for each of {count:,} images, got {len(labels):,}")
        check(images.size, f"{where} must have at least one image, got shape {images.shape}")
        check(lowest >= 0, f"labels of {where} must be 0 or more, got {lowest}")
    highest = max(int(labels.max()) for _, labels in arrays.values())
    maximum = limits.MAX_CLASS_INDEX if classes is None else len(classes) - 1
    names = "" if classes is None else f" for {len(classes)} class names"
    check(highest <= maximum, f"labels of {name} must be 0 to {maximum}{names}, got {highest}")
    classes = classes or tuple(str(label) for label in range(highest + 1))
    check(len(np.unique(arrays["train"][1])) > 1, f"{name} must have images of at least two classes, got one class")
    sets: dict[str, Images] = {}
    for split, (images, labels) in arrays.items():
        pixels = convert(torch.from_numpy(np.ascontiguousarray(images)), size, channels, f"images of {name}")
        sets[split] = ImageSet(pixels, torch.from_numpy(labels.astype(np.int64)), classes)
    return sets


def convert(pixels: Tensor, size: int | None, channels: int | None, what: str) -> Tensor:
    """Convert uint8 (N, C, H, W) as `read_image` does: center crop, resize, and change the channels."""
    height, width = pixels.shape[2:]
    side = min(width, height)
    if size is None:
        size = square_side(width, height, what)
    if channels == 1 and pixels.shape[1] == 3:
        gray = torch.empty(len(pixels), 1, height, width, dtype=torch.uint8)
        for chunk, target in zip(pixels.split(CHUNK), gray.split(CHUNK), strict=True):
            red, green, blue = chunk.int().unbind(1)
            target[:, 0] = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16
        pixels = gray
    if (height, width) != (size, size):
        top, left = (height - side) // 2, (width - side) // 2
        resized = torch.empty(*pixels.shape[:2], size, size, dtype=torch.uint8)
        square = pixels[:, :, top : top + side, left : left + side]
        for chunk, target in zip(square.split(CHUNK), resized.split(CHUNK), strict=True):
            floats = chunk.float()
            for shape in ((side, size), (size, size)):  # Pillow resizes horizontally, rounds, then vertically
                floats = F.interpolate(floats, shape, mode="bicubic", antialias=True).round_().clamp_(0, 255)
            target.copy_(floats)
        pixels = resized
    if channels == 3 and pixels.shape[1] == 1:
        pixels = pixels.repeat(1, 3, 1, 1)
    return pixels


def square_side(width: int, height: int, what: str) -> int:
    """The side length of square images; other images need a size."""
    rule = f"{what} must be square if no image size is given, got {width} x {height}"
    check(width == height, f"{rule}; set data.image_size")
    return width


def read_class_names(folder: Path, *files: str) -> tuple[str, ...] | None:
    """Class names, one per line, from the first of these files that exists."""
    for path in (folder / file for file in files):
        if not path.is_file():
            continue
        name = display_path(path)
        size, maximum = path.stat().st_size, limits.MAX_CLASS_NAMES_BYTES
        check(size <= maximum, f"{name} must be at most {maximum:,} bytes, got {size:,}")
        with reraise(f"{name} must be UTF-8 text", OSError, UnicodeDecodeError):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        classes = tuple(line.strip() for line in lines if line.strip())
        try:
            check_class_names(classes)
        except SightlineError as error:
            raise SightlineError(f"{name}: {error}") from None
        return classes
    return None


def file_size(path: Path) -> int:
    """Bytes of a file that must exist."""
    check(path.is_file(), f"{display_path(path)} must be a file, got none")
    return path.stat().st_size


def check_array_bytes(name: str, shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes of an array, which must be within the limit."""
    size, maximum = math.prod(shape) * int(dtype.itemsize), limits.MAX_ARRAY_BYTES
    check(size <= maximum, f"{name} must be at most {maximum:,} bytes, got {size:,} for shape {shape}")
    return size


def read_exactly(name: str, file: IO[bytes] | gzip.GzipFile, size: int) -> Array:
    """Read `size` bytes, which must be the rest of the file."""
    data = bytearray()
    while len(data) <= size and (chunk := file.read(min(1 << 24, size + 1 - len(data)))):
        data += chunk
    actual = "more" if len(data) > size else f"{len(data):,}"
    check(len(data) == size, f"{name} must have {size:,} bytes according to its header, got {actual}")
    return np.frombuffer(data, dtype=np.uint8)
