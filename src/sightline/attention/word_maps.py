"""Heat maps of words over an image, from the cross-attention of a diffusion model.

Shapes: B batch, H heads, Q patches of the image, K words.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import SightlineError, check
from .attention_map import AttentionMap
from .record import Record


def word_maps(record: Record, grid: tuple[int, int] | None = None) -> Record:
    """One map (B, 1, words, patches) of all cross-attention. See `Record.word_maps`."""
    maps = record.of("cross").maps
    check(maps, "word_maps must be given a record with cross-attention from an image to words, got none")
    batch, words = len(maps[0].weights), maps[0].weights.shape[3]
    shapes = {(len(m.weights), m.weights.shape[3]) for m in maps}
    fix = "select layers or slice the record"
    check(len(shapes) == 1, f"word_maps must be given maps of one batch size and one text, got {sorted(shapes)}; {fix}")
    patches = max(m.weights.shape[2] for m in maps)
    rows, columns = _grid(patches, grid or record.patch_grid, is_given=grid is not None)
    total = torch.zeros(batch, words, rows, columns)
    for m in maps:
        size = _scaled(m, rows, columns)
        heat = m.weights.float().mean(1).mT.unflatten(2, size).to(total.device)
        total += heat if size == (rows, columns) else _resize(heat, rows, columns)
    weights = (total / len(maps)).flatten(2).unsqueeze(1)
    placed = record.with_maps([AttentionMap(name="word maps", kind="cross", weights=weights, heads=())])
    placed.patch_grid = (rows, columns)
    return placed


def _grid(patches: int, grid: tuple[int, int] | None, *, is_given: bool) -> tuple[int, int]:
    if grid is not None and (is_given or grid[0] * grid[1] == patches):
        rule = f"grid must be rows and columns of the {patches} patches of the largest map"
        check(grid[0] * grid[1] == patches, f"{rule}, got {grid[0]} x {grid[1]}")
        return grid
    side = math.isqrt(patches)
    if side * side != patches:
        raise SightlineError(f"grid must be given for {patches} patches, which are not square, got none")
    return side, side


def _scaled(m: AttentionMap, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the patches of a map, in the proportions of the largest grid."""
    patches = m.weights.shape[2]
    factor = math.sqrt(rows * columns / patches)
    for height in {math.floor(rows / factor), round(rows / factor), math.ceil(rows / factor)} - {0}:
        if patches % height == 0 and abs(patches / height * factor - columns) < factor:
            return height, patches // height
    rule = f"word_maps must be given maps with the proportions of {rows} x {columns} patches"
    raise SightlineError(f"{rule}, got {patches} patches in {m.name}; pass grid=(rows, columns)")


def _resize(heat: Tensor, rows: int, columns: int) -> Tensor:
    """Spread the weight of a patch over the smaller ones that it covers: (B, words, h, w) -> (B, words, rows, columns)

    The sum over words remains that of the weights.
    """
    return F.interpolate(heat, (rows, columns), mode="bilinear", align_corners=False)
