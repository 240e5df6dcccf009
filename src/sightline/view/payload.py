"""Quantized, compressed attention weights for a page.

Each weight is one byte on a power scale: w = row_max * (code / 255)^1.7, where `row_max` is the largest absolute weight
of its row. The quantization error is at most row_max / 300. The page prints four digits of the row's maximum, which
adds at most row_max / 2000, so a printed weight is within row_max / 255 of the recorded one. Codes 1 to 6 stand for
much smaller weights (`LOW_LEVELS`), because a high temperature amplifies them. Code 0 is exactly zero. Rows with
negative weights have a second plane of codes. Each layer is compressed separately and decompressed on first use. Large
layers come with a downsampled copy for the grid view, which shows all layers.
"""

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

EXPONENT = 1.7
"""Of the power scale. 2 is finer for small weights and too coarse for large ones."""
LOW_LEVELS = (1e-10, 1e-8, 4e-7, 8e-6, 8e-5, 4e-4)
"""Codes 1 to 6 as fractions of the row's maximum."""
LEVELS = np.array(
    [0.0, *LOW_LEVELS, *((code / 255) ** EXPONENT for code in range(1 + len(LOW_LEVELS), 256))], np.float32
)
"""All codes as fractions of the row's maximum. The page contains this table."""
THUMBNAIL_SIZE = 64
"""Maximum side of a downsampled layer."""
MIN_CELLS_TO_DOWNSAMPLE = 16 * THUMBNAIL_SIZE * THUMBNAIL_SIZE
"""From here on, a downsampled copy adds at most a sixteenth to the size."""
COMPRESSION_LEVEL = 6
"""Of zlib. Higher levels take far longer and save about 1 %."""


@dataclass(frozen=True)
class PackedWeights:
    """One layer, quantized and compressed."""

    data: str
    """Base64 of a zlib stream: row maxima (float32, H * Q), codes (uint8, H * Q * K), codes of negative weights."""
    shape: tuple[int, int, int]
    signed: bool
    normalized: bool
    """Whether every row sums to 1 or is zero. Only then are temperature, entropy and rollout defined."""


def pack_weights(weights: Any) -> PackedWeights:
    """Pack weights (H, Q, K)."""
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    maxima = np.abs(weights).max(axis=-1, keepdims=True)
    signed = bool((weights < 0).any())
    sums = weights.sum(axis=-1)
    normalized = not signed and bool(((np.abs(sums - 1) < 0.02) | (sums == 0)).all())
    planes = [_codes(weights, maxima)] + ([_codes(-weights, maxima)] if signed else [])
    raw = b"".join([maxima.astype("<f4").tobytes(), *(plane.tobytes() for plane in planes)])
    data = base64.b64encode(zlib.compress(raw, COMPRESSION_LEVEL)).decode("ascii")
    return PackedWeights(data, weights.shape, signed, normalized)


def downsample(weights: Any) -> Any:
    """Reduce weights (H, Q, K) to the strongest of each block, at most `THUMBNAIL_SIZE` a side; None if not needed."""
    if weights[0].size < MIN_CELLS_TO_DOWNSAMPLE:
        return None
    highest, lowest = (_pool(reduce, weights) for reduce in (np.maximum, np.minimum))
    return np.where(highest >= -lowest, highest, lowest)


def _pool(reduce: Any, weights: Any) -> Any:
    for axis in (1, 2):
        size = weights.shape[axis]
        blocks = min(THUMBNAIL_SIZE, size)
        weights = reduce.reduceat(weights, [-(-block * size // blocks) for block in range(blocks)], axis=axis)
    return weights


def _codes(weights: Any, maxima: Any) -> Any:
    fractions = np.maximum(weights, 0)
    fractions = np.divide(fractions, maxima, out=np.zeros_like(fractions), where=maxima > 0)
    codes = (fractions ** (1 / EXPONENT) * 255).round().astype(np.uint8)
    low = (codes <= len(LOW_LEVELS)) & (weights > 0)
    boundaries = np.sqrt(LEVELS[1 : len(LOW_LEVELS) + 1] * LEVELS[2 : len(LOW_LEVELS) + 2])
    codes[low] = 1 + np.searchsorted(boundaries, fractions[low])
    return codes
