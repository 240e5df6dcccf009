"""Which classes are to learn from, to choose by and to judge by: lists in JSON, in all the shapes they come in."""

import json
import unicodedata
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from ...errors import SightlineError, one_of
from ..episodes import check_apart
from .class_pool import group_of
from .formats.folders import ROLES

MOST_BYTES: Final = 1 << 26
"""No JSON file that comes with a data set is larger than this."""

Name = tuple[str, ...]


def read_lists(split: Path, classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The classes of each part, from a folder of train.json, val.json and test.json or from one file with these keys.

    A part is a list of names, of groups or of pairs [group, class], or {"class_names": […]}, or {group: part}. A name
    fits a class if one ends with the other, part by part: "a" or "Latin/a" or "background/Latin/a" for "Latin/a".
    """
    found: dict[str, Any] = {}
    for key, value, where in _parts(split):
        role = ROLES.get(key)
        if role is None:
            raise SightlineError(f"a part of {split} must be {one_of(key, ROLES)}")
        if role in found:
            raise SightlineError(f"{split} must list {role} once, got two lists of it; take one away")
        found[role] = value, where
    if "train" not in found:
        raise SightlineError(
            f"{split} must list the classes to learn from in 'train', got {', '.join(found) or 'nothing'}"
        )
    index = _Index(classes)
    lists = {}
    for role, (value, where) in found.items():
        names = dict.fromkeys(name for wanted in _flat(value, where) for name in index.find(wanted, where))
        if not names:
            raise SightlineError(f"{where} must list at least one class, got none")
        lists[role] = tuple(names)
    check_apart(**lists)
    return lists


def read_json(path: Path) -> Any:
    """What a JSON file says, if it is not too large."""
    try:
        if (stored := path.stat().st_size) > MOST_BYTES:
            raise SightlineError(f"it must be at most {MOST_BYTES:,} bytes, got {stored:,}")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise SightlineError(f"{path} must be JSON that can be read, got an error: {error}") from error


def _parts(split: Path) -> list[tuple[str, Any, str]]:
    """What each part is called, what it says, and where."""
    if split.is_dir():
        return [(path.stem, read_json(path), str(path)) for path in sorted(split.glob("*.json"))]
    if not split.is_file():
        raise SightlineError(f"split must be a JSON file or a folder of them, got {str(split)!r}, which is not there")
    value = read_json(split)
    if not isinstance(value, dict):
        raise SightlineError(
            f'{split} must be {{"train": […], "val": […], "test": […]}}, got a {type(value).__name__}; '
            "or give the folder of train.json, val.json and test.json"
        )
    return [(key, part, f"{key} of {split}") for key, part in value.items()]


def _flat(value: Any, where: str, above: Name = ()) -> list[Name]:
    """All names of a part, each with the groups it stands in."""
    if len(above) > 8:
        raise SightlineError(f"{where} must nest at most 8 groups, got more")
    if isinstance(value, dict):
        if "class_names" in value:
            return _flat(value["class_names"], where, above)
        return [name for key, inner in value.items() for name in _flat(inner, where, (*above, *_plain(key)))]
    if not isinstance(value, list):
        raise SightlineError(f"{where} must hold names in lists, got {value!r:.100}")
    names = []
    for item in value:
        pieces = item if isinstance(item, list) else [item]
        if not pieces or not all(isinstance(piece, str) and piece.strip("/ ") for piece in pieces):
            raise SightlineError(f"{where} must list names or pairs [group, class], got {item!r:.100}")
        names.append((*above, *(part for piece in pieces for part in _plain(piece))))
    return names


def _plain(name: str) -> Name:
    return tuple(part for part in unicodedata.normalize("NFC", name).strip().split("/") if part)


class _Index:
    """Finds classes by their full names, by the ends of these, and by groups."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.full: dict[Name, str] = {}
        self.ends: dict[Name, list[str]] = {}
        self.groups: dict[Name, list[str]] = {}
        for name in classes:
            parts = _plain(name)
            self.full[parts] = name
            for start in range(1, len(parts)):
                self.ends.setdefault(parts[start:], []).append(name)
            if group := group_of(name):
                self.groups.setdefault(_plain(group), []).append(name)

    def find(self, wanted: Name, where: str) -> list[str]:
        for start in range(len(wanted)):
            if name := self.full.get(wanted[start:]):
                return [name]
        fitting = self.ends.get(wanted, [])
        if len(fitting) == 1:
            return fitting
        said = "/".join(wanted)
        if fitting:
            raise SightlineError(
                f"a name in {where} must fit one class, got {said!r}, which fits {fitting[0]!r}, {fitting[1]!r}"
                f"{' and more' if len(fitting) > 2 else ''}; write it in full"
            )
        for start in range(len(wanted)):
            if group := self.groups.get(wanted[start:]):
                return group
        known = list(map("/".join, [*self.full, *self.ends, *self.groups]))
        close = get_close_matches(said, known, n=1, cutoff=0.3)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SightlineError(f"a name in {where} must be one of the {len(self.full):,} classes, got {said!r}{hint}")
