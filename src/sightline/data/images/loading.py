"""Data sets of labelled images, by name or by path: the door to all that reads them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...errors import SightlineError, check_int, one_of
from . import glyphs
from .datasets import ImageFiles, Images, ImageSet, Progress, Splits, split
from .formats import cifar, folders, idx, npz
from .formats import tile_sheets as sheets
from .formats.arrays import fit
from .reading import check_form, read_image
from .summary import SplitSummary, Summary, contact_sheet, summary

__all__ = [
    "FORMATS",
    "NAMED",
    "ImageFiles",
    "ImageSet",
    "Images",
    "NoDataSetError",
    "Progress",
    "SplitSummary",
    "Splits",
    "Summary",
    "contact_sheet",
    "load",
    "read_image",
    "split",
    "summary",
]

NAMED: dict[str, Callable[[], Splits]] = {"glyphs": glyphs.splits}
"""Data sets that need no file."""

FORMATS = (
    "a folder with one folder of images for each class, or train/, validation/ and test/ that hold such folders",
    "a folder of idx files as MNIST has them: train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz], t10k-…",
    "one .npz with x_train, y_train, x_test, y_test, or train_images, train_labels, …, or images, labels",
    "a folder of CIFAR's binary files: data_batch_1.bin …, test_batch.bin, or train.bin, test.bin",
    "a folder of sheets of tiles: train_0.jpg …, test_0.jpg …, and labels.json with classes, tile, grid, train, test",
)
"""What `load` reads."""


class NoDataSetError(SightlineError):
    """Nothing is there that `load` reads."""


def load(
    source: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    keep_in_memory: int = 2**32,
    progress: Progress | None = None,
) -> Splits:
    """A data set by name (one of `NAMED`) or by path (one of `FORMATS`, found out by looking).

    `size` is the side every image is brought to, `channels` 1 or 3; both are those of the images if not given. A folder
    of images that would take more than `keep_in_memory` bytes stays in its files (`ImageFiles`).
    """
    check_form(size, channels)
    check_int(0, keep_in_memory=keep_in_memory)
    if isinstance(source, str) and source in NAMED:
        return _fitted(NAMED[source](), size, channels)
    path = Path(source).expanduser()
    if not path.exists():
        raise NoDataSetError(f"a data set must be a path that is there, or {one_of(str(source), NAMED)}")
    try:
        if path.is_file():
            if path.suffix.lower() == ".npz":
                return npz.read_npz(path, size, channels)
        elif idx.is_idx(path):
            return idx.read_idx(path, size, channels)
        elif cifar.is_cifar(path):
            return cifar.read_cifar(path, size, channels)
        elif sheets.is_sheets(path):
            return sheets.read_sheets(path, size, channels)
        elif folders.is_folders(path):
            return folders.read_folders(path, size, channels, keep_in_memory, progress)
        elif len(archives := sorted(path.glob("*.npz"))) == 1:
            return npz.read_npz(archives[0], size, channels)
    except OSError as error:
        raise SightlineError(f"{path} must be readable, got an error: {error}") from error
    listed = "".join(f"\n  {text}" for text in FORMATS)
    raise NoDataSetError(f"a data set must be one of these:{listed}\ngot {str(path)!r}, which is none of them")


def _fitted(splits: Splits, size: int | None, channels: int | None) -> Splits:
    def fitted(images: Images | None) -> Images | None:
        if not isinstance(images, ImageSet):
            return images
        return replace(images, pixels=fit(images.pixels, size, channels, "the images"))

    train = fitted(splits.train)
    assert train is not None
    return Splits(train, fitted(splits.validation), fitted(splits.test), kind=splits.kind)
