"""Sheets of tiles: many small images side by side in a few large ones, with their labels in a JSON file."""

from pathlib import Path
from typing import Any

import numpy as np

from ....errors import SightlineError, check_int
from ..class_lists import read_json
from ..datasets import Splits, check_classes
from ..reading import MOST_SIZE, read_image
from .arrays import Array, build, check_room
from .folders import ROLES

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp")


def is_sheets(path: Path) -> bool:
    """Whether there is a list of labels beside the first sheet to learn from."""
    return (path / "labels.json").is_file() and _sheet(path, "train", 0) is not None


def read_sheets(path: Path, size: int | None, channels: int | None) -> Splits:
    """`labels.json` with classes, tile (side), grid (rows, columns), train, test (labels), and train_0.jpg, ….

    Tiles follow each other row by row; the last sheet of a part may have some to spare.
    """
    known = read_json(path / "labels.json")
    where = path / "labels.json"
    missing = [key for key in ("classes", "tile", "grid", "train") if not isinstance(known, dict) or key not in known]
    if missing:
        raise SightlineError(f"{where} must have the keys classes, tile, grid and train, got no {missing[0]}")
    tile, grid = known["tile"], known["grid"]
    if not isinstance(grid, list) or len(grid) != 2:
        raise SightlineError(f"grid in {where} must be [rows, columns], got {grid!r:.100}")
    check_int(1, tile=tile, rows=grid[0], columns=grid[1])
    if tile > MOST_SIZE:
        raise SightlineError(f"tile in {where} must be at most {MOST_SIZE}, got {tile}")
    classes = tuple(known["classes"]) if isinstance(known["classes"], list) else ()
    check_classes(classes)
    arrays = {}
    for key, role in ROLES.items():
        if key in known:
            labels = _labels(known[key], f"{key} in {where}")
            arrays[role] = _tiles(path, key, len(labels), tile, grid), labels
    return build(arrays, path, classes, size, channels, "sheets of tiles")


def _labels(value: Any, where: str) -> Array:
    if (
        not isinstance(value, list)
        or not value
        or not all(type(label) is int and 0 <= label < 65536 for label in value)
    ):
        raise SightlineError(f"{where} must be a list of integers, the class of each tile, got {value!r:.100}")
    return np.array(value, dtype=np.int64)


def _tiles(path: Path, part: str, count: int, tile: int, grid: list[int]) -> Array:
    """The first `count` tiles of a part: uint8 (N, 3, tile, tile)"""
    check_room(f"{part} in {path}", (count, 3, tile, tile), np.dtype(np.uint8))
    rows, columns = grid
    tiles = np.empty((count, 3, tile, tile), dtype=np.uint8)
    for number, start in enumerate(range(0, count, rows * columns)):
        file = _sheet(path, part, number)
        if file is None:
            raise SightlineError(f"{path} must hold {part}_{number} for its {count:,} labels, got no such sheet")
        sheet = read_image(file, channels=3).numpy()
        if sheet.shape[1:] != (rows * tile, columns * tile):
            raise SightlineError(
                f"{file} must have {rows} x {columns} tiles of {tile} pixels, "
                f"got {sheet.shape[2]} x {sheet.shape[1]} pixels"
            )
        cut = sheet.reshape(3, rows, tile, columns, tile).transpose(1, 3, 0, 2, 4).reshape(-1, 3, tile, tile)
        tiles[start : start + len(cut)] = cut[: count - start]
    return tiles


def _sheet(path: Path, part: str, number: int) -> Path | None:
    files = (path / f"{part}_{number}{ending}" for ending in _ENDINGS)
    return next((file for file in files if file.is_file()), None)
