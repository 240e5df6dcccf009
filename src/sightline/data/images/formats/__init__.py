"""Image formats. A format is a module with `DESCRIPTION`, `detect` and `read`, and a line in `FORMATS`."""

from pathlib import Path
from typing import Protocol

from ..datasets import Images
from . import cifar, class_folders, idx, npz, omniglot, tile_sheets, zip_files


class Format(Protocol):
    """Interface of a format module."""

    DESCRIPTION: str
    """Expected files, shown if no format matches."""

    def detect(self, path: Path, /) -> bool:
        """Whether the format can read a file or folder."""

    def read(self, path: Path, /, size: int | None, channels: int | None) -> dict[str, Images]:
        """Images of each split: train, and optionally validation and test.

        `size` and `channels` convert the images; None keeps those of the source.
        """


FORMATS: dict[str, Format] = {
    "Omniglot": omniglot,
    "npz": npz,
    "zip file": zip_files,
    "idx files": idx,
    "CIFAR binary files": cifar,
    "tile sheets": tile_sheets,
    "class folders": class_folders,
}
"""Formats by name, in the order of detection."""
