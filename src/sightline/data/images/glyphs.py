"""A drawn alphabet: characters that nobody has written before, each in many hands. No download.

A character is a few strokes on a grid of nine places; a stroke is two cubic curves in a row. A hand moves their control
points a little, leans, turns and stretches the whole, and presses more or less. Only uniform numbers and plain
arithmetic on rounded points are used, so the pixels are the same on every machine.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...errors import SightlineError, check_int
from .class_pool import Pool
from .datasets import ImageSet, Splits, split

MOST_BYTES = 1 << 31
"""No alphabet is larger than this."""

Array = np.ndarray[Any, Any]

_POINTS = 7  # control points of a stroke: two cubic curves that share the fourth
_PIECES = 5  # straight pieces a curve is drawn with
_MOST_STROKES = 4
_PLACES = np.array([(x, y) for y in (-0.62, 0.0, 0.62) for x in (-0.5, 0.0, 0.5)])  # x right, y down, the middle is 0
_BEND = np.array([0.0, 0.12, 0.09, 0.0, 0.09, 0.12, 0.0])[:, None]  # how far the hand moves each point on its own
_HAND = 10 + 2 * _MOST_STROKES * _POINTS  # uniform numbers that make one writing of a character
_RADICALS = 3  # strokes that several characters of an alphabet begin with
_ALIKE = 0.60  # share of ink two characters of one alphabet may have in common
_TRIES = 40
_CONSONANTS, _VOWELS = "kmtnslrpbdgvzfhjwxcy", "aoiue"


def draw(classes: int = 20, per_class: int = 60, size: int = 28, seed: int = 0) -> ImageSet:
    """An alphabet of `classes` characters, each written `per_class` times: dark ink on white, one channel.

    The images of a class stand together. A larger alphabet of the same seed begins with the smaller one, and
    more images of a class begin with the fewer.
    """
    check_int(1, classes=classes, per_class=per_class)
    check_int(8, size=size)
    check_int(0, seed=seed)
    _check_total(classes, per_class, size)
    characters = _alphabet(classes, seed, lambda random, _: _character(random.random((_MOST_STROKES + 1, 12))))
    pixels = np.empty((classes, per_class, 1, size, size), dtype=np.uint8)
    for number, strokes in enumerate(characters):
        random = np.random.default_rng([seed, number, 1])
        _write(pixels[number, :, 0], *_handwriting(strokes, random.random((per_class, _HAND))))
    labels = torch.arange(classes).repeat_interleave(per_class)
    names = tuple(_name(number) for number in range(classes))
    return ImageSet(torch.from_numpy(pixels.reshape(-1, 1, size, size)), labels, names)


def draw_alphabets(
    alphabets: int = 12, characters: int = 20, drawers: int = 20, size: int = 28, seed: int = 0
) -> ImageSet:
    """Alphabets of so many characters, each character written once by each drawer: classes such as "Kamo/ti".

    An alphabet has a style (how straight, how full, how it leans, parts that come again) and drawers of its own; a
    drawer has a hand (lean, proportions, pen) that shows in every character. More
    alphabets of the same seed begin with the fewer, and so do more drawers.
    """
    check_int(1, alphabets=alphabets, characters=characters, drawers=drawers)
    check_int(8, size=size)
    check_int(0, seed=seed)
    classes = alphabets * characters
    _check_total(classes, drawers, size)
    styles = [np.random.default_rng([seed, number, 2]).random((1 + _RADICALS, 12)) for number in range(alphabets)]
    drawn = _alphabet(classes, seed, lambda random, number: _styled(styles[number // characters], random))
    pixels = np.empty((classes, drawers, 1, size, size), dtype=np.uint8)
    for number, strokes in enumerate(drawn):
        hands = np.random.default_rng([seed, number // characters, 3]).random((drawers, 10))
        u = np.random.default_rng([seed, number, 4]).random((drawers, _HAND))
        u[:, :8] = 0.75 * hands[:, :8] + 0.25 * u[:, :8]
        points, widths, ink = _handwriting(strokes, u)
        _write(pixels[number, :, 0], points, widths * (0.6 + 0.7 * hands[:, 8]), ink)
    labels = torch.arange(classes).repeat_interleave(drawers)
    names = (f"{_name(100 * a + 117 + a).capitalize()}/{_name(c)}" for a in range(alphabets) for c in range(characters))
    return ImageSet(torch.from_numpy(pixels.reshape(-1, 1, size, size)), labels, tuple(names))


def pool(size: int | None = None, channels: int | None = None) -> Pool:
    """Eight alphabets to learn from, two to choose by and two to judge by, drawn at the size that is asked for."""
    images = draw_alphabets(size=size or 28)
    names = images.classes
    parts = {"train": names[:160], "validation": names[160:200], "test": names[200:]}
    return Pool(replace(images, pixels=images.pixels.repeat(1, channels or 1, 1, 1)), parts, "glyphs")


def splits() -> Splits:
    """Twenty characters, each written 120 times to learn from, 20 times to choose by and 60 times to judge by."""
    train, rest = split(draw(per_class=200), 80 / 200, seed=0)
    test, validation = split(rest, 20 / 80, seed=0)
    return Splits(train, validation, test, kind="glyphs")


def _check_total(classes: int, per_class: int, size: int) -> None:
    if (total := classes * per_class * size * size) > MOST_BYTES:
        raise SightlineError(f"classes * per_class * size * size must be at most {MOST_BYTES:,}, got {total:,}")


def _alphabet(classes: int, seed: int, invent: Callable[[np.random.Generator, int], Array]) -> list[Array]:
    """Characters (strokes, 7, 2), each unlike all before it."""
    characters: list[Array] = []
    seen = np.zeros((classes, 3, 256), dtype=np.uint8)
    inks = np.zeros((classes, 3), dtype=np.int64)
    for number in range(classes):
        random = np.random.default_rng([seed, number, 0])
        best: tuple[float, Array, Array] | None = None
        for _ in range(_TRIES):
            strokes = invent(random, number)
            look = _look(strokes)
            both = np.minimum(seen[:number], look[1]).sum(2, dtype=np.int64)  # those seen also moved a little aside
            either = inks[:number] + look[1].sum(dtype=np.int64) - both
            flat = np.ptp(strokes, axis=(0, 1)).min() < 0.75  # a dash is no character
            alike = float((both / either).max(initial=0.0)) + bool(flat)
            if best is None or alike < best[0]:
                best = alike, strokes, look
            if alike < _ALIKE:
                break
        assert best is not None
        characters.append(best[1])
        seen[number] = best[2]
        inks[number] = best[2].sum(1, dtype=np.int64)
    return characters


def _styled(style: Array, random: np.random.Generator) -> Array:
    """A character of an alphabet with this style (1 + radicals, 12)."""
    u = random.random((_MOST_STROKES + 1, 12))
    manner, radicals = style[0], style[1:]
    u[0, 0] = 0.5 * u[0, 0] + 0.5 * manner[0]  # how many strokes
    u[1:, 4] = 0.4 * manner[1] + 0.6 * u[1:, 4]  # how straight or round
    if u[0, 1] < 0.4:
        u[1] = radicals[int(u[0, 2] * _RADICALS)]
    strokes = _character(u)
    strokes[..., 0] += 0.4 * (manner[2] - 0.5) * strokes[..., 1]
    return strokes * (0.85 + 0.2 * manner[3:5])


def _look(strokes: Array) -> Array:
    """Three coarse, bold pictures of a character (3, 256): moved left, as it is, moved right."""
    points = np.round(strokes * 4096)[None] / 4096
    moved = np.concatenate([points + np.array([x, 0.0]) for x in (-0.12, 0.0, 0.12)])
    return np.round(255 * _rendered(moved, np.full(3, 0.34), 16)).astype(np.uint8).reshape(3, 256)


def _character(u: Array) -> Array:
    """Two to four strokes from uniform numbers (5, 12)."""
    count = 2 + int(u[0, 0] * 2.3)
    strokes: list[Array] = []
    ends: list[Array] = []
    round_parts = 0
    for row in u[1 : 1 + count]:
        # start where a stroke ends more often than not, so that the parts hang together
        place = _PLACES[int(row[0] * 9)]
        start = ends[int(row[1] * len(ends))] if ends and row[2] < 0.6 else place
        away = _PLACES[np.abs(_PLACES - start).max(1) > 0.3]
        end = away[int(row[3] * len(away))]
        kind = row[4] if not round_parts else row[4] * 0.74  # one round part is enough
        if kind < 0.34:
            stroke = _curve(start, end, 0.0, 0.0)
        elif kind < 0.62:
            bow = (0.35 + 0.5 * row[5]) * (1 if row[6] < 0.5 else -1)
            stroke = _curve(start, end, bow, bow)
        elif kind < 0.74:
            bow = (0.5 + 0.4 * row[5]) * (1 if row[6] < 0.5 else -1)
            stroke = _curve(start, end, bow, -bow)
        else:
            radius = np.array([0.26 + 0.16 * row[5], 0.26 + 0.2 * row[6]])
            whole = kind < 0.84
            round_parts += 1
            stroke = _arc(place * 0.6, radius, int(row[7] * 8) / 8, 1.0 if whole else 0.5 + 0.25 * row[8])
        strokes.append(stroke)
        ends += [stroke[0], stroke[3], stroke[6]]
    character = np.stack(strokes)
    low, high = character.min((0, 1)), character.max((0, 1))
    middle, reach = (low + high) / 2, np.maximum((high - low) / 2, 0.3)
    return (character - middle) * np.minimum(np.array([0.64, 0.76]) / reach, 1.5)


def _curve(start: Array, end: Array, first: float, second: float) -> Array:
    """From start to end, bent to one side in its first half and to one in its second."""
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


def _arc(center: Array, radius: Array, begin: float, share: float) -> Array:
    """A share of an ellipse, from `begin` (a share of the turn) on."""
    angles = 2 * np.pi * (begin + share * np.array([0.0, 0.5, 1.0]))
    on = np.stack((np.cos(angles), np.sin(angles)), 1)
    ahead = np.stack((-on[:, 1], on[:, 0]), 1) * (4 / 3 * np.tan(np.pi * share / 4))
    points = (on[0], on[0] + ahead[0], on[1] - ahead[1], on[1], on[1] + ahead[1], on[2] - ahead[2], on[2])
    return center + radius * np.stack(points)


def _handwriting(strokes: Array, u: Array) -> tuple[Array, Array, Array]:
    """A character in n hands: control points (n, strokes, 7, 2), pen widths (n,), darkness (n, 1, 1)."""
    count = len(u)
    s = 2 * u - 1
    shake = s[:, 10:].reshape(count, -1, _POINTS, 2)[:, : len(strokes)]
    ends = shake[:, :, [0, 0, 3, 3, 3, 6, 6]] * 0.11  # a handle goes where its end goes,
    bend = shake * _BEND  # a little elsewhere,
    bend[:, :, 4] = -bend[:, :, 2]  # the two in the middle on either side of it, so that no curve is broken,
    drift = shake[:, :, 1:2] * 0.11  # and a stroke as a whole stands a little off its place
    points = strokes + ends + bend + drift
    turn, lean = 0.28 * s[:, 0], 0.28 * s[:, 1]
    wide, tall = 0.88 * (1 + 0.2 * s[:, 2]), 0.88 * (1 + 0.2 * s[:, 3])
    x, y = points[..., 0] * _rows(wide), points[..., 1] * _rows(tall)
    x = x + y * _rows(lean)
    x, y = x - y * _rows(turn) + _rows(0.17 * s[:, 4]), y + x * _rows(turn) + _rows(0.17 * s[:, 5])
    widths = 0.15 + 0.05 * s[:, 6]
    points = np.round(np.stack((x, y), -1) * 4096) / 4096
    return points, widths, (0.92 + 0.08 * s[:, 7])[:, None, None]


def _write(pages: Array, points: Array, widths: Array, ink: Array) -> None:
    """Fill pages (n, size, size) with dark ink on white."""
    for start in range(0, len(pages), 64):  # few enough to stay in the processor's cache
        some = slice(start, start + 64)
        covered = _rendered(points[some], widths[some], pages.shape[-1])
        pages[some] = np.floor(255.5 - 255 * ink[some] * covered)


def _rows(values: Array) -> Array:
    return values[:, None, None]


def _rendered(points: Array, widths: Array, size: int) -> Array:
    """How much of each pixel the pen covers: points (n, strokes, 7, 2), widths (n,) -> (n, size, size) from 0 to 1"""
    t = (np.arange(_PIECES + 1) / _PIECES)[:, None]
    bends = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    curves = []
    for first in (0, 3):
        four = points[:, :, first : first + 4, None]
        curves.append(
            bends[0] * four[:, :, 0] + bends[1] * four[:, :, 1] + bends[2] * four[:, :, 2] + bends[3] * four[:, :, 3]
        )
    track = np.stack(curves, 2).astype(np.float32)  # (n, strokes, 2, pieces + 1, 2)
    begin, end = (part.reshape(len(points), -1, 2) for part in (track[..., :-1, :], track[..., 1:, :]))
    along = end - begin
    squared = along[..., 0] * along[..., 0] + along[..., 1] * along[..., 1] + np.float32(1e-12)
    line = ((np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2 / size) - np.float32(1))[None]
    nearest = np.full((len(points), size, size), 9, dtype=np.float32)
    for piece in range(begin.shape[1]):
        ax, ay = begin[:, piece, 0, None], begin[:, piece, 1, None]
        dx, dy = along[:, piece, 0, None], along[:, piece, 1, None]
        over = squared[:, piece, None]
        px, py = line - ax, line - ay  # (n, size) each
        where = (py * dy / over)[:, :, None] + (px * dx / over)[:, None, :]
        np.clip(where, 0, 1, out=where)
        off_x = px[:, None, :] - where * dx[:, :, None]
        off_y = py[:, :, None] - where * dy[:, :, None]
        np.minimum(nearest, off_x * off_x + off_y * off_y, out=nearest)
    half = (widths / 2).astype(np.float32)[:, None, None]
    return np.clip((half - np.sqrt(nearest)) * np.float32(size / 2) + np.float32(0.5), 0, 1)


def _name(number: int) -> str:
    """A syllable for each of the first hundred characters, two for the next ten thousand."""
    before = _name(number // 100 - 1) if number >= 100 else ""
    number %= 100
    return before + _CONSONANTS[number % 20] + _VOWELS[(number // 20 + number) % 5]
