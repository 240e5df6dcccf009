"""A zip file of class folders."""

from pathlib import Path, PurePosixPath

from ....errors import check
from ....names import display_path
from ..archives import open_archive
from ..datasets import Images
from ..paths import is_image_name
from .class_folders import image_files

DESCRIPTION = "a .zip file of class folders, as above or as Omniglot"


def detect(path: Path) -> bool:
    """Whether the path is a zip file."""
    return path.is_file() and path.suffix.lower() == ".zip"


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read class folders from a zip file without extracting it."""
    files = open_archive(path).files
    has_runs = any(PurePosixPath(file).name == "class_labels.txt" for file in files)
    name = display_path(path)
    check(not has_runs, f"{name} must contain class folders, got Omniglot one-shot runs; use read_one_shot_runs")
    images = [file for file in files if is_image_name(PurePosixPath(file).name)]
    return image_files(path, images, size, channels, is_archive=True)
