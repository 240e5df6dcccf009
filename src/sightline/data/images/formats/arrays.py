"""Data sets that come as arrays: what they must be, and how they become sets of images.

What a header promises is compared with what is there before room is made for it.
"""

import gzip
import math
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ....errors import SightlineError
from ..datasets import ImageSet, Splits, check_classes

MOST_BYTES: Final = 1 << 34
"""No array of a data set is larger than this."""
MOST_NAMES: Final = 1 << 22
"""No list of class names has more bytes than this."""
AT_ONCE: Final = 1024
"""Images that are converted in one go."""

Array = np.ndarray[Any, Any]


def build(
    arrays: dict[str, tuple[Array, Array]],
    source: Path,
    classes: tuple[str, ...] | None,
    size: int | None,
    channels: int | None,
    kind: str,
) -> Splits:
    """Images (N, C, H, W) and labels (N) of each split -> sets of the size and channels asked for."""
    for role, (images, labels) in arrays.items():
        if len(images) != len(labels):
            raise SightlineError(
                f"{role} of {source} must have one label for each image, "
                f"got {len(images):,} images and {len(labels):,} labels"
            )
        if not images.size:
            raise SightlineError(f"{role} of {source} must hold at least one image, got shape {images.shape}")
        if labels.min() < 0:
            raise SightlineError(f"labels of {role} of {source} must be 0 or more, got {labels.min()}")
    highest = max(int(labels.max()) for _, labels in arrays.values())
    if classes is None:
        if highest > 65535:
            raise SightlineError(f"labels of {source} must be at most 65535, got {highest}")
        classes = tuple(str(number) for number in range(highest + 1))
    elif highest >= len(classes):
        raise SightlineError(
            f"labels of {source} must be 0 to {len(classes) - 1} for its {len(classes)} class names, got {highest}"
        )
    if len(np.unique(arrays["train"][1])) < 2:
        raise SightlineError(f"{source} must have images of at least two classes, got one class only")
    parts = {}
    for role, (images, labels) in arrays.items():
        pixels = fit(torch.from_numpy(np.ascontiguousarray(images)), size, channels, f"the images of {source}")
        parts[role] = ImageSet(pixels, torch.from_numpy(labels.astype(np.int64)), classes)
    return Splits(parts["train"], parts.get("validation"), parts.get("test"), kind=kind)


def fit(pixels: Tensor, size: int | None, channels: int | None, what: str) -> Tensor:
    """uint8 (N, C, H, W) brought to this size (the middle square, scaled) and these channels."""
    height, width = pixels.shape[2:]
    side = min(width, height)
    if size is None:
        size = square(width, height, what)
    if channels == 1 and pixels.shape[1] == 3:
        gray = torch.empty(len(pixels), 1, height, width, dtype=torch.uint8)
        for some, target in zip(pixels.split(AT_ONCE), gray.split(AT_ONCE), strict=True):
            red, green, blue = some.int().unbind(1)
            target[:, 0] = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16
        pixels = gray
    if (height, width) != (size, size):
        top, left = (height - side) // 2, (width - side) // 2
        scaled = torch.empty(*pixels.shape[:2], size, size, dtype=torch.uint8)
        middle = pixels[:, :, top : top + side, left : left + side]
        for some, target in zip(middle.split(AT_ONCE), scaled.split(AT_ONCE), strict=True):
            floats = some.float()
            for shape in ((side, size), (size, size)):  # first across and then down, as Pillow does it with a file
                floats = F.interpolate(floats, shape, mode="bicubic", antialias=True).round_().clamp_(0, 255)
            target.copy_(floats)
        pixels = scaled
    if channels == 3 and pixels.shape[1] == 1:
        pixels = pixels.repeat(1, 3, 1, 1)
    return pixels


def square(width: int, height: int, what: str) -> int:
    """The side, where there is one side to speak of."""
    if width != height:
        raise SightlineError(
            f"{what} must be square unless data.image_size says what to bring them to, "
            f"got {width} x {height}; give data.image_size"
        )
    return width


def read_names(folder: Path, *files: str) -> tuple[str, ...] | None:
    """The class names, one a line, from the first of these files that is there."""
    for file in files:
        path = folder / file
        if path.is_file():
            if (stored := stored_bytes(path)) > MOST_NAMES:
                raise SightlineError(f"{path} must be at most {MOST_NAMES:,} bytes, got {stored:,}")
            try:
                lines = path.read_text(encoding="utf-8-sig").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise SightlineError(f"{path} must be text in UTF-8, got an error: {error}") from error
            names = tuple(line.strip() for line in lines if line.strip())
            try:
                check_classes(names)
            except ValueError as error:
                raise SightlineError(f"{path}: {error}") from None
            return names
    return None


def stored_bytes(path: Path) -> int:
    """How large the file is."""
    if not path.is_file():
        raise SightlineError(f"{path} must be a file, got none")
    return path.stat().st_size


def check_room(where: object, shape: tuple[int, ...], dtype: Any) -> int:
    """How many bytes this takes, if that is within bounds."""
    expected = math.prod(shape) * int(dtype.itemsize)
    if expected > MOST_BYTES:
        raise SightlineError(f"{where} must be at most {MOST_BYTES:,} bytes, got {expected:,} for shape {shape}")
    return expected


def read_exactly(where: object, file: IO[bytes] | gzip.GzipFile, expected: int) -> Array:
    """So many bytes and not one more."""
    data = bytearray()
    while len(data) <= expected and (part := file.read(min(1 << 24, expected + 1 - len(data)))):
        data += part
    if len(data) != expected:
        got = "more" if len(data) > expected else f"{len(data):,}"
        raise SightlineError(f"{where} must hold {expected:,} bytes as its header says, got {got}")
    return np.frombuffer(data, dtype=np.uint8)
