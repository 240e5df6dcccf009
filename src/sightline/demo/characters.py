"""Drawn characters as image files, and as Braille in a terminal."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from ..data.images.datasets import ImageSet
from ..data.images.glyphs import alphabet_splits
from ..files import atomic_write

WAY, SHOT, QUERIES = 6, 5, 5
"""Classes, support images per class and query images per class."""
SIDE = 56
"""Side of an image file in pixels."""


@dataclass(frozen=True)
class Query:
    """An image to classify."""

    path: Path
    label: str | None
    """The class, None for an unknown."""


@cache
def load_test_images(size: int) -> ImageSet:
    """The two drawn alphabets of the test split, which no model is trained or selected on; the first drawers."""
    test = alphabet_splits(size, drawers=SHOT + QUERIES)["test"]
    assert isinstance(test, ImageSet)
    return test


def write_images(out: Path) -> tuple[Path, list[Query]]:
    """Write `characters/`, the class folders to fit, and `queries/` with other images.

    The queries are `QUERIES` images of each class, and one image of every other character as an unknown.
    """
    images = load_test_images(SIDE)
    folder, queries = out / "characters", []
    for index, class_name in enumerate(images.classes):
        drawings = images.pixels[images.labels == index][:, 0]
        name = class_name.replace("/", "-")
        if index >= WAY:
            queries.append(Query(out / "queries" / "unknown" / f"{name}-1.png", None))
            _save(drawings[0], queries[-1].path)
            continue
        for i, drawing in enumerate(drawings[: SHOT + QUERIES]):
            path = folder / name / f"{i + 1}.png"
            if i >= SHOT:
                path = out / "queries" / "known" / f"{name}-{i + 1}.png"
                queries.append(Query(path, name))
            _save(drawing, path)
    return folder, queries


def to_braille(path: Path, lines: int = 5) -> str:
    """An image as Braille characters, each two dots wide and four dots high."""
    side = 4 * lines
    with Image.open(path, formats=["PNG"]) as image:
        ink = 255 - np.asarray(image.convert("L").resize((side, side), Image.Resampling.BOX), dtype=np.int64)
    dots = (ink > 64).reshape(lines, 4, side // 2, 2).transpose(0, 2, 1, 3)
    codes = (dots * np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])).sum((2, 3))
    return "\n".join("".join(chr(0x2800 + code) for code in row) for row in codes.tolist())


def _save(drawing: Tensor, path: Path) -> None:
    with atomic_write(path) as part:
        Image.fromarray(drawing.numpy()).save(part, "png")
