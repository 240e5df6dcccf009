"""The images that an encoder with fixed weights takes: size, channels and normalization; and views of an image.

Hugging Face models need neither torchvision nor an image processor: the preprocessing is read from their files.

Shapes: B batch, C channels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check, check_int, check_max
from ..files import read_json

CROP_SIDE = 0.8
"""Side length of the crops of `image_views`, as a fraction of that of the image."""


@dataclass(frozen=True)
class Preprocessing:
    """The image format that an encoder expects; `mean` and `std` are those of pixel values from 0 to 255."""

    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_bgr: bool = False

    @classmethod
    def read(cls, folder: Path, config: Any) -> "Preprocessing":
        """Read the files of a Hugging Face model."""
        values = _processor_config(folder)
        channels = getattr(config, "num_channels", 3)
        check(channels in (1, 3), f"num_channels of a vision model must be 1 or 3, got {channels!r} in {folder}")
        size = _square_side(values.get("crop_size")) if values.get("do_center_crop") else None
        size = size or _square_side(values.get("size")) or _square_side(getattr(config, "image_size", None))
        if size is None:
            raise SightlineError(f"size of a vision model must be square, got no such size in {folder}")
        check_int(1, image_size=size)
        check_max(limits.MAX_EMBEDDER_IMAGE_SIZE, image_size=size)
        factor = values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0
        is_valid = is_number(factor) and factor > 0
        check(is_valid, f"rescale_factor must be a number above 0, got {factor!r} in {folder}")
        is_bgr = bool(values.get("do_flip_channel_order"))
        mean, std = (0.0,) * channels, (1.0,) * channels
        if values.get("do_normalize", not is_bgr):  # MobileViT uses BGR without normalization, and omits the key
            mean, std = (
                _channel_values(folder, name, values.get(name), channels) for name in ("image_mean", "image_std")
            )
        check(min(std) > 0, f"image_std must be above 0, got {std} in {folder}")
        mean = tuple((value + bool(values.get("rescale_offset"))) / factor for value in mean)
        std = tuple(value * (value if values.get("include_top") else 1) / factor for value in std)
        return cls(size, channels, mean, std, is_bgr)


def image_views(images: Tensor, count: int) -> Iterator[Tensor]:
    """The first `count` views: the whole image, its mirror image, and five crops, of the center and of each corner.

    images (B, C, side, side), from 0 to 255 -> views of the same shape
    """
    side = images.shape[-1]
    size = round(CROP_SIDE * side)
    middle, end = (side - size) // 2, side - size
    crops = [(middle, middle), (0, 0), (0, end), (end, 0), (end, end)]
    yield images
    if count > 1:
        yield images.flip(-1)
    for top, left in crops[: max(count - 2, 0)]:
        yield resize(images[..., top : top + size, left : left + size], side)


def resize(images: Tensor, side: int) -> Tensor:
    """images (B, C, H, W), from 0 to 255 -> (B, C, side, side)"""
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, (side, side), mode="bicubic", antialias=True).round().clamp(0, 255)


def _processor_config(folder: Path) -> dict[str, Any]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := folder / name).is_file():
            values = read_json(path)
            values = values.get("image_processor", values) if isinstance(values, dict) else values
            if isinstance(values, dict):
                return values
    rule = "a vision model must have a preprocessor_config.json"
    raise SightlineError(f"{rule}, got none in {folder}; save its image processor there")


def _square_side(size: Any) -> int | None:
    """The side of a square size in any notation of these files; None if it is not square."""
    if isinstance(size, dict):
        size = size.get("shortest_edge") or (size.get("height"), size.get("width"))
    if isinstance(size, list | tuple):
        size = size[0] if len(size) == 2 and size[0] == size[1] else None
    return size if isinstance(size, int) else None


def _channel_values(folder: Path, name: str, values: Any, channels: int) -> tuple[float, ...]:
    values = values if isinstance(values, list) else [values] * channels
    is_valid = len(values) == channels and all(map(is_number, values))
    check(is_valid, f"{name} must be {channels} numbers, got {values!r} in {folder}")
    return tuple(values)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
