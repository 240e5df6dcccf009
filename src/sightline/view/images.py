"""Images for a page as data URLs, and how attention positions map to their patches."""

import base64
import hashlib
import io
import math
import operator
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from .. import limits
from ..errors import SightlineError, check

MAX_SIDE = 640
"""Images on a page are downscaled to this many pixels a side."""
MAX_LOSSLESS_SIDE = 96
"""Images up to this size are stored as PNG."""
WEBP_OPTIONS: dict[str, Any] = {"quality": 75, "method": 2}
"""Of larger images that are stored once per page."""
PREFIX_TOKENS = (0, 1, 2, 5)
"""Numbers of tokens before the patches: none, a class token, a distillation token beside it, or four registers."""
CAUSAL_PREFIX_TOKENS = (0, 1)
"""The same in a decoder. Other tokens before the patches are text."""
MAX_PREFIX_TOKENS = 7
"""Tokens before the patches if the user gives their grid."""


@dataclass(frozen=True)
class PatchedImages:
    """Images that share the positions of one sequence: prefix tokens, then the patches of each image in turn."""

    images: list[dict[str, Any]]
    prefix_tokens: int
    """Tokens before the patches: class and register tokens, or text."""
    grid: tuple[int, int]
    """Rows and columns of patches in each image."""
    size: int
    """Number of positions."""
    in_text: bool = False
    """Whether the other positions are text."""

    @property
    def positions(self) -> slice:
        """The positions of the patches."""
        return slice(self.prefix_tokens, self.prefix_tokens + len(self.images) * self.grid[0] * self.grid[1])

    def tokens(self) -> list[str]:
        """A name for each position."""
        names = [str(i) for i in range(self.size)]
        if self.prefix_tokens and not self.in_text:
            names[: self.prefix_tokens] = ["[CLS]"] + [f"[REG{i}]" for i in range(1, self.prefix_tokens)]
        names[self.positions] = self.patch_names()
        return names

    def patch_names(self) -> list[str]:
        """A name for each patch."""
        names, (rows, columns) = [], self.grid
        for image in self.images:
            if rows * columns == 1:
                names.append(image["label"])
            else:
                prefix = f"{image['label']} " if len(self.images) > 1 else ""
                names += [f"{prefix}{r + 1},{c + 1}" for r in range(rows) for c in range(columns)]
        return names


