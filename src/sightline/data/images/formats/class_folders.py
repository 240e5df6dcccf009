"""A folder with one folder of images for each class.

Class folders can be nested in folders of groups: the class of `Latin/a/1.png` is "Latin/a". All of it can be inside
folders of splits, such as `train` and `test`, and inside wrapper folders that all files share.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import torch

from .... import limits
from ....errors import SightlineError, check
from ....names import display_path
from ..datasets import SPLIT_NAMES, ImageFiles, Images, check_class_names, open_image_file
from ..paths import IMAGE_SUFFIXES, is_hidden, is_image_name
from ..reading import read_header
from .arrays import square_side

DESCRIPTION = "a folder with one folder of images for each class, or train/, validation/ and test/ of such folders"

OMNIGLOT_FOLDERS = {
    "images_background": "train",
    "background": "train",
    "images_evaluation": "test",
    "evaluation": "test",
}
"""Folders of Omniglot, and the split of each."""
SPLIT_FOLDERS = SPLIT_NAMES | OMNIGLOT_FOLDERS
"""Folders of splits, and the split of each."""
_TRAIN_FOLDERS = {"train", "images_background"}  # if one of them contains folders, the others must be splits too
HEADER_SAMPLE = 10_000
"""Files of a data set whose headers are read to determine size and channels."""

EMPTY_FOLDER = (
    f"folder {{}} must contain at least one image ({', '.join(sorted(IMAGE_SUFFIXES))}), got none; fill it or remove it"
)
PathParts = tuple[str, ...]


def detect(path: Path) -> bool:
    """Whether a folder contains folders."""
    return path.is_dir() and any(entry.is_dir() for entry in path.iterdir() if not is_hidden(entry.name))


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read class folders, which can be nested in folders of groups."""
    return image_files(path, list_files(path), size, channels)


def list_files(folder: Path) -> list[str]:
    """Relative paths of all images in subfolders, with slashes. Hidden entries are skipped; empty folders rejected."""
    files: list[str] = []
    name = display_path(folder)
    max_depth, max_files = limits.MAX_FOLDER_DEPTH, limits.MAX_IMAGE_FILES

    def visit(path: Path, prefix: str, depth: int) -> None:
        where, count = display_path(path), len(files)
        check(depth <= max_depth, f"{name} must have at most {max_depth} nested folders, got more in {where}")
        with os.scandir(path) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    visit(path / entry.name, f"{prefix}{entry.name}/", depth + 1)
                elif prefix and is_image_name(entry.name):
                    files.append(prefix + entry.name)
        check(len(files) <= max_files, f"{name} must have at most {max_files:,} images, got more")
        check(len(files) > count, EMPTY_FOLDER.format(where))

    visit(folder, "", 0)
    return sorted(files)


def image_files(
    source: Path, files: Sequence[str], size: int | None, channels: int | None, *, is_archive: bool = False
) -> dict[str, Images]:
    """Image files of each split from relative paths of a folder or archive.

    Splits whose classes are all in train share its class table; others have their own.
    """
    files = [file for file in files if "/" in file]
    check(files, f"{display_path(source)} must contain class folders with images, got none")
    parts = _without_wrappers([tuple(file.split("/")) for file in files])
    splits = _splits(parts, source)
    classes = ["/".join(path[1:-1] if splits else path[:-1]) for path in parts]
    _check_classes(classes, source)
    members: dict[str, list[int]] = {}
    for i, split in enumerate(splits or ["train"] * len(files)):
        members.setdefault(split, []).append(i)

    archive = source if is_archive else None
    paths = [Path(file) if is_archive else source / file for file in files]
    size, channels = _common_size_and_channels(paths, archive, size, channels)
    train_classes = {classes[i] for i in members["train"]}
    result: dict[str, Images] = {}
    for split, indices in members.items():
        names = {classes[i] for i in indices}
        table = tuple(sorted(train_classes if names <= train_classes else names))
        label_of = {name: label for label, name in enumerate(table)}
        indices.sort(key=lambda i: (classes[i], files[i]))
        labels = torch.tensor([label_of[classes[i]] for i in indices])
        result[split] = ImageFiles(tuple(paths[i] for i in indices), labels, table, size, channels, archive)
    return result


