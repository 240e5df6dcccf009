"""Which files are images, by their names; the image files of folders."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ... import limits
from ...errors import check
from ...names import display_path

_SUFFIXES = "png apng jpg jpeg jpe jfif gif bmp tif tiff webp avif ppm pgm pbm pnm"
IMAGE_SUFFIXES = frozenset(f".{suffix}" for suffix in _SUFFIXES.split())
"""Suffixes of image files in folders and archives."""
HEIF_SUFFIXES = frozenset({".heic", ".heif"})
"""Suffixes of image files that are read with pillow-heif, an optional dependency."""
NEEDS_HEIF = "which need pillow-heif: pip install 'sightline[heif]'"


def is_hidden(name: str) -> bool:
    """True for files and folders that are never read: those of the system, and caches of Python."""
    return name.startswith((".", "__MACOSX")) or name == "__pycache__"


def is_image_name(name: str) -> bool:
    """True for file names with the suffix of an image that can be read, unless hidden."""
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - fast
    return not is_hidden(name) and (suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and has_heif()))


def check_not_image_file(item: Any, owner: str = "") -> None:
    """Raise an error if the input of a text model is the path of an image file; `owner` begins the message."""
    is_path = isinstance(item, str | Path) and is_image_name(os.path.basename(item))  # noqa: PTH119 - any text
    is_file = is_path and os.path.isfile(item)  # noqa: PTH113 - false for an invalid path
    rule, fix = "an input of a model of texts must be a text", "use a model of images for it, or pass the text itself"
    check(not is_file, f"{owner}{rule}, got the image file {display_path(str(item))!r}; {fix}")


@cache
def has_heif() -> bool:
    """Whether pillow-heif is installed, which reads HEIC images; it is then registered as a reader of Pillow."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def list_images(folder: Path) -> list[Path]:
    """Image files directly in a folder, sorted by name. Hidden files and other suffixes are skipped."""
    with os.scandir(folder) as entries:
        return [folder / name for name in sorted(entry.name for entry in entries if is_image_name(entry.name))]


def expand_image_paths(paths: Sequence[str]) -> list[Path]:
    """Paths of images. A folder is replaced by the images in it and in its folders, if there are any."""
    images: list[Path] = []
    for path in map(Path, paths):
        in_folder = list(_images_below(path)) if path.is_dir() else []
        images += in_folder or [path]
    return images


def _images_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    """The images of a folder, then those of each of its folders, by name."""
    name, maximum = display_path(folder), limits.MAX_FOLDER_DEPTH
    check(depth <= maximum, f"a folder of images must have at most {maximum} nested folders, got more in {name}")
    yield from list_images(folder)
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name))
    for inner in names:
        yield from _images_below(folder / inner, depth + 1)