def patched_images(
    images: Any,
    size: int,
    *,
    name: str,
    labels: Sequence[str] | None = None,
    grid: tuple[int, int] | None = None,
    patch_grid: tuple[int, int] | None = None,
    image_tokens: slice | None = None,
    causal: bool = False,
) -> PatchedImages:
    """Map one image or a list of images to `size` positions. `name` is the argument that error messages mention.

    `grid` and `patch_grid` are rows and columns of patches, by the user and by the model. `image_tokens` are the
    positions of the patches if the others are text. `causal` attention is that of a decoder.
    """
    image_list = images if isinstance(images, list | tuple) else [images]
    check(image_list, f"{name} must contain at least one image, got none")
    if labels is None:
        labels = [_default_label(image, i, len(image_list)) for i, image in enumerate(image_list)]
    has_labels = len(labels) == len(image_list)
    check(has_labels, f"labels must have one entry for each of the {len(image_list)} images, got {len(labels)}")
    encoded = [{**_encode(image), "label": str(label)} for image, label in zip(image_list, labels, strict=True)]
    prefixes: Sequence[int] = CAUSAL_PREFIX_TOKENS if causal else PREFIX_TOKENS
    prefixes = prefixes if grid is None else range(MAX_PREFIX_TOKENS + 1)
    sizes = {prefix: size - prefix for prefix in prefixes if prefix < size}
    if image_tokens is not None:
        start, stop, step = image_tokens.indices(size)
        check(start < stop and step == 1, f"image_tokens must be some of the {size} positions, got {image_tokens}")
        sizes = {start: stop - start}
    options = [(prefix, count // len(encoded)) for prefix, count in sizes.items() if count % len(encoded) == 0]
    known_grid = _check_grid(grid) if grid is not None else patch_grid
    if grid is None and image_tokens is not None and not any(_fits(known_grid, patches) for _, patches in options):
        known_grid = None  # models may merge patches before they become tokens of a text
    layout = _layout(options, encoded[0]["height"] / encoded[0]["width"], known_grid)
    if layout is None:
        count = "1 image" if len(encoded) == 1 else f"{len(encoded)} images"
        shape = "" if known_grid is None else f" with a grid of {known_grid[0]} x {known_grid[1]}"
        fix = "pass grid=(rows, columns) if patches are not square, or image_tokens=slice(start, stop) in a text"
        raise SightlineError(f"{name} must match the {size} positions of the attention, got {count}{shape}; {fix}")
    return PatchedImages(encoded, *layout, size, in_text=image_tokens is not None)


def _fits(grid: tuple[int, int] | None, patches: int) -> bool:
    return grid is not None and grid[0] * grid[1] == patches


def _check_grid(grid: Sequence[Any]) -> tuple[int, int]:
    try:
        rows, columns = (operator.index(size) for size in grid)
    except (TypeError, ValueError) as error:
        raise SightlineError(f"grid must be two integers, rows and columns, got {grid!r}") from error
    return rows, columns


def _layout(
    options: list[tuple[int, int]], aspect: float, grid: tuple[int, int] | None
) -> tuple[int, tuple[int, int]] | None:
    """The number of prefix tokens, and the rows and columns of patches; None if nothing matches.

    `options` are (prefix tokens, patches) pairs. Either patches are nearly square in an image with this `aspect`
    (height / width), or the image was resized or cropped to a square. Fewer prefix tokens are preferred.
    """
    if grid is not None:
        return next(((prefix, grid) for prefix, patches in options if grid[0] * grid[1] == patches), None)
    matching = next(((prefix, best) for prefix, patches in options if (best := _closest_grid(patches, aspect))), None)
    square = next(((prefix, (side, side)) for prefix, n in options if (side := math.isqrt(n)) ** 2 == n > 1), None)
    ambiguous = matching and square and square != matching and matching[0] <= square[0]
    if matching and square and ambiguous:
        both = " or ".join(f"{prefix} + {rows} x {columns}" for prefix, (rows, columns) in (square, matching))
        raise SightlineError(f"grid must be given if the positions have two possible layouts, got {both}")
    single = next(((prefix, (1, 1)) for prefix, patches in options if patches == 1), None)
    layouts = [layout for layout in (matching, square, single) if layout]
    return min(layouts, key=lambda layout: layout[0], default=None)


def _closest_grid(patches: int, aspect: float) -> tuple[int, int] | None:
    """Rows and columns of nearly square patches, if there are any."""
    grids = [(rows, patches // rows) for rows in range(1, patches + 1) if patches % rows == 0 and patches > 1]
    distances = {grid: abs(math.log(grid[0] / grid[1] / aspect)) for grid in grids}
    return min((grid for grid in grids if distances[grid] < 0.1), key=distances.__getitem__, default=None)


def _default_label(image: Any, index: int, count: int) -> str:
    if isinstance(image, str | os.PathLike):
        return Path(image).name
    return f"image {index + 1}" if count > 1 else "image"


def _encode(image: Any) -> dict[str, Any]:
    """The image as a data URL, with its width and height."""
    if isinstance(image, str | os.PathLike):
        drawn = _read(Path(image))
    elif isinstance(image, Image.Image):
        drawn = _rgb(image)
    else:
        array = image.detach().cpu() if hasattr(image, "detach") else image
        drawn = Image.fromarray(_to_uint8(np.asarray(array))).convert("RGB")
    drawn.thumbnail((MAX_SIDE, MAX_SIDE))
    source = data_url(drawn, "png") if max(drawn.size) <= MAX_LOSSLESS_SIDE else data_url(drawn, "jpeg", quality=88)
    return {"src": source, "width": drawn.width, "height": drawn.height}


def data_url(image: Image.Image, kind: str, **options: Any) -> str:
    """The image as a URL that contains it. `kind` is png, jpeg or webp; `options` are those of Pillow."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def _read(path: Path) -> Image.Image:
    """An image file as RGB, downscaled while decoding where the format allows it."""
    max_bytes, max_pixels = limits.MAX_IMAGE_BYTES, limits.MAX_IMAGE_PIXELS
    try:
        size = path.stat().st_size
        check(size <= max_bytes, f"{path} must be at most {max_bytes:,} bytes, got {size:,}; make it smaller")
        Image.init()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # Pillow's other readers may start programs: its EPS reader runs Ghostscript.
            opened = Image.open(path, formats=[kind for kind in limits.IMAGE_FORMATS if kind in Image.OPEN])
        with opened:
            width, height = opened.size
            rule = f"{path} must have at most {max_pixels:,} pixels"
            check(width * height <= max_pixels, f"{rule}, got {width} x {height}; make it smaller")
            opened.draft("RGB", (MAX_SIDE, MAX_SIDE))
            return _rgb(opened)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise SightlineError(f"images must be readable image files, got {str(path)!r}: {error}") from error


def _rgb(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation and convert any mode to RGB; 16-bit and float images are rescaled."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("I", "F") or upright.mode.startswith("I;16"):
        upright = Image.fromarray(_to_uint8(np.asarray(upright)))
    return upright.convert("RGB")


def _to_uint8(array: Any) -> Any:
    """(H, W), (H, W, C) or (C, H, W) as uint8 (H, W) or (H, W, C).

    Floats from 0 to 1 are scaled to 255. Any other range is stretched from its minimum to its maximum.
    """
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)) or 0 in array.shape:
        hint = "; pass one image of the batch" if array.ndim == 4 else ""
        raise SightlineError(f"images must have shape (H, W), (H, W, 3) or (3, H, W), got {array.shape}{hint}")
    if array.dtype == np.uint8:
        return array
    array = array.astype(np.float64)
    check(np.isfinite(array).all(), "images must be finite, got NaN or infinity")
    if array.min() < 0 or array.max() > 1:
        array = (array - array.min()) / max(float(np.ptp(array)), 1e-9)
    return (array * 255).round().astype(np.uint8)


class ImageTable:
    """Images of a page. Each is stored once and referenced by its index."""

    def __init__(self) -> None:
        self.images: list[dict[str, Any]] = []
        self._indices: dict[tuple[Any, ...], int] = {}

    def add(self, pixels: Any, side: int) -> int:
        """The index of an image, uint8 (H, W) or (H, W, 3), that is at most `side` pixels wide and high on the page."""
        key = (pixels.shape, side, hashlib.sha256(pixels.tobytes()).digest())
        if key not in self._indices:
            image = Image.fromarray(pixels)
            image.thumbnail((side, side))
            is_small = max(image.size) <= MAX_LOSSLESS_SIDE
            source = data_url(image, "png") if is_small else data_url(image, "webp", **WEBP_OPTIONS)
            self._indices[key] = len(self.images)
            self.images.append({"src": source, "width": image.width, "height": image.height})
        return self._indices[key]
