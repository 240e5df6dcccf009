"""One picture in, one uint8 tensor out, whatever its mode; or an error that names the file."""

import io
import math
import threading
import warnings
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...errors import SightlineError, check_int

MOST_BYTES = 1 << 27
"""No picture file is larger than this."""
MOST_PIXELS = 80_000_000
"""No picture has more pixels than this, whatever its file weighs."""
MOST_SIZE = 4096
"""The longest side a picture may be resized to."""
_ENDINGS = "png apng jpg jpeg jpe jfif gif bmp tif tiff webp avif ppm pgm pbm pnm"
SUFFIXES = frozenset(f".{ending}" for ending in _ENDINGS.split())
"""What a file in a class folder must end with to be taken for an image."""

Source = str | PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any] | Tensor

_WARNINGS = threading.Lock()  # what is done with warnings is the same for all threads
# Only plain pictures: some of Pillow's other readers start other programs or follow links.
_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM")
_READABLE = "a PNG, JPEG, GIF, BMP, TIFF, WebP, AVIF or PPM image"
_GRAY = {"1", "L", "LA", "La", "I", "F"}
_ALPHA = {"RGBA", "LA", "PA", "RGBa", "La"}
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # the orientation of a camera, as EXIF counts it, and what undoes it


def read_image(source: Source, *, size: int | None = None, channels: int | None = None) -> Tensor:
    """A picture as uint8 (C, H, W), upright, its transparent parts over white.

    `source` is a path, the bytes of a file, a PIL image, an array (H, W) or (H, W, C), or a tensor (H, W) or (C, H, W);
    arrays and tensors hold uint8, or floats from 0 to 1. `size` scales the shorter side to it and cuts the square in
    the middle. `channels` 1 makes it gray, 3 colored; without it a gray picture has 1 and any other 3.
    """
    check_form(size, channels)
    name, picture = _open(source)
    try:
        _check_pixels(name, picture)
        if size is not None and picture is not source:
            _draft(picture, size)
        picture.load()
        turn = _TURNS.get(_orientation(picture))  # after loading: a TIFF is turned by then, and says so
        plain = _eight_bit(name, picture, channels)
        if turn is not None:
            plain = plain.transpose(turn)
        array = np.array(plain if size is None else _square(plain, size))
    except _RefusedError as error:
        raise SightlineError(str(error)) from None
    except Exception as error:  # whatever a decoder stumbles over
        raise _unreadable(name, error) from error
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def check_form(size: int | None, channels: int | None) -> None:
    """What is asked of every picture must be possible."""
    if size is not None:
        check_int(1, size=size)
        if size > MOST_SIZE:
            raise SightlineError(f"size must be at most {MOST_SIZE}, got {size}")
    if channels not in (None, 1, 3):
        raise SightlineError(f"channels must be 1 (gray) or 3 (color), got {channels!r}")


def header(source: Path | bytes) -> tuple[int, int, bool]:
    """Width, height (upright) and whether there is color, from the first bytes of the file alone."""
    name = "the image" if isinstance(source, bytes) else str(source)
    try:
        if not isinstance(source, bytes):
            _check_file(source)
        with (
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file,
            _decoder(name, file) as picture,
        ):
            _check_pixels(name, picture)
            width, height = picture.size
            # a TIFF gives its size upright, and a PNG that does not begin with EXIF would be decoded to look for it
            if picture.format != "TIFF" and "exif" in picture.info and _orientation(picture) >= 5:
                width, height = height, width
            return width, height, not _is_gray(picture)
    except _RefusedError as error:
        raise SightlineError(str(error)) from None
    except Exception as error:
        raise _unreadable(name, error) from error


class _RefusedError(Exception):
    """A message for the user that is already complete."""


def _unreadable(name: str, error: Exception) -> SightlineError:
    said = " ".join(str(error).split())[:200] or type(error).__name__
    if type(error).__name__ == "UnidentifiedImageError":
        said = "none of these"
    return SightlineError(f"{name} must be {_READABLE} and whole, got {said}; replace the file or remove it")


def _open(source: Source) -> tuple[str, Image.Image]:
    """The picture, not decoded yet, and what to call it in messages."""
    if isinstance(source, Image.Image):
        return "the image", source
    if isinstance(source, np.ndarray | Tensor):
        return "the image", _from_array(source)
    name = "the image"
    try:
        if isinstance(source, bytes | bytearray):
            if len(source) > MOST_BYTES:
                raise _RefusedError(
                    f"{name} must be at most {MOST_BYTES:,} bytes, got {len(source):,}; make it smaller"
                )
            return name, _decoder(name, io.BytesIO(source))
        if not isinstance(source, str | PathLike):
            raise _RefusedError(
                f"an image must be a path, bytes, a PIL image, an array or a tensor, got {type(source).__name__}"
            )
        path = Path(source)
        name = str(path)
        _check_file(path)
        with path.open("rb") as file:
            return name, _decoder(name, io.BytesIO(file.read(MOST_BYTES + 1)))
    except _RefusedError as error:
        raise SightlineError(str(error)) from None
    except Exception as error:
        raise _unreadable(name, error) from error


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise _RefusedError(
            f"an image must be a file, got {str(path)!r}, which is {'no file' if path.exists() else 'not there'}"
        )
    if (size := path.stat().st_size) > MOST_BYTES:
        raise _RefusedError(f"{path} must be at most {MOST_BYTES:,} bytes, got {size:,}; make it smaller")


