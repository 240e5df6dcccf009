"""Drawn characters as files: a folder of class folders, and images to ask about. And as dots in a terminal."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from ..data.images.class_splits import load_classes
from ..data.images.datasets import ImageSet
from ..files import atomic_write

CHARACTERS, SHOT, ASKED = 6, 3, 5
"""Of an alphabet so many characters are learned, from so many drawings of each, and asked by so many others."""
SIDE = 56
"""Pixels of a drawing on disk."""


@dataclass(frozen=True)
class Question:
    """A drawing to ask about."""

    path: Path
    truth: str | None
    """Its character; None for a stranger."""


@cache
def unseen(size: int, channels: int = 1) -> ImageSet:
    """Two drawn alphabets that nothing is ever trained or chosen by."""
    test = load_classes("glyphs", size=size, channels=channels).test
    assert test is not None
    return test


def write(out: Path) -> tuple[Path, list[Question]]:
    """`characters`, a folder for each of a few; `asked`, other drawings of them, and one of every other character."""
    images = unseen(SIDE)
    home, questions = out / "characters", []
    for number, full in enumerate(images.classes):
        drawings = images.pixels[images.labels == number][:, 0]
        alphabet, _, name = full.partition("/")
        if number >= CHARACTERS:
            questions.append(Question(out / "asked" / "strangers" / f"{alphabet}-{name}-1.png", None))
            _save(drawings[0], questions[-1].path)
            continue
        for i, drawing in enumerate(drawings[: SHOT + ASKED]):
            path = home / name / f"{i + 1}.png"
            if i >= SHOT:
                path = out / "asked" / "known" / f"{name}-{i + 1}.png"
                questions.append(Question(path, name))
            _save(drawing, path)
    return home, questions


def dots(path: Path, lines: int = 5) -> str:
    """A drawing in Braille, each letter two dots wide and four high."""
    side = 4 * lines
    with Image.open(path) as image:
        ink = 255 - np.asarray(image.convert("L").resize((side, side), Image.Resampling.BOX), dtype=np.int64)
    inked = (ink > 64).reshape(lines, 4, side // 2, 2).transpose(0, 2, 1, 3)
    codes = (inked * np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])).sum((2, 3))
    return "\n".join("".join(chr(0x2800 + code) for code in row) for row in codes.tolist())


def _save(drawing: Tensor, path: Path) -> None:
    with atomic_write(path) as part:
        Image.fromarray(drawing.numpy()).save(part, "png")
