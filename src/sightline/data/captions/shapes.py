"""Drawn scenes with captions: two colored shapes and where they are, such as "a red circle left of a blue square".

Every scene has two captions that differ in wording. The object whose color, then shape, is first in the lists below is
named first, so that an image alone determines which object a word is about. The boxes of the objects are known, so that
attention maps can be compared with them. Only uniform random numbers and basic arithmetic are used, so the pixels are
the same on every machine.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import check_int
from .datasets import CaptionedImages, CaptionSplits

NAME = "shapes"
"""Name of the data set."""
COLORS = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (45, 98, 214),
    "yellow": (240, 200, 40),
    "purple": (140, 70, 190),
    "gray": (110, 110, 110),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring")
RELATIONS = {
    "left of": "to the left of",
    "right of": "to the right of",
    "above": "over",
    "below": "under",
}
"""Where the first object is, in both wordings."""
IMAGE_SIZE = 48
_MIN_RADIUS, _MAX_RADIUS, _MARGIN = 0.11, 0.17, 0.02  # fractions of the side
_NUMBERS = 14  # uniform random numbers of a scene
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SceneObject:
    """One shape of a scene."""

    color: str
    shape: str
    x: float
    """Center, as a fraction of the width."""
    y: float
    """Center, as a fraction of the height."""
    radius: float
    """Half of the side of its box, as a fraction of the side of the image."""

    @property
    def words(self) -> tuple[str, str]:
        """The words that describe it."""
        return self.color, self.shape

    def covers(self, row: float, column: float) -> bool:
        """Whether a point, in fractions of height and width, is in its box."""
        return abs(row - self.y) <= self.radius and abs(column - self.x) <= self.radius


def draw(count: int, seed: int = 0, size: int = IMAGE_SIZE) -> CaptionedImages:
    """Draw scenes. With the same seed, fewer scenes are a prefix of more."""
    check_int(1, count=count, size=size)
    scenes = [_scene(np.random.default_rng([seed, i]).random((64, _NUMBERS))) for i in range(count)]
    pixels = np.stack([_draw(objects, background, size) for objects, background in scenes])
    objects = tuple(objects for objects, _ in scenes)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    names = tuple(f"scene {i + 1}" for i in range(count))
    return CaptionedImages(tuple(map(captions, objects)), names, pixels=images, objects=objects)


def splits(train: int = 4000, validation: int = 200, test: int = 400) -> CaptionSplits:
    """Scenes for training, validation and test."""
    return CaptionSplits(draw(train, seed=0), draw(validation, seed=1), draw(test, seed=2))


def captions(objects: tuple[SceneObject, SceneObject]) -> tuple[str, str]:
    """The two captions of a scene, whose objects are in the order of their mention."""
    a, b = objects
    dx, dy = b.x - a.x, b.y - a.y
    where = ("left of" if dx > 0 else "right of") if abs(dx) > abs(dy) else ("above" if dy > 0 else "below")
    first, second = (f"a {a.color} {a.shape} {wording} a {b.color} {b.shape}" for wording in (where, RELATIONS[where]))
    return first, second


def _scene(numbers: Array) -> tuple[tuple[SceneObject, SceneObject], Array]:
    """Two different objects that do not overlap and are clearly apart along one axis, and the background color.

    The objects are in the order of their mention.

    Rows of numbers (tries, _NUMBERS) are tried in turn. The last one is used if no row fits, moved apart.
    """
    for row in numbers:
        a, b = _object(row[:5]), _object(row[5:10])
        dx, dy = abs(a.x - b.x), abs(a.y - b.y)
        is_apart = max(dx, dy) > a.radius + b.radius + _MARGIN and max(dx, dy) > 1.5 * min(dx, dy)
        if a.words != b.words and is_apart:
            first, second = sorted((a, b), key=_rank)
            return (first, second), 225 + 30 * row[10:13]
    a = SceneObject("red", "circle", 0.3, 0.5, 0.15)
    return (a, SceneObject("blue", "square", 0.7, 0.5, 0.15)), np.full(3, 240.0)


def _rank(item: SceneObject) -> tuple[int, int]:
    """The place of an object in the order of mention."""
    return list(COLORS).index(item.color), SHAPES.index(item.shape)


def _object(numbers: Array) -> SceneObject:
    """An object from five uniform numbers."""
    color, shape = (names[int(n * len(names))] for n, names in zip(numbers, (list(COLORS), SHAPES), strict=False))
    radius = _MIN_RADIUS + (_MAX_RADIUS - _MIN_RADIUS) * numbers[2]
    x, y = (float(radius + _MARGIN + (1 - 2 * radius - 2 * _MARGIN) * n) for n in numbers[3:5])
    return SceneObject(color, shape, x, y, float(radius))


def _draw(objects: tuple[SceneObject, SceneObject], background: Array, size: int) -> Array:
    """uint8 (size, size, 3)"""
    picture = np.broadcast_to(background, (size, size, 3)).copy()
    centers = (np.arange(size) + 0.5) / size
    for item in objects:
        x, y = (centers[None] - item.x) / item.radius, (centers[:, None] - item.y) / item.radius
        coverage = np.clip(0.5 - _distance(item.shape, x, y) * item.radius * size, 0, 1)[..., None]
        picture = picture * (1 - coverage) + np.array(COLORS[item.color]) * coverage
    return np.rint(picture).astype(np.uint8)


def _distance(shape: str, x: Array, y: Array) -> Array:
    """The approximate distance to the border of a shape in the box from -1 to 1, negative inside."""
    if shape == "circle":
        return np.sqrt(x * x + y * y) - 1
    if shape == "ring":
        return np.abs(np.sqrt(x * x + y * y) - 0.75) - 0.25
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - 0.9
    if shape == "triangle":
        return np.maximum(y - 0.85, (2 * np.abs(x) - y - 0.85) / 2.236)
    along, across = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
    return np.maximum(along - 1, across - 0.32)