def _decoder(name: str, file: IO[bytes]) -> Image.Image:
    """The picture by its header; Pillow's own limit is told in our words, and its warning comes to nothing."""
    Image.init()
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            return Image.open(file, formats=[kind for kind in _FORMATS if kind in Image.OPEN])
        except Image.DecompressionBombError:
            most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
            raise _RefusedError(
                f"{name} must have 1 to {MOST_PIXELS:,} pixels, got over {most:,}; make it smaller"
            ) from None


def _check_pixels(name: str, picture: Image.Image) -> None:
    width, height = picture.size
    if not 0 < width * height <= MOST_PIXELS:
        raise _RefusedError(f"{name} must have 1 to {MOST_PIXELS:,} pixels, got {width} x {height}; make it smaller")


def _from_array(source: np.ndarray[Any, Any] | Tensor) -> Image.Image:
    if isinstance(source, Tensor):
        tensor = source.detach().cpu()
        tensor = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16, torch.float64) else tensor
        array, order, places = tensor.numpy(), "(H, W) or (C, H, W)", tensor.shape
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    else:
        array, order, places = source, "(H, W) or (H, W, C)", source.shape
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (2, 3, 4)):
        raise SightlineError(f"an image must have shape {order} with 1 to 4 channels, got {tuple(places)}")
    if not 0 < array.shape[0] * array.shape[1] <= MOST_PIXELS:
        raise SightlineError(f"an image must have 1 to {MOST_PIXELS:,} pixels, got shape {tuple(places)}")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    elif np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):  # NaN is refused too
            raise SightlineError(f"an image of floats must lie within 0 and 1, got {low:g} to {high:g}")
        array = np.rint(array * 255.0).astype(np.uint8)
    elif array.dtype == np.uint16 and array.ndim == 2:
        array = _sixteen_to_eight(array)
    elif array.dtype != np.uint8:
        raise SightlineError(f"an image must be uint8, or floats from 0 to 1, got {source.dtype}")
    return Image.fromarray(np.ascontiguousarray(array))


def _draft(picture: Image.Image, size: int) -> None:
    """Let a large JPEG be decoded at an eighth, a quarter or a half, but never under twice what is wanted."""
    shorter = min(picture.size)
    if picture.format == "JPEG" and shorter > 2 * size:
        width, height = (math.ceil(side * 2 * size / shorter) for side in picture.size)
        picture.draft(None, (width, height))


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(0x0112, 1))
    except Exception:  # damaged EXIF says nothing; the pixels may still be fine
        return 1


def _is_gray(picture: Image.Image) -> bool:
    return picture.mode in _GRAY or picture.mode.startswith("I;")


def _eight_bit(name: str, picture: Image.Image, channels: int | None) -> Image.Image:
    """Mode L or RGB, from any mode."""
    gray = _is_gray(picture)
    if picture.mode == "I" or picture.mode.startswith("I;"):
        array = np.asarray(picture if picture.mode == "I" else picture.convert("I"))
        low, high = int(array.min()), int(array.max())
        if low < 0 or high > 65535:
            raise _RefusedError(
                f"{name} must hold gray values of 0 to 65535, got {low} to {high}; save it with 8 or 16 bits"
            )
        picture = Image.fromarray(_sixteen_to_eight(array))
    elif picture.mode == "F":
        array = np.asarray(picture)
        least, most = float(array.min()), float(array.max())
        if not (least >= 0 and most <= 255):
            raise _RefusedError(
                f"{name} must hold gray values from 0 to 1 or 0 to 255, got {least:g} to {most:g}; save it with 8 bits"
            )
        picture = Image.fromarray(np.rint(array * (255.0 if most <= 1 else 1.0)).astype(np.uint8))
    elif picture.mode in _ALPHA or "transparency" in picture.info:
        seen = picture.convert("RGBA")
        white = Image.new("RGBA", seen.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, seen).convert("RGB")
    mode = "L" if channels == 1 or (channels is None and gray) else "RGB"
    return picture if picture.mode == mode else picture.convert(mode)


def _sixteen_to_eight(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ((array.astype(np.int64) * 255 + 32767) // 65535).astype(np.uint8)


def _square(picture: Image.Image, size: int) -> Image.Image:
    """The middle square, scaled: what is cut away is never scaled, however long the picture is."""
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    if width != height:
        picture = picture.crop((left, top, left + side, top + side))
    return picture if side == size else picture.resize((size, size), Image.Resampling.BICUBIC)
