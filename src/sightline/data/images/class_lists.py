"""Lists of the classes of each split, in JSON."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import limits
from ...errors import SightlineError, check, check_choice, closest, reraise
from ...names import display_path
from ..fetching.catalog import fetch_hint
from .datasets import SPLIT_NAMES, check_disjoint

ROTATION_DEGREES = (90, 180, 270)
"""Rotations of a class that are classes of their own, named "a@90", "a@180" and "a@270"."""

NameParts = tuple[str, ...]


def group_of(name: str) -> str:
    """The group of a class: "Latin" for "Latin/a", and "Latin@90" for "Latin/a@90"."""
    group, _, last = name.rpartition("/")
    rotation = last.rpartition("@")[2] if "@" in last else ""
    return f"{group}@{rotation}" if rotation in map(str, ROTATION_DEGREES) else group


def read_class_lists(path: Path, classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The classes of each split, from a folder of train.json, val.json and test.json or one file with these keys.

    A list consists of class names, group names or pairs [group, class], or is {"class_names": [...]}, or {group: list}.
    A name matches a class if one ends with the other, folder by folder: "a", "Latin/a" and "background/Latin/a" match
    the class "Latin/a".
    """
    name = display_path(path)
    lists: dict[str, tuple[Any, str]] = {}
    for key, value, where in _read_lists(path):
        check_choice(f"a split in {name}", key, SPLIT_NAMES)
        split = SPLIT_NAMES[key]
        check(split not in lists, f"{name} must have one list for {split}, got two")
        lists[split] = value, where
    check("train" in lists, f"{name} must have a list for train, got {', '.join(lists) or 'nothing'}")
    index = _ClassIndex(classes)
    matches = {}
    for split, (value, where) in lists.items():
        names = dict.fromkeys(match for parts in _flatten(value, where) for match in index.find(parts, where))
        check(names, f"{where} must list at least one class, got none")
        matches[split] = tuple(names)
    check_disjoint(matches)
    return matches


def read_data_json(path: Path) -> Any:
    """Content of a JSON file of a data set."""
    with reraise(f"{display_path(path)} must be valid JSON", OSError, ValueError, RecursionError):
        size, maximum = path.stat().st_size, limits.MAX_JSON_BYTES
        check(size <= maximum, f"it must be at most {maximum:,} bytes, got {size:,}")
        return json.loads(path.read_text(encoding="utf-8-sig"))


def _read_lists(path: Path) -> list[tuple[str, Any, str]]:
    """Name, content and location of each list."""
    name = display_path(path)
    if path.is_dir():
        return [(file.stem, read_data_json(file), display_path(file)) for file in sorted(path.glob("*.json"))]
    rule = "split must be a JSON file or a folder of JSON files"
    check(path.is_file(), f"{rule}, got {name!r}, which does not exist{fetch_hint(path)}")
    content = read_data_json(path)
    if not isinstance(content, dict):
        rule = f'{name} must be {{"train": […], "val": […], "test": […]}}, got a {type(content).__name__}'
        raise SightlineError(f"{rule}; or give the folder of train.json, val.json and test.json")
    return [(key, value, f"{key} of {name}") for key, value in content.items()]


def _flatten(value: Any, where: str, groups: NameParts = ()) -> list[NameParts]:
    """All names of a list, each with its groups."""
    depth = limits.MAX_CLASS_LIST_DEPTH
    check(len(groups) <= depth, f"{where} must have at most {depth} nested groups, got more")
    if isinstance(value, dict):
        if "class_names" in value:
            return _flatten(value["class_names"], where, groups)
        return [name for key, inner in value.items() for name in _flatten(inner, where, (*groups, *_parts(key)))]
    if not isinstance(value, list):
        raise SightlineError(f"{where} must be a list of names, got {value!r:.100}")
    names = []
    for entry in value:
        components = entry if isinstance(entry, list) else [entry]
        is_valid = components and all(isinstance(text, str) and text.strip("/ ") for text in components)
        check(is_valid, f"{where} must list names or pairs [group, class], got {entry!r:.100}")
        names.append((*groups, *(part for text in components for part in _parts(text))))
    return names


def _parts(name: str) -> NameParts:
    return tuple(part for part in unicodedata.normalize("NFC", name).strip().split("/") if part)


class _ClassIndex:
    """Finds classes by full name, by the end of the name, and by group."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.by_name: dict[NameParts, str] = {}
        self.by_suffix: dict[NameParts, list[str]] = {}
        self.by_group: dict[NameParts, list[str]] = {}
        for name in classes:
            parts = _parts(name)
            self.by_name[parts] = name
            for start in range(1, len(parts)):
                self.by_suffix.setdefault(parts[start:], []).append(name)
            if group := group_of(name):
                self.by_group.setdefault(_parts(group), []).append(name)

    def find(self, parts: NameParts, where: str) -> list[str]:
        """The class of a name, or all classes of a group."""
        name, suffixes = "/".join(parts), [parts[start:] for start in range(len(parts))]
        for suffix in suffixes:
            if suffix in self.by_name:
                return [self.by_name[suffix]]
        if matches := self.by_suffix.get(parts):
            rule = f"a name in {where} must match one class, got {name!r}"
            check(len(matches) == 1, f"{rule}, which matches {str(matches[:3])[1:-1]}; write the full name")
            return matches
        for suffix in suffixes:
            if suffix in self.by_group:
                return self.by_group[suffix]
        known = map("/".join, [*self.by_name, *self.by_suffix, *self.by_group])
        hint = closest(name, known, cutoff=0.3)
        raise SightlineError(f"a name in {where} must be one of the {len(self.by_name):,} classes, got {name!r}{hint}")
