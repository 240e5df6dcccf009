"""Reading one image: decode, convert to uint8, resize. All limits on image files are enforced here."""

import io
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ... import limits
from ...errors import SightlineError, check, check_int, check_max
from ...names import display_path
from .paths import NEEDS_HEIF, has_heif, list_images

ImageSource = str | PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any] | Tensor

_FORMATS = "PNG, JPEG, GIF, BMP, TIFF, WebP, AVIF, HEIC or PPM image"
_AGAIN = "copy or download it again, or remove it"
_CUT_OFF = re.compile("truncated|EOF", re.IGNORECASE)
"""What decoders say of a file that ends too early."""
_SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_GRAY_MODES = {"1", "L", "LA", "La", "I", "F"}
_ALPHA_MODES = {"RGBA", "LA", "PA", "RGBa", "La"}
_TRANSPOSE = {  # EXIF orientation -> operation that makes the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Free memory of large images is returned to the system. With smaller blocks, every decoding thread would keep it.
Image.core.set_block_size(1 << 26)  # type: ignore[attr-defined]
_warnings_lock = threading.Lock()  # warning filters are shared by all threads


class ImageHeader(NamedTuple):
    """Properties of an image file that need no decoding."""

    width: int
    """Width after applying the EXIF orientation."""
    height: int
    """Height after applying the EXIF orientation."""
    is_color: bool


def read_image(
    source: ImageSource, *, size: int | None = None, channels: int | None = None, name: str | None = None
) -> Tensor:
    """Read an image as uint8 (C, H, W), upright, with transparent pixels blended over white.

    Args:
        source: Path, bytes of a file, PIL image, array (H, W) or (H, W, C), or tensor (H, W) or (C, H, W). Arrays and
            tensors are uint8, or floats from 0 to 1.
        size: Resize the shorter side to `size` and crop the center square.
        channels: 1 for grayscale, 3 for color. By default 1 for grayscale images and 3 for others.
        name: Name of the image in error messages (default: its path).
    """
    check_image_options(size, channels)
    name = name or (display_path(source) if isinstance(source, str | PathLike) else "the image")
    with _decoding(name):
        image = _open(source, name)
        _check_pixels(name, image)
        if size is not None and image is not source:
            _set_jpeg_scale(image, size)
        with _budget.reserve(image.width * image.height):
            image.load()
            transpose = _TRANSPOSE.get(_orientation(image))  # after loading, which applies the orientation of TIFF
            converted = _to_eight_bit(name, image, channels)
            if transpose is not None:
                converted = converted.transpose(transpose)
            array = np.array(converted if size is None else _resize(converted, size))
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def read_header(source: Path | bytes, name: str | None = None) -> ImageHeader:
    """Size and color of an image file without decoding its pixels."""
    name = name or ("the image" if isinstance(source, bytes) else display_path(source))
    with _decoding(name):
        if isinstance(source, bytes):
            _check_bytes(name, len(source))
        else:
            _check_file(name, source)
        with (
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file,
            _open_with_pillow(file) as image,
        ):
            _check_pixels(name, image)
            width, height = image.size
            # Pillow applies the orientation of TIFF; a PNG without leading EXIF would be decoded to look for it
            if image.format != "TIFF" and "exif" in image.info and _orientation(image) >= 5:
                width, height = height, width
            return ImageHeader(width, height, not _is_gray(image))


def check_image_options(size: int | None, channels: int | None) -> None:
    """Check the size and channels that images are converted to."""
    if size is not None:
        check_int(1, size=size)
        check_max(limits.MAX_IMAGE_SIZE, size=size)
    check(channels in (None, 1, 3), f"channels must be 1 (gray) or 3 (color), got {channels!r}")


class _PixelBudget:
    """Bounds the pixels that all threads decode at the same time."""

    def __init__(self) -> None:
        self._changed, self._in_flight = threading.Condition(), 0

    @contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Wait until `pixels` fit into `MAX_DECODING_PIXELS`. A single image always fits."""
        with self._changed:
            while self._in_flight and self._in_flight + pixels > limits.MAX_DECODING_PIXELS:
                self._changed.wait()
            self._in_flight += pixels
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= pixels
                self._changed.notify_all()


_budget = _PixelBudget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_budget.__init__)  # type: ignore[misc] # threads do not survive a fork


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Raise every error of a decoder, which can have any type, as one that names the file."""
    try:
        yield
    except SightlineError:
        raise
    except Image.DecompressionBombError:
        got = f"over {2 * (Image.MAX_IMAGE_PIXELS or 0):,}; resize it"  # Pillow's own limit
        raise SightlineError(f"{name} must have 1 to {limits.MAX_IMAGE_PIXELS:,} pixels, got {got}") from None
    except Exception as error:
        text, fix = " ".join(str(error).split())[:200] or type(error).__name__, "replace or remove the file"
        if isinstance(error, UnidentifiedImageError):
            text = "another format"
        elif _CUT_OFF.search(text):
            text, fix = "a file that is cut off", _AGAIN
        raise SightlineError(f"{name} must be a complete {_FORMATS}, got {text}; {fix}") from error


def _open(source: ImageSource, name: str) -> Image.Image:
    """An image without decoded pixels."""
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, np.ndarray | Tensor):
        return _from_array(source)
    if isinstance(source, str | PathLike):
        path = Path(source)
        size = _check_file(name, path)
        with path.open("rb") as file:
            source = file.read(size)  # a larger bound would allocate as much
    is_valid, kind = isinstance(source, bytes | bytearray), type(source).__name__
    check(is_valid, f"an image must be a path, bytes, a PIL image, an array or a tensor, got {kind}")
    _check_bytes(name, len(source))
    return _open_with_pillow(io.BytesIO(source))


