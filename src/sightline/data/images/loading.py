"""Loading image data sets by name or path."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import SightlineError, check_int, closest, one_of, reraise
from ...files import warn_of_path
from ...names import display_path
from ..fetching.catalog import fetch_hint
from ..sources import single_archive
from . import glyphs
from .datasets import ImageFiles, Images, Progress, Splits, load_splits, raise_all
from .formats import FORMATS, class_folders
from .paths import list_images
from .reading import check_image_options

DEFAULT_MEMORY = 1 << 32
"""Bytes of decoded images that are kept in memory by default."""


class UnknownSourceError(SightlineError):
    """A source does not exist or has no known format."""


def load(
    source: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    class_disjoint: bool = False,
    progress: Progress | None = None,
) -> Splits:
    """Load an image data set.

    Args:
        source: The name `glyphs`, or a path in one of the `FORMATS`, which is detected.
        size: Side length to resize images to (default: that of the images).
        channels: 1 for grayscale, 3 for color (default: those of the images).
        max_memory: Bytes of images to keep in memory. Image files that take more are decoded when they are read.
        class_disjoint: Accept sources whose splits have different classes, such as Omniglot.
        progress: Called with the number of decoded images and the total.
    """
    check_image_options(size, channels)
    check_int(0, max_memory=max_memory)
    if source == glyphs.NAME:
        warn_of_path(glyphs.NAME)
        return glyphs.splits(size, channels)
    images, format_name = read_source(source, size, channels)
    has_own_classes = any(part.classes != images["train"].classes for part in images.values())
    if has_own_classes and not class_disjoint:
        _check_classes(images, source)
    if sum(len(x) * x.channels * x.size**2 for x in images.values() if isinstance(x, ImageFiles)) <= max_memory:
        images = {**load_splits(images, progress)}
    return Splits(images["train"], images.get("validation"), images.get("test"), format_name, has_own_classes)


def read_source(source: str | Path, size: int | None, channels: int | None) -> tuple[dict[str, Images], str]:
    """Images of each split of a path, not decoded where they are image files, and the name of the format."""
    path = Path(source).expanduser()
    if not path.exists():
        rule = f"a data set must be an existing path, or {glyphs.NAME} for generated characters"
        got = f"got {str(source)!r}{closest(str(source), [glyphs.NAME])}"
        raise UnknownSourceError(f"{rule}, {got}{fetch_hint(source)}")
    with reraise(f"{display_path(path)} must be readable", OSError):
        for candidate in dict.fromkeys((path, single_archive(path))):
            if format_name := detect_format(candidate):
                with _all_errors(candidate, format_name):
                    return FORMATS[format_name].read(candidate, size, channels), format_name
    descriptions = "".join(f"\n  {image_format.DESCRIPTION}" for image_format in FORMATS.values())
    got = f"got {display_path(path)!r}, {describe(path)}"
    raise UnknownSourceError(f"a data set must have one of the formats below, {got}:{descriptions}")


@contextmanager
def _all_errors(path: Path, format_name: str) -> Iterator[None]:
    """Where class folders cannot be read, raise one error that lists everything that is wrong with them."""
    try:
        yield
    except SightlineError:
        if FORMATS[format_name] is not class_folders:
            raise
        from .checks import folder_errors

        errors = folder_errors(path)
        if len(errors) < 2:
            raise
        raise_all(f"{display_path(path)} must have files and folders that can be used, got {{}} that cannot", errors)


def describe(path: Path) -> str:
    """What a path is that is not a data set."""
    if not path.is_dir():
        return "which is a file" if path.exists() else f"which does not exist{fetch_hint(path)}"
    count = len(list_images(path))
    if not count:
        return "which contains neither folders nor images"
    plural = "s" if count > 1 else ""
    return f"which contains {count:,} image{plural} and no folders; move the images of each class into a folder"


def detect_format(path: Path) -> str | None:
    """Name of the first format that can read a path."""
    return next((name for name, image_format in FORMATS.items() if image_format.detect(path)), None)


def _check_classes(images: dict[str, Images], source: str | Path) -> None:
    """All classes must be in train."""
    train = images["train"].classes
    for split, part in images.items():
        if unknown := [name for name in part.classes if name not in train]:
            rule = f"a class of {split} in {display_path(source)} must be in train, {one_of(unknown[0], train)}"
            raise SightlineError(f"{rule}; for splits with different classes use task=few_shot")
