"""Image formats. A format is a module with `NAME`, `DESCRIPTION`, `detect` and `read`, listed in `FORMATS`."""

from pathlib import Path
from typing import Protocol

from ..datasets import Images
from . import cifar, class_folders, idx, npz, omniglot, tile_sheets, zip_files


class Format(Protocol):
    """Interface of a format module."""

    NAME: str
    """Short name, shown by `sightline data`."""
    DESCRIPTION: str
    """Expected files, shown if no format matches."""

    def detect(self, path: Path, /) -> bool:
        """Whether the format can read a file or folder. Checks names, not contents, where possible."""

    def read(self, path: Path, /, size: int | None, channels: int | None) -> dict[str, Images]:
        """Images of each split: train, and optionally validation and test.

        `size` and `channels` convert the images; None keeps those of the source.
        """


FORMATS: list[Format] = [omniglot, npz, zip_files, idx, cifar, tile_sheets, class_folders]
"""All formats in the order of detection."""
