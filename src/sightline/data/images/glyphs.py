"""Glyphs: a generated data set of invented handwritten characters.

A character is 2 to 4 strokes on a 3 x 3 grid; a stroke is two cubic Bézier curves. A drawing perturbs the control
points and applies a random affine transform, pen width and darkness. Only uniform random numbers and basic arithmetic
on rounded points are used, so the pixels are identical on every machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np
import torch

from ... import limits
from ...errors import check, check_int
from .datasets import Images, ImageSet, Splits, select_classes, split
from .formats.arrays import Array, convert

NAME = "glyphs"
_POINTS = 7  # control points of a stroke: two cubic curves that share the fourth
_SEGMENTS = 5  # line segments that approximate a curve
_MAX_STROKES = 4
_GRID = np.array([(x, y) for y in (-0.62, 0.0, 0.62) for x in (-0.5, 0.0, 0.5)])  # x right, y down from the center
_HANDLE_JITTER = np.array([0.0, 0.12, 0.09, 0.0, 0.09, 0.12, 0.0])[:, None]  # independent shift of each control point
_DRAWING_NUMBERS = 10 + 2 * _MAX_STROKES * _POINTS  # uniform numbers of one drawing
_RADICALS = 3  # first strokes shared by characters of an alphabet
_MAX_OVERLAP = 0.60  # intersection over union of the ink of two characters
_MAX_TRIES = 40
Drawings = tuple[Array, Array, Array]
"""Control points (N, strokes, 7, 2), pen widths (N,) and darkness (N, 1, 1) of N drawings of a character."""
_CONSONANTS, _VOWELS = "kmtnslrpbdgvzfhjwxcy", "aoiue"


def draw(classes: int = 20, per_class: int = 60, size: int = 28, seed: int = 0) -> ImageSet:
    """Draw one alphabet: `classes` characters with `per_class` grayscale drawings each, dark ink on white.

    Images are sorted by class. With the same seed, fewer classes or drawings are a prefix of more.
    """
    check_int(1, classes=classes, per_class=per_class)

    def drawings(label: int, strokes: Array) -> Drawings:
        return _drawings(strokes, np.random.default_rng([seed, label, 1]).random((per_class, _DRAWING_NUMBERS)))

    def character(generator: np.random.Generator, _: int) -> Array:
        return _character(generator.random((_MAX_STROKES + 1, 12)))

    return _draw([_name(label) for label in range(classes)], per_class, size, seed, character, drawings)


def draw_alphabets(
    alphabets: int = 12, characters: int = 20, drawers: int = 20, size: int = 28, seed: int = 0
) -> ImageSet:
    """Draw several alphabets, each character once by each drawer: classes such as "Kamo/ti".

    An alphabet has a style (roundness, number of strokes, slant, shared strokes) and its own drawers. A drawer has a
    style (slant, proportions, pen) in all characters. With the same seed, fewer alphabets or drawers are a prefix of
    more.
    """
    check_int(1, alphabets=alphabets, characters=characters, drawers=drawers)

    def character(generator: np.random.Generator, label: int) -> Array:
        return _styled(np.random.default_rng([seed, label // characters, 2]).random((1 + _RADICALS, 12)), generator)

    def drawings(label: int, strokes: Array) -> Drawings:
        hands = np.random.default_rng([seed, label // characters, 3]).random((drawers, 10))
        u = np.random.default_rng([seed, label, 4]).random((drawers, _DRAWING_NUMBERS))
        u[:, :8] = 0.75 * hands[:, :8] + 0.25 * u[:, :8]
        points, widths, ink = _drawings(strokes, u)
        return points, widths * (0.6 + 0.7 * hands[:, 8]), ink

    names = [f"{_name(100 * a + 117 + a).capitalize()}/{_name(c)}" for a in range(alphabets) for c in range(characters)]
    return _draw(names, drawers, size, seed, character, drawings)


def splits(size: int | None = None, channels: int | None = None) -> Splits:
    """20 characters with 120 training, 20 validation and 60 test images each."""
    images = draw(per_class=200)
    images = replace(images, pixels=convert(images.pixels, size, channels, "glyphs"))
    train, rest = split(images, 80 / 200, seed=0)
    test, validation = split(rest, 20 / 80, seed=0)
    return Splits(train, validation, test, format="glyphs")


def alphabet_splits(size: int | None = None, channels: int | None = None, *, drawers: int = 20) -> dict[str, Images]:
    """8 training, 2 validation and 2 test alphabets of 20 characters, drawn at this size by the first `drawers`."""
    images = draw_alphabets(size=size or 28, drawers=drawers)
    images = replace(images, pixels=images.pixels.repeat(1, channels or 1, 1, 1))
    bounds = {"train": (0, 160), "validation": (160, 200), "test": (200, 240)}
    return {name: select_classes(images, images.classes[start:stop]) for name, (start, stop) in bounds.items()}


def _draw(
    names: Sequence[str],
    per_class: int,
    size: int,
    seed: int,
    character: Callable[[np.random.Generator, int], Array],
    drawings: Callable[[int, Array], Drawings],
) -> ImageSet:
    """Drawings of each class: `character` invents its strokes, `drawings` perturbs them."""
    check_int(8, size=size)
    check_int(0, seed=seed)
    total, maximum = len(names) * per_class * size * size, limits.MAX_GLYPHS_BYTES
    check(total <= maximum, f"classes * per_class * size * size must be at most {maximum:,}, got {total:,}")
    pixels = np.empty((len(names), per_class, 1, size, size), dtype=np.uint8)
    for label, strokes in enumerate(_distinct(len(names), seed, character)):
        _render_drawings(pixels[label, :, 0], *drawings(label, strokes))
    labels = torch.arange(len(names)).repeat_interleave(per_class)
    return ImageSet(torch.from_numpy(pixels.reshape(-1, 1, size, size)), labels, tuple(names))


def _distinct(classes: int, seed: int, invent: Callable[[np.random.Generator, int], Array]) -> list[Array]:
    """Characters (strokes, 7, 2) that overlap little with each other."""
    characters: list[Array] = []
    thumbnails = np.zeros((classes, 3, 256), dtype=np.uint8)
    ink = np.zeros((classes, 3), dtype=np.int64)
    for label in range(classes):
        generator = np.random.default_rng([seed, label, 0])
        tries: list[tuple[float, Array, Array]] = []
        for _ in range(_MAX_TRIES):
            strokes = invent(generator, label)
            candidate = _thumbnails(strokes)
            intersection = np.minimum(thumbnails[:label], candidate[1]).sum(2, dtype=np.int64)  # with shifted ones too
            union = ink[:label] + candidate[1].sum(dtype=np.int64) - intersection
            is_flat = np.ptp(strokes, axis=(0, 1)).min() < 0.75
            overlap = float((intersection / union).max(initial=0.0)) + bool(is_flat)
            tries.append((overlap, strokes, candidate))
            if overlap < _MAX_OVERLAP:
                break
        _, strokes, thumbnails[label] = min(tries, key=itemgetter(0))
        characters.append(strokes)
        ink[label] = thumbnails[label].sum(1, dtype=np.int64)
    return characters


def _styled(style: Array, generator: np.random.Generator) -> Array:
    """A character of an alphabet with this style (1 + radicals, 12)."""
    u = generator.random((_MAX_STROKES + 1, 12))
    manner, radicals = style[0], style[1:]
    u[0, 0] = 0.5 * u[0, 0] + 0.5 * manner[0]  # number of strokes
    u[1:, 4] = 0.4 * manner[1] + 0.6 * u[1:, 4]  # roundness
    if u[0, 1] < 0.4:
        u[1] = radicals[int(u[0, 2] * _RADICALS)]
    strokes = _character(u)
    strokes[..., 0] += 0.4 * (manner[2] - 0.5) * strokes[..., 1]
    return strokes * (0.85 + 0.2 * manner[3:5])


def _thumbnails(strokes: Array) -> Array:
    """Three coarse images of a character (3, 256): shifted left, centered, shifted right."""
    points = np.round(strokes * 4096)[None] / 4096
    shifted = np.concatenate([points + np.array([x, 0.0]) for x in (-0.12, 0.0, 0.12)])
    return np.round(255 * _coverage(shifted, np.full(3, 0.34), 16)).astype(np.uint8).reshape(3, 256)


def _character(u: Array) -> Array:
    """Two to four strokes (strokes, 7, 2) from uniform numbers (5, 12)."""
    count = 2 + int(u[0, 0] * 2.3)
    strokes: list[Array] = []
    ends: list[Array] = []
    num_arcs = 0
    for row in u[1 : 1 + count]:
        # start at the end of another stroke in most cases, so that strokes connect
        node = _GRID[int(row[0] * 9)]
        start = ends[int(row[1] * len(ends))] if ends and row[2] < 0.6 else node
        distant = _GRID[np.abs(_GRID - start).max(1) > 0.3]
        end = distant[int(row[3] * len(distant))]
        shape = row[4] if not num_arcs else row[4] * 0.74  # at most one arc
        if shape < 0.74:  # straight, bowed, or in the form of an S
            bow = 0.35 + 0.5 * row[5] if shape < 0.62 else 0.5 + 0.4 * row[5]
            first = 0.0 if shape < 0.34 else bow * (1 if row[6] < 0.5 else -1)
            stroke = _curve(start, end, first, first if shape < 0.62 else -first)
        else:
            radius = np.array([0.26 + 0.16 * row[5], 0.26 + 0.2 * row[6]])
            is_closed = shape < 0.84
            num_arcs += 1
            stroke = _arc(node * 0.6, radius, int(row[7] * 8) / 8, 1.0 if is_closed else 0.5 + 0.25 * row[8])
        strokes.append(stroke)
        ends += [stroke[0], stroke[3], stroke[6]]
    character = np.stack(strokes)
    low, high = character.min((0, 1)), character.max((0, 1))
    center, extent = (low + high) / 2, np.maximum((high - low) / 2, 0.3)
    return (character - center) * np.minimum(np.array([0.64, 0.76]) / extent, 1.5)


def _curve(start: Array, end: Array, first: float, second: float) -> Array:
    """A stroke from start to end, bowed by `first` in its first half and `second` in its second."""
    along = end - start
    side = np.array([-along[1], along[0]])
    middle = start + along / 2 + side * (first + second) / 4
    twist = side * (first - second) / 8
    leaving, arriving = start + along / 6 + side * first / 4, end - along / 6 + side * second / 4
    return np.stack((start, leaving, middle - along / 6 + twist, middle, middle + along / 6 - twist, arriving, end))


def _arc(center: Array, radius: Array, start: float, fraction: float) -> Array:
    """An arc of an ellipse; `start` and `fraction` are fractions of a full turn."""
    angles = 2 * np.pi * (start + fraction * np.array([0.0, 0.5, 1.0]))
    on = np.stack((np.cos(angles), np.sin(angles)), 1)
    tangent = np.stack((-on[:, 1], on[:, 0]), 1) * (4 / 3 * np.tan(np.pi * fraction / 4))
    points = (on[0], on[0] + tangent[0], on[1] - tangent[1], on[1], on[1] + tangent[1], on[2] - tangent[2], on[2])
    return center + radius * np.stack(points)


def _drawings(strokes: Array, u: Array) -> Drawings:
    """Drawings of a character from uniform numbers (N, `_DRAWING_NUMBERS`)."""
    s = 2 * u - 1
    jitter = s[:, 10:].reshape(len(u), -1, _POINTS, 2)[:, : len(strokes)]
    ends = jitter[:, :, [0, 0, 3, 3, 3, 6, 6]] * 0.11  # handles move with their end point
    handles = jitter * _HANDLE_JITTER
    handles[:, :, 4] = -handles[:, :, 2]  # opposite handles keep the curve smooth
    shift = jitter[:, :, 1:2] * 0.11
    points = strokes + ends + handles + shift
    angle, slant, wide, high, right, down, pen, ink = np.moveaxis(s[:, :8, None, None], 1, 0)
    x, y = points[..., 0] * (0.88 * (1 + 0.2 * wide)), points[..., 1] * (0.88 * (1 + 0.2 * high))
    x = x + y * (0.28 * slant)
    x, y = x - y * (0.28 * angle) + 0.17 * right, y + x * (0.28 * angle) + 0.17 * down
    return np.round(np.stack((x, y), -1) * 4096) / 4096, 0.15 + 0.05 * pen[:, 0, 0], 0.92 + 0.08 * ink


def _render_drawings(target: Array, points: Array, widths: Array, ink: Array) -> None:
    """Render drawings into uint8 (N, size, size), dark ink on white."""
    for start in range(0, len(target), 64):  # small enough for the CPU cache
        chunk = slice(start, start + 64)
        coverage = _coverage(points[chunk], widths[chunk], target.shape[-1])
        target[chunk] = np.floor(255.5 - 255 * ink[chunk] * coverage)


def _coverage(points: Array, widths: Array, size: int) -> Array:
    """Fraction of each pixel covered by the pen: points (N, strokes, 7, 2), widths (N,) -> (N, size, size)."""
    t = (np.arange(_SEGMENTS + 1) / _SEGMENTS)[:, None]
    basis = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    curves = [sum(weight * points[:, :, first + i, None] for i, weight in enumerate(basis)) for first in (0, 3)]
    polyline = np.stack(curves, 2).astype(np.float32)  # (N, strokes, 2, segments + 1, 2)
    start, end = (ends.reshape(len(points), -1, 2) for ends in (polyline[..., :-1, :], polyline[..., 1:, :]))
    along = end - start
    squared_length = along[..., 0] * along[..., 0] + along[..., 1] * along[..., 1] + np.float32(1e-12)
    centers = ((np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2 / size) - np.float32(1))[None]
    nearest = np.full((len(points), size, size), 9, dtype=np.float32)  # squared distance to the nearest segment
    for segment in range(start.shape[1]):
        ax, ay = start[:, segment, 0, None], start[:, segment, 1, None]
        dx, dy = along[:, segment, 0, None], along[:, segment, 1, None]
        norm = squared_length[:, segment, None]
        px, py = centers - ax, centers - ay  # (N, size) each
        position = (py * dy / norm)[:, :, None] + (px * dx / norm)[:, None, :]
        np.clip(position, 0, 1, out=position)
        off_x = px[:, None, :] - position * dx[:, :, None]
        off_y = py[:, :, None] - position * dy[:, :, None]
        np.minimum(nearest, off_x * off_x + off_y * off_y, out=nearest)
    radius = (widths / 2).astype(np.float32)[:, None, None]
    return np.clip((radius - np.sqrt(nearest)) * np.float32(size / 2) + np.float32(0.5), 0, 1)


def _name(number: int) -> str:
    """One syllable for each of the first 100 numbers, two for the next 10,000."""
    prefix = _name(number // 100 - 1) if number >= 100 else ""
    number %= 100
    return prefix + _CONSONANTS[number % 20] + _VOWELS[(number // 20 + number) % 5]
