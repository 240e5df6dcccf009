"""Class folders as few-shot sets have them: in folders of groups, in background and evaluation, in a zip file."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import torch
from torch import Tensor

from ....errors import SightlineError
from ..class_pool import Pool, apart, check_memory
from ..datasets import ImageSet, Progress, decoded
from ..reading import SUFFIXES, header, read_image
from .archives import opened
from .folders import MOST_FILES, ROLES, common_form

DEEPEST: Final = 6
"""So many folders may stand inside each other."""

OMNIGLOT: Final = {
    "images_background": "train",
    "background": "train",
    "images_evaluation": "test",
    "evaluation": "test",
}
"""What the parts of Omniglot are called."""

_PARTS = ROLES | OMNIGLOT


@dataclass(frozen=True)
class Tree:
    """Files sorted by class: the path of each below the source, its class, and the classes of each part."""

    files: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    parts: dict[str, tuple[str, ...]]
    kind: str


def read_folder_tree(path: Path, size: int | None, channels: int | None, progress: Progress | None) -> Pool:
    """A folder of class folders, which may stand in folders of groups, and all of it in the folders of parts."""
    tree = arranged(_walk(path), path)
    return _read(tree, lambda file: path / file, size, channels, progress)


def read_zip(path: Path, size: int | None, channels: int | None, progress: Progress | None) -> Pool:
    """The same, packed."""
    with opened(path) as archive:
        if any(PurePosixPath(file).name == "class_labels.txt" for file in archive.files):
            raise SightlineError(
                f"{path} must hold class folders, got one-shot runs; read them with read_one_shot_runs"
            )
        files = [file for file in archive.files if PurePosixPath(file).suffix.lower() in SUFFIXES]
        return _read(arranged(files, path), archive.read, size, channels, progress)


def arranged(files: Sequence[str], source: Path) -> Tree:
    """Classes from paths: what stands above a file is its class, less the folder of its part and what all share."""
    files = [file for file in files if "/" in file]
    if not files:
        raise SightlineError(f"{source} must hold class folders with images, got none")
    paths = [tuple(file.split("/")) for file in files]
    while min(map(len, paths)) > 2 and len({path[0] for path in paths}) == 1 and paths[0][0].lower() not in _PARTS:
        paths = [path[1:] for path in paths]
    roles = _roles(paths, source)
    names = ["/".join(path[bool(role) : -1]) for path, role in zip(paths, roles, strict=True)]
    classes = tuple(sorted(set(names)))
    _check_names(classes, source)
    numbers = {name: number for number, name in enumerate(classes)}
    found: dict[str, dict[str, None]] = {}
    for role, name in zip(roles, names, strict=True):
        found.setdefault(role, {})[name] = None
    rows = sorted(zip((numbers[name] for name in names), files, strict=True))
    omniglot = any(roles) and {path[0].lower() for path in paths} <= set(OMNIGLOT)
    labels, ordered = zip(*rows, strict=True)
    return Tree(ordered, labels, classes, apart(found), "Omniglot" if omniglot else "class folders")


def _roles(paths: Sequence[tuple[str, ...]], source: Path) -> list[str]:
    """The part each file is in: "" for all where the folders are not parts."""
    first = {path[0].lower(): path[0] for path in paths}
    deep = {path[0].lower() for path in paths if len(path) > 2}
    if not deep & {"train", "images_background"} and not set(first) <= set(_PARTS) & deep:
        return [""] * len(paths)
    for lower, name in first.items():
        if lower not in _PARTS or lower not in deep:
            raise SightlineError(
                f"{source} must hold train, validation and test, or images_background and images_evaluation, or class "
                f"folders alone, got {name!r} beside them; move it elsewhere"
            )
    return [_PARTS[path[0].lower()] for path in paths]


def _check_names(classes: tuple[str, ...], source: Path) -> None:
    if len(classes) < 2:
        raise SightlineError(f"{source} must hold at least two class folders, got only {classes[0]!r}")
    known = set(classes)
    for name in classes:
        parts = name.split("/")
        for end in range(1, len(parts)):
            if (above := "/".join(parts[:end])) in known:
                raise SightlineError(
                    f"a folder in {source} must hold images or class folders, got both in {above!r}; "
                    "move its images into a folder of their own"
                )


def _walk(path: Path) -> list[str]:
    """All images below, as paths with slashes; what is hidden is passed over, an empty folder refused."""
    files: list[str] = []

    def enter(folder: Path, above: str, depth: int) -> None:
        if depth > DEEPEST:
            raise SightlineError(f"{path} must nest at most {DEEPEST} folders, got more in {folder}")
        before = len(files)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "__")):
                    continue
                if entry.is_dir():
                    enter(folder / entry.name, f"{above}{entry.name}/", depth + 1)
                elif above and os.path.splitext(entry.name)[1].lower() in SUFFIXES:  # noqa: PTH122 - faster
                    files.append(above + entry.name)
        if len(files) > MOST_FILES:
            raise SightlineError(f"{path} must hold at most {MOST_FILES:,} images, got more")
        if len(files) == before:
            raise SightlineError(f"folder {folder} must hold at least one image, got none; fill it or remove it")

    enter(path, "", 0)
    return sorted(files)


def _read(
    tree: Tree,
    fetch: Callable[[str], Path | bytes],
    size: int | None,
    channels: int | None,
    progress: Progress | None,
) -> Pool:
    def look(file: str) -> tuple[int, int, bool]:
        with _called(file):
            return header(fetch(file))

    def read(index: int) -> Tensor:
        with _called(tree.files[index]):
            return read_image(fetch(tree.files[index]), size=size, channels=channels)

    size, channels = common_form(tree.files, size, channels, look)
    check_memory(len(tree.files), channels, size)
    pixels = decoded(read, len(tree.files), size, channels, progress)
    return Pool(ImageSet(pixels, torch.tensor(tree.labels), tree.classes), tree.parts, tree.kind)


@contextmanager
def _called(file: str) -> Iterator[None]:
    """Messages about bytes say which file they are of."""
    try:
        yield
    except ValueError as error:
        raise SightlineError(str(error).replace("the image", file, 1)) from None
