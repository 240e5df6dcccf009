"""Occlusion: parts of an image are replaced by its background color."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def occlusion_color(pixels: Tensor) -> Tensor:
    """The median of each channel, (C, 1, 1): of a drawing, the paper"""
    return pixels.flatten(1).median(1).values[:, None, None]


def cell_mask(grid: tuple[int, int], cells: Iterable[int]) -> Tensor:
    """Whether a cell of a grid is one of `cells`, counted row by row: bool (rows, columns)"""
    mask = torch.zeros(grid, dtype=torch.bool)
    mask.view(-1)[torch.tensor(sorted(cells), dtype=torch.int64)] = True
    return mask


def cell_pixels(masks: Tensor, size: Sequence[int]) -> Tensor:
    """The pixels of an image of `size` (H, W) in the cells of a mask: bool (N, rows, columns) -> (N, H, W)"""
    rows, columns = (torch.arange(side) * count // side for side, count in zip(size, masks.shape[1:], strict=True))
    return masks[:, rows[:, None], columns]


def fill_cells(pixels: Tensor, masks: Tensor, color: Tensor | None = None) -> Tensor:
    """Copies of an image in which the cells of a mask have one color

    pixels (C, H, W), masks bool (N, rows, columns), color (C, 1, 1) (default: the background) -> (N, C, H, W)
    """
    color = occlusion_color(pixels) if color is None else color
    return torch.where(cell_pixels(masks, pixels.shape[1:])[:, None], color, pixels)