def _check_file(name: str, path: Path) -> int:
    """Bytes of an image file."""
    if path.is_dir() and not list_images(path):
        raise SightlineError(f"a folder of images must contain images, got none in {name!r}")
    if not path.is_file():
        fix = "is a folder; pass a list of its files" if path.is_dir() else "is not a file"
        state = fix if path.exists() else "does not exist"
        raise SightlineError(f"an image must be a file, got {name!r}, which {state}")
    _check_bytes(name, size := path.stat().st_size)
    return size


def _check_bytes(name: str, size: int) -> None:
    if size == 0:
        raise SightlineError(f"{name} must be a complete {_FORMATS}, got an empty file (0 bytes); {_AGAIN}")
    if size > limits.MAX_IMAGE_BYTES:
        raise SightlineError(f"{name} must be at most {limits.MAX_IMAGE_BYTES:,} bytes, got {size:,}")


def _open_with_pillow(file: IO[bytes]) -> Image.Image:
    """Open an image without decoding, with the readers that are allowed and installed."""
    Image.init()
    start, size = file.read(12), file.seek(0, os.SEEK_END)
    file.seek(0)
    if start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS and not has_heif():
        raise SightlineError(f"an image must be in an installed format, got HEIC, {NEEDS_HEIF}")
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            return Image.open(file, formats=[f for f in limits.IMAGE_FORMATS if f in Image.OPEN])
        except OSError as error:  # for some files, Pillow does not say that they are cut off
            if start[:4] + start[8:] == b"RIFFWEBP" and 8 + int.from_bytes(start[4:8], "little") > size:
                raise EOFError("truncated") from error
            has_signature = start.startswith(_SIGNATURES) or start[4:] == b"ftypavif"
            if isinstance(error, UnidentifiedImageError) and has_signature:
                raise OSError("a file that is cut off or damaged") from error
            raise


def _check_pixels(name: str, image: Image.Image) -> None:
    (width, height), maximum = image.size, limits.MAX_IMAGE_PIXELS
    if not 0 < width * height <= maximum:
        raise SightlineError(f"{name} must have 1 to {maximum:,} pixels, got {width} x {height}; resize it")


def _from_array(source: np.ndarray[Any, Any] | Tensor) -> Image.Image:
    if isinstance(source, Tensor):
        tensor = source.detach().cpu()
        array, order = (tensor.float() if tensor.is_floating_point() else tensor).numpy(), "(H, W) or (C, H, W)"
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    else:
        array, order = source, "(H, W) or (H, W, C)"
    shape = tuple(source.shape)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    has_channels = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (2, 3, 4))
    check(has_channels, f"an image must have shape {order} with 1 to 4 channels, got {shape}")
    has_size = 0 < array.shape[0] * array.shape[1] <= limits.MAX_IMAGE_PIXELS
    check(has_size, f"an image must have 1 to {limits.MAX_IMAGE_PIXELS:,} pixels, got shape {shape}; resize it")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    elif np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        is_in_range = low >= 0 and high <= 1  # False for NaN
        check(is_in_range, f"an image of floats must have values from 0 to 1, got {low:g} to {high:g}")
        array = np.rint(array * 255.0).astype(np.uint8)
    elif array.dtype == np.uint16 and array.ndim == 2:
        array = _sixteen_to_eight_bit(array)
    else:
        check(array.dtype == np.uint8, f"an image must be uint8, or floats from 0 to 1, got {source.dtype}")
    return Image.fromarray(np.ascontiguousarray(array))


def _set_jpeg_scale(image: Image.Image, size: int) -> None:
    """Decode a large JPEG at 1/8, 1/4 or 1/2 of its size, at least twice as large as needed."""
    shorter = min(image.size)
    if image.format == "JPEG" and shorter > 2 * size:
        width, height = (math.ceil(side * 2 * size / shorter) for side in image.size)
        image.draft(None, (width, height))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # damaged EXIF; the pixels can be intact
        return 1


def _is_gray(image: Image.Image) -> bool:
    return image.mode in _GRAY_MODES or image.mode.startswith("I;")


def _to_eight_bit(name: str, image: Image.Image, channels: int | None) -> Image.Image:
    """Convert any mode to L or RGB."""
    gray = _is_gray(image)
    if image.mode == "I" or image.mode.startswith("I;"):
        array = np.asarray(image if image.mode == "I" else image.convert("I"))
        low, high = array.min(), array.max()
        rule = f"{name} must have gray values from 0 to 65535, got {low} to {high}"
        check(low >= 0 and high <= 65535, f"{rule}; save it with 8 or 16 bits")
        image = Image.fromarray(_sixteen_to_eight_bit(array))
    elif image.mode == "F":
        array = np.asarray(image)
        low, high = array.min(), array.max()
        rule = f"{name} must have gray values from 0 to 1 or 0 to 255, got {low:g} to {high:g}"
        check(low >= 0 and high <= 255, f"{rule}; save it with 8 bits")
        image = Image.fromarray(np.rint(array * (255.0 if high <= 1 else 1.0)).astype(np.uint8))
    elif image.mode in _ALPHA_MODES or "transparency" in image.info:
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", transparent.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, transparent).convert("RGB")
    mode = "L" if channels == 1 or (channels is None and gray) else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _sixteen_to_eight_bit(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ((array.astype(np.int64) * 255 + 32767) // 65535).astype(np.uint8)


def _resize(image: Image.Image, size: int) -> Image.Image:
    """Crop the center square, then resize it: cost does not depend on the aspect ratio."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    if width != height:
        image = image.crop((left, top, left + side, top + side))
    return image if side == size else image.resize((size, size), Image.Resampling.BICUBIC)
