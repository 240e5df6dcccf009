"""Tile sheets: many small images side by side in a few large image files, with labels in a JSON file."""

from pathlib import Path
from typing import Any

import numpy as np

from .... import limits
from ....errors import SightlineError, check, check_int, check_max
from ....names import display_path
from ..class_lists import read_data_json
from ..datasets import SPLIT_NAMES, Images, check_class_names
from ..reading import read_image
from .arrays import Array, check_array_bytes, image_sets

DESCRIPTION = "a folder of tile sheets: train_0.jpg …, test_0.jpg …, labels.json with classes, tile, grid, train, test"

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def detect(path: Path) -> bool:
    """Whether a folder contains labels.json and a first training sheet."""
    return (path / "labels.json").is_file() and _sheet_file(path, "train", 0) is not None


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read sheets such as train_0.jpg and their labels.

    `labels.json` has `classes`, `tile` (side length), `grid` (rows, columns), and for each split a list of labels.
    Tiles are in row-major order; the last sheet of a split can have unused tiles.
    """
    file = path / "labels.json"
    name = display_path(file)
    content = read_data_json(file)
    for key in ("classes", "tile", "grid", "train"):
        has_key = isinstance(content, dict) and key in content
        check(has_key, f"{name} must have the keys classes, tile, grid and train, got no {key}")
    tile, grid = content["tile"], content["grid"]
    is_valid = isinstance(grid, list) and len(grid) == 2
    check(is_valid, f"grid in {name} must be [rows, columns], got {grid!r:.100}")
    check_int(1, tile=tile, rows=grid[0], columns=grid[1])
    check_max(limits.MAX_IMAGE_SIZE, tile=tile)
    classes = tuple(content["classes"]) if isinstance(content["classes"], list) else ()
    check_class_names(classes)
    arrays = {}
    for key, split in SPLIT_NAMES.items():
        if key in content:
            labels = _check_labels(content[key], f"{key} in {name}")
            arrays[split] = _read_tiles(path, key, len(labels), tile, grid), labels
    return image_sets(arrays, path, classes, size, channels)


def _check_labels(labels: Any, name: str) -> Array:
    is_valid = isinstance(labels, list) and labels
    if not is_valid or not all(type(label) is int and 0 <= label <= limits.MAX_CLASS_INDEX for label in labels):
        raise SightlineError(f"{name} must be a list of class indices, one for each tile, got {labels!r:.100}")
    return np.array(labels, dtype=np.int64)


def _read_tiles(path: Path, split: str, count: int, tile: int, grid: list[int]) -> Array:
    """The first `count` tiles of a split: uint8 (N, 3, tile, tile)."""
    check_array_bytes(f"{split} in {display_path(path)}", (count, 3, tile, tile), np.dtype(np.uint8))
    rows, columns = grid
    tiles = np.empty((count, 3, tile, tile), dtype=np.uint8)
    for number, start in enumerate(range(0, count, rows * columns)):
        file = _sheet_file(path, split, number)
        if file is None:
            name = display_path(path)
            raise SightlineError(f"{name} must have a sheet {split}_{number} for its {count:,} labels, got none")
        sheet = read_image(file, channels=3).numpy()
        _, height, width = sheet.shape
        rule = f"{display_path(file)} must have {rows} x {columns} tiles of {tile} pixels"
        check((height, width) == (rows * tile, columns * tile), f"{rule}, got {width} x {height} pixels")
        cut = sheet.reshape(3, rows, tile, columns, tile).transpose(1, 3, 0, 2, 4).reshape(-1, 3, tile, tile)
        tiles[start : start + len(cut)] = cut[: count - start]
    return tiles


def _sheet_file(path: Path, split: str, number: int) -> Path | None:
    files = (path / f"{split}_{number}{suffix}" for suffix in _SUFFIXES)
    return next((file for file in files if file.is_file()), None)
