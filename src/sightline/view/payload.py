"""Weights packed small enough to mail.

A weight travels as one byte on a curved scale: w = top · (code / 255)^1.7, where `top` is the largest weight of its
row. The step is widest at the top, so the error is at most top / 300 everywhere and far smaller for small weights; the
page prints four digits of the top, which adds top / 2000 at most, so what is read there is within top / 255. The lowest
codes reach further down (`FAINT`), because a high temperature brings the faintest weights up again. Code 0 is exactly
zero and nothing else. Rows that dip below zero bring a second plane of codes for that part. Each layer is
deflated by itself, and the page inflates it when it is looked at. A layer too large for that in the grid, which looks
at all of them, travels once more, made small.
"""

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

CURVE = 1.7
"""2 would be finer below and too coarse at the top."""
FAINT = (1e-10, 1e-8, 4e-7, 8e-6, 8e-5, 4e-4)
"""What the codes 1 to 6 stand for, as a part of the row's top."""
LEVELS = np.array([0.0, *FAINT, *((code / 255) ** CURVE for code in range(1 + len(FAINT), 256))], np.float32)
"""What each code stands for; the page carries them."""
FINE = 64
"""Most cells a layer that is made small has on a side."""
LARGE = 16 * FINE * FINE
"""Cells from which on a layer is worth making small: then that adds a sixteenth at most."""
EFFORT = 6
"""Of zlib, 1 to 9; above 6 it takes far longer to save 1 %."""


@dataclass(frozen=True)
class Packed:
    """One layer, ready to travel."""

    data: str
    """Base64 of deflated bytes: tops (float32, H · Q), codes (uint8, H · Q · K), and those below zero if any."""
    shape: tuple[int, int, int]
    signed: bool
    shares: bool
    """Whether every row is a distribution, so that temperature, entropy and rollout mean something."""


def pack(weights: Any) -> Packed:
    """weights (H, Q, K) -> packed"""
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    tops = np.abs(weights).max(axis=-1, keepdims=True)
    signed = bool((weights < 0).any())
    sums = weights.sum(axis=-1)
    shares = not signed and bool(((np.abs(sums - 1) < 0.02) | (sums == 0)).all())
    planes = [_codes(weights, tops)] + ([_codes(-weights, tops)] if signed else [])
    raw = b"".join([tops.astype("<f4").tobytes(), *(plane.tobytes() for plane in planes)])
    data = base64.b64encode(zlib.compress(raw, EFFORT)).decode("ascii")
    return Packed(data, weights.shape, signed, shares)


def small(weights: Any) -> Any:
    """weights (H, Q, K) -> the strongest of each block, at most (H, FINE, FINE), or None if that is not worth it"""
    if weights[0].size < LARGE:
        return None
    extremes = [_pooled(reduce, weights) for reduce in (np.maximum, np.minimum)]
    return np.where(extremes[0] >= -extremes[1], *extremes)


def _pooled(reduce: Any, weights: Any) -> Any:
    for axis in (1, 2):
        size = weights.shape[axis]
        blocks = min(FINE, size)
        weights = reduce.reduceat(weights, [-(-block * size // blocks) for block in range(blocks)], axis=axis)
    return weights


def _codes(weights: Any, tops: Any) -> Any:
    part = np.maximum(weights, 0)
    part = np.divide(part, tops, out=np.zeros_like(part), where=tops > 0)
    codes = (part ** (1 / CURVE) * 255).round().astype(np.uint8)
    faint = (codes <= len(FAINT)) & (weights > 0)
    halfway = np.sqrt(LEVELS[1 : len(FAINT) + 1] * LEVELS[2 : len(FAINT) + 2])
    codes[faint] = 1 + np.searchsorted(halfway, part[faint])
    return codes
