"""Glyphs: a generated data set of invented handwritten characters.

A character is 2 to 4 strokes on a 3 x 3 grid; a stroke is two cubic Bézier curves. A drawing perturbs the control
points and applies a random affine transform, pen width and darkness. Only uniform random numbers and basic arithmetic
on rounded points are used, so the pixels are identical on every machine.
"""

from collections.abc import Callable

import numpy as np
import torch

from ... import limits
from ...errors import SightlineError, check_int
from .datasets import Images, ImageSet, Splits, split
from .formats.arrays import Array, convert

_POINTS = 7  # control points of a stroke: two cubic curves that share the fourth
_SEGMENTS = 5  # line segments that approximate a curve
_MAX_STROKES = 4
_GRID = np.array(
    [(x, y) for y in (-0.62, 0.0, 0.62) for x in (-0.5, 0.0, 0.5)]
)  # x right, y down, origin at the center
_HANDLE_JITTER = np.array([0.0, 0.12, 0.09, 0.0, 0.09, 0.12, 0.0])[:, None]  # independent shift of each control point
_DRAWING_NUMBERS = 10 + 2 * _MAX_STROKES * _POINTS  # uniform numbers of one drawing
_RADICALS = 3  # first strokes shared by characters of an alphabet
_MAX_OVERLAP = 0.60  # intersection over union of the ink of two characters
_MAX_TRIES = 40
_CONSONANTS, _VOWELS = "kmtnslrpbdgvzfhjwxcy", "aoiue"


def draw(classes: int = 20, per_class: int = 60, size: int = 28, seed: int = 0) -> ImageSet:
    """Draw one alphabet: `classes` characters with `per_class` grayscale drawings each, dark ink on white.

    Images are sorted by class. With the same seed, fewer classes or drawings are a prefix of more.
    """
    check_int(1, classes=classes, per_class=per_class)
    check_int(8, size=size)
    check_int(0, seed=seed)
    _check_bytes(classes, per_class, size)
    characters = _distinct(classes, seed, lambda generator, _: _character(generator.random((_MAX_STROKES + 1, 12))))
    pixels = np.empty((classes, per_class, 1, size, size), dtype=np.uint8)
    for label, strokes in enumerate(characters):
        generator = np.random.default_rng([seed, label, 1])
        _render_drawings(pixels[label, :, 0], *_drawings(strokes, generator.random((per_class, _DRAWING_NUMBERS))))
    labels = torch.arange(classes).repeat_interleave(per_class)
    names = tuple(_name(label) for label in range(classes))
    return ImageSet(torch.from_numpy(pixels.reshape(-1, 1, size, size)), labels, names)


