"""A folder with one folder of images for each class."""

from pathlib import Path

from ..datasets import Images
from .folder_trees import image_files, list_files

DESCRIPTION = (
    "a folder with one folder of images for each class, or train/, validation/ and test/ that contain such folders"
)


def detect(path: Path) -> bool:
    """Whether a folder contains folders."""
    return path.is_dir() and any(entry.is_dir() for entry in path.iterdir() if not entry.name.startswith((".", "__")))


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read class folders, which can be nested in folders of groups."""
    return image_files(path, list_files(path), size, channels)
