"""Normalization of drawings to dark ink on white paper, and views of a drawing."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_PAPER, MIN_CONTRAST = 0.92, 0.5
"""An image whose paper is at least this bright, and whose ink is darker than it by this much, is left unchanged."""
MIN_RANGE = 0.04
"""The smallest range of values that is stretched to the full range; below it, an image is blank paper with noise."""
VIEW_DEGREES = (8, -8)
"""Rotations of `drawing_views`."""


def normalize_drawings(images: Tensor) -> Tensor:
    """images (B, 1, height, width), from 0 to 1 -> the same shape, with paper at 1 and ink at 0

    The value of the paper is the median of an image, that of the ink the darkest 0.1%. Light ink on dark paper is
    inverted. Images with gray paper or pale ink are stretched to the full range.
    """
    values = images.flatten(1)
    paper = _smallest(values, (values.shape[1] + 1) // 2).view(-1, 1, 1, 1)
    images, paper = (torch.where(paper < 0.5, 1 - x, x) for x in (images, paper))
    values = images.flatten(1)
    ink = _smallest(values, 1 + values.shape[1] // 1000).view(-1, 1, 1, 1)
    is_faint = (paper < MIN_PAPER) | (paper - ink < MIN_CONTRAST)
    stretched = (1 - (paper - images) / (paper - ink).clamp_min(MIN_RANGE)).clamp(0, 1)
    return torch.where(is_faint, stretched, images)


def drawing_views(drawings: Tensor) -> Iterator[Tensor]:
    """drawings (B, 1, side, side) with paper at 1 -> the drawings, then the drawings rotated by `VIEW_DEGREES`"""
    yield drawings
    side = drawings.shape[-1]
    centers = (torch.arange(side, device=drawings.device, dtype=drawings.dtype) * 2 + 1) / side - 1
    y, x = centers[:, None].expand(side, side), centers.expand(side, side)
    for degrees in VIEW_DEGREES:
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        grid = torch.stack((cos * x - sin * y, sin * x + cos * y), -1).expand(drawings.shape[0], side, side, 2)
        yield 1 - F.grid_sample(1 - drawings, grid, align_corners=False)


def _smallest(values: Tensor, k: int) -> Tensor:
    """The k-th smallest value of each row, from k = 1: (B, N) -> (B,). ONNX has no selection, so an export sorts."""
    return values.sort(1).values[:, k - 1] if torch.compiler.is_exporting() else values.kthvalue(k, 1).values