def draw_alphabets(
    alphabets: int = 12, characters: int = 20, drawers: int = 20, size: int = 28, seed: int = 0
) -> ImageSet:
    """Draw several alphabets, each character once by each drawer: classes such as "Kamo/ti".

    An alphabet has a style (roundness, number of strokes, slant, shared strokes) and its own drawers. A drawer has a
    style (slant, proportions, pen) in all characters. With the same seed, fewer alphabets or drawers are a prefix of
    more.
    """
    check_int(1, alphabets=alphabets, characters=characters, drawers=drawers)
    check_int(8, size=size)
    check_int(0, seed=seed)
    classes = alphabets * characters
    _check_bytes(classes, drawers, size)
    styles = [np.random.default_rng([seed, alphabet, 2]).random((1 + _RADICALS, 12)) for alphabet in range(alphabets)]
    strokes_of = _distinct(classes, seed, lambda generator, label: _styled(styles[label // characters], generator))
    pixels = np.empty((classes, drawers, 1, size, size), dtype=np.uint8)
    for label, strokes in enumerate(strokes_of):
        hands = np.random.default_rng([seed, label // characters, 3]).random((drawers, 10))
        u = np.random.default_rng([seed, label, 4]).random((drawers, _DRAWING_NUMBERS))
        u[:, :8] = 0.75 * hands[:, :8] + 0.25 * u[:, :8]
        points, widths, ink = _drawings(strokes, u)
        _render_drawings(pixels[label, :, 0], points, widths * (0.6 + 0.7 * hands[:, 8]), ink)
    labels = torch.arange(classes).repeat_interleave(drawers)
    names = (f"{_name(100 * a + 117 + a).capitalize()}/{_name(c)}" for a in range(alphabets) for c in range(characters))
    return ImageSet(torch.from_numpy(pixels.reshape(-1, 1, size, size)), labels, tuple(names))


def splits(size: int | None = None, channels: int | None = None) -> Splits:
    """20 characters with 120 training, 20 validation and 60 test images each."""
    train, rest = split(draw(per_class=200), 80 / 200, seed=0)
    test, validation = split(rest, 20 / 80, seed=0)

    def converted(images: Images) -> ImageSet:
        assert isinstance(images, ImageSet)
        return ImageSet(convert(images.pixels, size, channels, "glyphs"), images.labels, images.classes)

    return Splits(converted(train), converted(validation), converted(test), format="glyphs")


def alphabet_splits(size: int | None = None, channels: int | None = None) -> dict[str, Images]:
    """8 training, 2 validation and 2 test alphabets of 20 characters, drawn at this size."""
    images = draw_alphabets(size=size or 28)
    per_class = len(images) // len(images.classes)
    result: dict[str, Images] = {}
    for name, start, stop in (("train", 0, 160), ("validation", 160, 200), ("test", 200, 240)):
        indices = slice(start * per_class, stop * per_class)
        pixels = images.pixels[indices].repeat(1, channels or 1, 1, 1)
        result[name] = ImageSet(pixels, images.labels[indices] - start, images.classes[start:stop])
    return result


def _check_bytes(classes: int, per_class: int, size: int) -> None:
    if (total := classes * per_class * size * size) > limits.MAX_GLYPHS_BYTES:
        raise SightlineError(
            f"classes * per_class * size * size must be at most {limits.MAX_GLYPHS_BYTES:,}, got {total:,}"
        )


def _distinct(classes: int, seed: int, invent: Callable[[np.random.Generator, int], Array]) -> list[Array]:
    """Characters (strokes, 7, 2) that overlap little with each other."""
    characters: list[Array] = []
    thumbnails = np.zeros((classes, 3, 256), dtype=np.uint8)
    ink = np.zeros((classes, 3), dtype=np.int64)
    for label in range(classes):
        generator = np.random.default_rng([seed, label, 0])
        best: tuple[float, Array, Array] | None = None
        for _ in range(_MAX_TRIES):
            strokes = invent(generator, label)
            candidate = _thumbnails(strokes)
            intersection = np.minimum(thumbnails[:label], candidate[1]).sum(2, dtype=np.int64)  # with shifted ones too
            union = ink[:label] + candidate[1].sum(dtype=np.int64) - intersection
            is_flat = np.ptp(strokes, axis=(0, 1)).min() < 0.75
            overlap = float((intersection / union).max(initial=0.0)) + bool(is_flat)
            if best is None or overlap < best[0]:
                best = overlap, strokes, candidate
            if overlap < _MAX_OVERLAP:
                break
        assert best is not None
        characters.append(best[1])
        thumbnails[label] = best[2]
        ink[label] = best[2].sum(1, dtype=np.int64)
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
        if shape < 0.34:
            stroke = _curve(start, end, 0.0, 0.0)
        elif shape < 0.62:
            bow = (0.35 + 0.5 * row[5]) * (1 if row[6] < 0.5 else -1)
            stroke = _curve(start, end, bow, bow)
        elif shape < 0.74:
            bow = (0.5 + 0.4 * row[5]) * (1 if row[6] < 0.5 else -1)
            stroke = _curve(start, end, bow, -bow)
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
    return np.stack(
        (
            start,
            start + along / 6 + side * first / 4,
            middle - along / 6 + side * (first - second) / 8,
            middle,
            middle + along / 6 - side * (first - second) / 8,
            end - along / 6 + side * second / 4,
            end,
        )
    )


def _arc(center: Array, radius: Array, start: float, fraction: float) -> Array:
    """An arc of an ellipse; `start` and `fraction` are fractions of a full turn."""
    angles = 2 * np.pi * (start + fraction * np.array([0.0, 0.5, 1.0]))
    on = np.stack((np.cos(angles), np.sin(angles)), 1)
    tangent = np.stack((-on[:, 1], on[:, 0]), 1) * (4 / 3 * np.tan(np.pi * fraction / 4))
    points = (on[0], on[0] + tangent[0], on[1] - tangent[1], on[1], on[1] + tangent[1], on[2] - tangent[2], on[2])
    return center + radius * np.stack(points)


def _drawings(strokes: Array, u: Array) -> tuple[Array, Array, Array]:
    """N drawings of a character: control points (N, strokes, 7, 2), pen widths (N,), darkness (N, 1, 1)."""
    count = len(u)
    s = 2 * u - 1
    jitter = s[:, 10:].reshape(count, -1, _POINTS, 2)[:, : len(strokes)]
    ends = jitter[:, :, [0, 0, 3, 3, 3, 6, 6]] * 0.11  # handles move with their end point
    handles = jitter * _HANDLE_JITTER
    handles[:, :, 4] = -handles[:, :, 2]  # opposite handles keep the curve smooth
    shift = jitter[:, :, 1:2] * 0.11
    points = strokes + ends + handles + shift
    angle, slant = 0.28 * s[:, 0], 0.28 * s[:, 1]
    width, height = 0.88 * (1 + 0.2 * s[:, 2]), 0.88 * (1 + 0.2 * s[:, 3])
    x, y = points[..., 0] * _expand(width), points[..., 1] * _expand(height)
    x = x + y * _expand(slant)
    x, y = x - y * _expand(angle) + _expand(0.17 * s[:, 4]), y + x * _expand(angle) + _expand(0.17 * s[:, 5])
    pen_widths = 0.15 + 0.05 * s[:, 6]
    points = np.round(np.stack((x, y), -1) * 4096) / 4096
    return points, pen_widths, (0.92 + 0.08 * s[:, 7])[:, None, None]


def _expand(values: Array) -> Array:
    return values[:, None, None]


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
    curves = []
    for first in (0, 3):
        four = points[:, :, first : first + 4, None]
        curves.append(
            basis[0] * four[:, :, 0] + basis[1] * four[:, :, 1] + basis[2] * four[:, :, 2] + basis[3] * four[:, :, 3]
        )
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