def _without_wrappers(parts: list[PathParts]) -> list[PathParts]:
    """Paths without the first folders that all of them share."""
    while min(map(len, parts)) > 2 and len({path[0] for path in parts}) == 1:
        if parts[0][0].lower() in SPLIT_FOLDERS:
            break
        parts = [path[1:] for path in parts]
    return parts


def _splits(parts: Sequence[PathParts], source: Path) -> list[str]:
    """The split of each path, or nothing if the first folders are not splits. A single split folder is train."""
    folders = {path[0].lower(): path[0] for path in parts}
    nested = {path[0].lower() for path in parts if len(path) > 2}
    if not nested & _TRAIN_FOLDERS and not set(folders) <= set(SPLIT_FOLDERS) & nested:
        return []
    name = display_path(source)
    rule = f"{name} must contain splits (train, validation, test) or class folders only"
    others = [folder for lower, folder in folders.items() if lower not in SPLIT_FOLDERS or lower not in nested]
    check(not others, f"{rule}, got {str(others)[1:-1]} beside them; move it elsewhere")
    if loose := next((path for path in parts if len(path) == 2), None):
        raise SightlineError(f"images in {name} must be in class folders, got {'/'.join(loose)!r} beside them")
    if len(folders) == 1:
        return ["train"] * len(parts)
    first: dict[str, str] = {}
    for lower, folder in sorted(folders.items()):
        split = SPLIT_FOLDERS[lower]
        other = first.setdefault(split, folder)
        check(other == folder, f"{name} must contain one {split} folder, got {other!r} and {folder!r}")
    names = ", ".join(sorted(folders.values()))
    check("train" in first, f"{name} must contain a train folder with class folders, got only {names}")
    return [SPLIT_FOLDERS[path[0].lower()] for path in parts]


def _check_classes(classes: Sequence[str], source: Path) -> None:
    name = display_path(source)
    unique = sorted(set(classes))
    check(len(unique) > 1, f"{name} must contain at least two class folders, got only {unique[0]!r}")
    check_class_names(unique)
    parents = {str(parent) for class_name in unique for parent in PurePosixPath(class_name).parents}
    if both := sorted(parents & set(unique)):
        rule = f"a folder in {name} must contain images or class folders, got both in {both[0]!r}"
        raise SightlineError(f"{rule}; move its images into a folder of their own")


def _common_size_and_channels(
    paths: Sequence[Path], archive: Path | None, size: int | None, channels: int | None
) -> tuple[int, int]:
    """Size and channels of all images, from the headers of a sample, unless both are given."""
    if size is not None and channels is not None:
        return size, channels
    step = max(1, math.ceil(len(paths) / HEADER_SAMPLE))
    first: dict[tuple[int, int], Path] = {}
    is_color, is_readable = False, True
    for path in paths[::step]:
        try:
            header = read_header(*open_image_file(path, archive))
        except SightlineError:
            is_readable = False
            continue
        is_color |= header.is_color
        first.setdefault((header.width, header.height), path)
    if not is_readable:  # one error lists all files that cannot be read
        ImageFiles(tuple(paths), torch.zeros(len(paths), dtype=torch.int64), ("all",), 8, 1, archive).load()
    if size is None:
        shapes = [f"{width} x {height} in {display_path(path)}" for (width, height), path in first.items()]
        rule = f"images must have the same size if no image size is given, got {' and '.join(shapes[:2])}"
        check(len(first) == 1, f"{rule}; set data.image_size")
        ((width, height), path), *_ = first.items()
        size = square_side(width, height, f"images such as {display_path(path)}")
    return size, channels or (3 if is_color else 1)
