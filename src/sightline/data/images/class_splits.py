"""Data sets for learning from few images: their parts have different classes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ...errors import SightlineError, check_fraction, check_int, one_of
from . import glyphs
from .cifar100_superclasses import with_superclasses
from .class_lists import read_lists
from .class_pool import ClassSplits, Pool, check_memory, chosen, group_of, groups_of, pooled, turned, with_others
from .datasets import Progress
from .formats import cifar, folders, idx
from .formats import tile_sheets as sheets
from .formats.nested_folders import OMNIGLOT, read_folder_tree, read_zip
from .formats.omniglot import is_packed, read_packed
from .loading import load
from .reading import check_form

Rotations = Literal["none", "train", "all"]
__all__ = [
    "ClassSplits",
    "Rotations",
    "divides_by_class",
    "groups_of",
    "load_classes",
    "same_source",
    "with_others",
]


def load_classes(
    source: str | Path,
    *,
    split: str | Path | None = None,
    size: int | None = None,
    channels: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
    rotations: Rotations = "none",
    progress: Progress | None = None,
) -> ClassSplits:
    """A data set divided by class: all that `load` reads, Omniglot as folders or packed, nested folders, zip files.

    `split` names the classes of each part (see `class_lists.read_lists`). Without it the parts are those of the source
    if no class is in two of them, else all classes are there to learn from. If none are left to choose by, `validation`
    of those to learn from are held out, whole groups at a time where there are groups, the same for the same seed.
    With `rotations` of `all`, or of those to learn from (`train`), each class turned by 90, 180 and 270 degrees is a
    class of its own.
    """
    check_form(size, channels)
    check_fraction(validation=validation)
    check_int(0, seed=seed)
    pool = _in_groups(_pool(source, size, channels, progress))
    images = pool.images
    there = tuple(images.classes[label] for label in images.labels.unique().tolist())
    lists = dict(pool.parts) if split is None else read_lists(Path(split).expanduser(), there)
    lists = lists or {"train": there}
    if validation and "validation" not in lists:
        lists["train"], lists["validation"] = _held_out(lists["train"], validation, seed)
    if rotations not in get_args(Rotations):
        raise SightlineError(f"rotations must be {one_of(str(rotations), get_args(Rotations))}")
    if rotations == "all":
        check_memory(4 * len(images), images.channels, images.size)
    parts = {role: chosen(images, names) for role, names in lists.items()}
    parts = {role: turned(part) if rotations in ("all", role) else part for role, part in parts.items()}
    return ClassSplits(parts["train"], parts.get("validation"), parts.get("test"), kind=pool.kind)


def same_source(a: str | Path, b: str | Path) -> bool:
    """Whether two sources are one; a folder that is read for its one file is that file."""
    first, second = (_alone(Path(one).expanduser()) for one in (a, b))
    return str(a) == str(b) or (first.exists() and second.exists() and first.samefile(second))


def divides_by_class(source: str | Path) -> bool:
    """Whether a source is one that `load` does not read, since its classes stand in groups, apart, or in a zip file."""
    if isinstance(source, str) and source == "glyphs":
        return False
    path = _alone(Path(source).expanduser())
    if path.is_file():
        return path.suffix.lower() == ".zip" or is_packed(path)
    if not _is_tree(path):
        return False
    homes = {name.lower(): path / name for name in folders.folders_in(path)}
    if set(homes) & set(OMNIGLOT) and set(homes) <= set(OMNIGLOT):
        return True
    if "train" not in homes or not set(homes) <= set(folders.ROLES):
        homes = {"train": path}
    inside = {name: folders.folders_in(home) for name, home in homes.items()}
    nested = any(folders.folders_in(homes[part] / name) for part, names in inside.items() for name in names)
    strange = any(set(names).isdisjoint(inside["train"]) for part, names in inside.items() if part != "train")
    return nested or strange


def _pool(source: str | Path, size: int | None, channels: int | None, progress: Progress | None) -> Pool:
    if isinstance(source, str) and source == "glyphs":
        return glyphs.pool(size, channels)
    path = _alone(Path(source).expanduser())
    try:
        if path.is_file() and path.suffix.lower() == ".zip":
            return read_zip(path, size, channels, progress)
        if is_packed(path):
            return read_packed(path, size, channels)
        if _is_tree(path):
            return read_folder_tree(path, size, channels, progress)
    except OSError as error:
        raise SightlineError(f"{path} must be readable, got an error: {error}") from error
    return pooled(load(path, size=size, channels=channels, progress=progress))


def _in_groups(pool: Pool) -> Pool:
    """The classes of CIFAR-100 stand in their superclasses, as those of Omniglot do in alphabets."""
    names = dict(zip(pool.images.classes, with_superclasses(pool.images.classes), strict=True))
    parts = {role: tuple(names[name] for name in own) for role, own in pool.parts.items()}
    return Pool(replace(pool.images, classes=tuple(names.values())), parts, pool.kind)


def _is_tree(path: Path) -> bool:
    others = idx.is_idx(path) or cifar.is_cifar(path) or sheets.is_sheets(path)
    return path.is_dir() and not others and folders.is_folders(path)


def _alone(path: Path) -> Path:
    """The one npz file of a folder without folders, or its one zip file, or the path itself."""
    if path.is_dir() and not folders.is_folders(path):
        for ending in ("*.npz", "*.zip"):
            if len(files := sorted(path.glob(ending))) == 1:
                return files[0]
    return path


def _held_out(classes: Sequence[str], share: float, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The rest, and about this share of the classes: whole groups where there are several."""
    members: dict[str, list[str]] = {}
    in_groups = len({group_of(name) for name in classes}) > 1
    for name in classes:
        members.setdefault(group_of(name) if in_groups else name, []).append(name)
    if len(members) < 2:
        raise SightlineError(f"validation must be 0 where there is one class to learn from, got {share}")
    wanted = share * len(classes)
    held: list[str] = []
    for number in np.random.default_rng(seed).permutation(len(members)).tolist():
        group = list(members.values())[number]
        nearer = abs(len(held) + len(group) - wanted) < abs(len(held) - wanted)
        if nearer and len(held) + len(group) < len(classes):
            held += group
    held = held or min(members.values(), key=len)
    apart = set(held)
    return tuple(name for name in classes if name not in apart), tuple(held)
