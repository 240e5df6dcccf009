"""Folders of class folders: the name of a folder is the class of the images in it."""

import math
import os
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import torch

from ....errors import SightlineError, one_of
from ..datasets import ImageFiles, Images, Progress, Splits, refuse
from ..reading import SUFFIXES, header
from .arrays import square

T = TypeVar("T")

MOST_FILES: Final = 5_000_000
"""No folder of images holds more files than this."""
MOST_HEADERS: Final = 10_000
"""Of how many files, evenly spread over the folder, the header is read before any is decoded."""

ROLES: Final = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""What the parts of a set may be called."""


def is_folders(path: Path) -> bool:
    """Whether there is a folder in this folder."""
    return path.is_dir() and bool(folders_in(path))


def read_folders(
    path: Path, size: int | None, channels: int | None, keep_in_memory: int, progress: Progress | None
) -> Splits:
    """A folder of class folders, which may stand inside train/, validation/ and test/."""
    inside = {name.lower(): name for name in folders_in(path)}
    if "train" in inside and is_folders(path / inside["train"]):
        homes: dict[str, Path] = {}
        for lower, name in inside.items():
            role = ROLES.get(lower)
            if role is None:
                raise SightlineError(
                    f"{path} must hold train, validation and test, or class folders alone, got {name!r} beside train"
                )
            if role in homes:
                raise SightlineError(f"{path} must hold one {role} folder, got {homes[role].name!r} and {name!r}")
            homes[role] = path / name
    elif inside and set(inside) <= set(ROLES):
        raise SightlineError(
            f"{path} must hold a train folder with class folders, got only {', '.join(inside.values())}"
        )
    else:
        homes = {"train": path}

    classes = _class_folders(homes["train"])
    lists = {role: _list(home, classes) for role, home in homes.items()}
    size, channels = common_form([file for files, _ in lists.values() for file in files], size, channels, header)
    parts: dict[str, Images] = {
        role: ImageFiles(tuple(files), torch.tensor(labels), classes, size, channels)
        for role, (files, labels) in lists.items()
    }
    count = sum(len(part) for part in parts.values())
    if count * channels * size * size <= keep_in_memory:
        before = 0
        for role, part in parts.items():
            assert isinstance(part, ImageFiles)
            parts[role] = part.loaded(_onward(progress, before, count))
            before += len(part)
    return Splits(parts["train"], parts.get("validation"), parts.get("test"), kind="class folders")


def _onward(progress: Progress | None, before: int, count: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, count)


def folders_in(path: Path) -> list[str]:
    """The names of the folders in a folder, in order; what is hidden is passed over."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith((".", "__")) and entry.is_dir())


def _class_folders(home: Path) -> tuple[str, ...]:
    names = folders_in(home)
    if len(names) == 1:
        inner = home / names[0]
        hint = f"; did you mean {inner}?" if folders_in(inner) else ""
        raise SightlineError(f"{home} must hold at least two class folders, got only {names[0]!r}{hint}")
    alike: dict[str, str] = {}
    for name in names:
        same = alike.setdefault(unicodedata.normalize("NFC", name).strip(), name)
        if same != name:
            raise SightlineError(f"class folders must have different names, got {same!r} and {name!r} in {home}")
    return tuple(names)


def _list(home: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The files of a split in the order of their names, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    numbers = {name: number for number, name in enumerate(classes)}
    for name in folders_in(home):
        if name not in numbers:
            raise SightlineError(f"a class folder in {home} must be one of those in train: {one_of(name, classes)}")
        found = images_in(home / name)
        files += [home / name / file for file in found]
        labels += [numbers[name]] * len(found)
        if len(files) > MOST_FILES:
            raise SightlineError(f"{home} must hold at most {MOST_FILES:,} images, got more")
    if not files:
        raise SightlineError(f"{home} must hold class folders with images, got none")
    return files, labels


def named_images(words: Sequence[str]) -> list[Path]:
    """What was typed, as paths of images; a folder stands for those directly in it."""
    paths: list[Path] = []
    for path in map(Path, words):
        if not path.is_dir():
            paths.append(path)
            continue
        with os.scandir(path) as entries:
            found = sorted(entry.name for entry in entries if _is_image(entry.name))
        if not found:
            inside = folders_in(path)
            hint = f"; it holds folders, give each by name, such as {str(path / inside[0])!r}" if inside else ""
            raise SightlineError(
                f"a folder of images must hold them directly, got {str(path)!r}, which holds none{hint}"
            )
        paths += [path / name for name in found]
    return paths


def count_images(folder: Path) -> int:
    """How many files directly inside end like an image."""
    with os.scandir(folder) as entries:
        return sum(_is_image(entry.name) for entry in entries)


def _is_image(name: str) -> bool:
    return not name.startswith((".", "__")) and os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - fast


def images_in(folder: Path) -> list[str]:
    """The images directly inside: what is hidden, and what does not end like an image, is passed over."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__")):
                continue
            if entry.is_dir():
                raise SightlineError(
                    f"class folder {folder} must hold its images directly, got the folder {entry.name!r} inside; "
                    "move its images up, or name the folder above the class folders"
                )
            if _is_image(entry.name):
                found.append(entry.name)
    if not found:
        raise SightlineError(
            f"class folder {folder} must hold at least one image ({', '.join(sorted(SUFFIXES))}), got none; "
            "fill it or remove it"
        )
    return sorted(found)


def common_form(
    files: Sequence[T], size: int | None, channels: int | None, look: Callable[[T], tuple[int, int, bool]]
) -> tuple[int, int]:
    """The size and channels of all, from the headers of some; only what is not given is looked for."""
    if size is not None and channels is not None:
        return size, channels
    step = max(1, math.ceil(len(files) / MOST_HEADERS))
    first: tuple[T, int, int] | None = None
    other: tuple[T, int, int] | None = None
    colored = False
    problems = []
    for file in files[::step]:
        try:
            width, height, color = look(file)
        except ValueError as error:
            problems.append(str(error))
            continue
        colored |= color
        first = first or (file, width, height)
        if other is None and (width, height) != first[1:]:
            other = (file, width, height)
    refuse(problems)
    assert first is not None
    if size is None:
        if other is not None:
            (a, *one), (b, *two) = first, other
            raise SightlineError(
                "images must be of one size unless data.image_size says what to bring them to, "
                f"got {one[0]} x {one[1]} in {a} and {two[0]} x {two[1]} in {b}; give data.image_size"
            )
        size = square(first[1], first[2], f"images such as {first[0]}")
    return size, channels or (3 if colored else 1)
