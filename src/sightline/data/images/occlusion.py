"""Occlusion: parts of an image are replaced by its background color."""

from collections.abc import Iterable

import torch
from torch import Tensor


def occlusion_color(pixels: Tensor) -> Tensor:
    """The median of each channel, (C, 1, 1): of a drawing, the paper"""
    return pixels.flatten(1).median(1).values[:, None, None]


def fill_cells(pixels: Tensor, grid: tuple[int, int], cells: Iterable[int]) -> Tensor:
    """pixels (C, H, W) with cells of a grid (rows, columns), counted row by row, in the background color"""
    rows, columns = (torch.arange(side) * count // side for side, count in zip(pixels.shape[1:], grid, strict=True))
    is_filled = torch.isin(rows[:, None] * grid[1] + columns, torch.tensor(sorted(cells)))
    return torch.where(is_filled, occlusion_color(pixels), pixels)
