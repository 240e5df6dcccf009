"""What the queries and keys of a map are: tokens, or the tokens of windows, channels and other positions.

Shapes: B batch, H heads, Q queries, K keys, T tokens, M embedding dimension.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .. import limits
from ..errors import check
from .calls import Call

TOKENS = "tokens"
MAX_IMAGE_CHANNELS = 4
LANDMARKS = "tokens and landmarks"
CLASS_POSITIONS = {
    "deformable": "sampling points of each query",
    "nystrom": LANDMARKS,
    "blocksparse": "blocks of tokens",
    "longformer": "nearby tokens of each query",
    "ledencoder": "nearby tokens of each query",
}
"""What attention is over, by a word in the class name of its module."""


@dataclass(frozen=True)
class Windows:
    """Windows of a grid of tokens, which are in the batch of a map: (B * windows, H, tokens, tokens)"""

    grid: tuple[int, int]
    """Rows and columns of tokens."""
    size: tuple[int, int]
    """Rows and columns of tokens in a window. The grid is padded at its end to a multiple of them."""
    shift: tuple[int, int] = (0, 0)
    """By how many rows and columns the grid was rolled back before it was divided."""

    def __post_init__(self) -> None:
        sides = (*self.grid, *self.size)
        is_valid = len(self.grid) == len(self.size) == len(self.shift) == 2 and all(
            type(side) is int and side >= least
            for side, least in zip((*sides, *self.shift), (1, 1, 1, 1, 0, 0), strict=True)
        )
        check(is_valid, f"windows must have a grid, a size and a shift of rows and columns, got {self!r}")

    def __str__(self) -> str:
        shifted = f", shifted by {self.shift[0]} x {self.shift[1]}" if any(self.shift) else ""
        return f"windows of {self.size[0]} x {self.size[1]} in {self.grid[0]} x {self.grid[1]} tokens{shifted}"

    @property
    def count(self) -> int:
        """The number of windows."""
        return -(-self.grid[0] // self.size[0]) * -(-self.grid[1] // self.size[1])

    def in_place(self, weights: Tensor) -> Tensor:
        """The weights between all tokens, 0 between windows: (B * windows, H, Q, K) -> (B, H, T, T)"""
        rows, columns = self.grid
        total, most = rows * columns, limits.MAX_WINDOW_TOKENS
        check(total <= most, f"windows must have at most {most:,} tokens, got {total:,}; record other layers= only")
        index = self._token_index().to(weights.device)
        weights = weights.unflatten(0, (-1, self.count)).transpose(1, 2)
        placed = weights.new_zeros(*weights.shape[:2], total + 1, total + 1)  # the last token stands for the padding
        placed[:, :, index[:, :, None], index[:, None, :]] = weights
        return placed[:, :, :total, :total]

    def _token_index(self) -> Tensor:
        """The token at each position of each window, and T where the grid is padded: (windows, tokens)"""
        (rows, columns), (height, width) = self.grid, self.size
        index = torch.full((-(-rows // height) * height, -(-columns // width) * width), rows * columns)
        index[:rows, :columns] = torch.arange(rows * columns).view(rows, columns)
        index = index.roll((-self.shift[0], -self.shift[1]), (0, 1))
        return index.unflatten(0, (-1, height)).unflatten(2, (-1, width)).transpose(1, 2).flatten(0, 1).flatten(1)


def find_layout(calls: Sequence[Call], weights: Tensor) -> tuple[str, Windows | None]:
    """What a map is over, and its windows if it has any: weights (B, H, Q, K)

    `calls` are those under way, outermost first. The last one computes the map.
    """
    batch, heads, queries, keys = weights.shape
    if queries == keys and (windows := next(_find_windows(calls, batch, queries), None)):
        return TOKENS, windows
    states = next(iter(calls[-1].sequences().values()), None)
    positions, is_full = class_positions(calls[-1].module), states is not None and queries == keys == states.shape[1]
    if positions and not (positions == LANDMARKS and is_full):  # with a landmark for each token there are none
        return positions, None
    if states is None or states.dim() != 3:
        return TOKENS, None
    tokens, channels = states.shape[1:]
    if queries == keys and queries not in states.shape[:2] and queries == channels // heads:
        return "channels", None
    if batch > len(states) and batch % len(states) == 0 and queries not in states.shape[:2]:
        return f"{batch // len(states)} groups of {queries} x {keys} tokens", None
    if queries == tokens and keys < tokens and len(calls[-1].sequences()) == 1:
        return f"{tokens} tokens and {keys} reduced ones", None
    return TOKENS, None


def class_positions(module: nn.Module) -> str | None:
    """What the attention of a module is over, if its class name says that it is not over tokens."""
    return _class_positions(type(module).__name__.lower())


@cache
def _class_positions(class_name: str) -> str | None:
    return next((positions for word, positions in CLASS_POSITIONS.items() if word in class_name), None)


def find_image_tokens(call: Call) -> tuple[int, int] | None:
    """First and last + 1 of the tokens that stand for an image, in a Hugging Face model with an image token."""
    config, ids = getattr(call.module, "config", None), call.arguments().get("input_ids")
    image_token = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
    if image_token is None or not isinstance(ids, Tensor) or ids.dim() != 2:
        return None
    is_image = ids == image_token
    places = is_image[0].nonzero().flatten().tolist()
    is_one_run = places and places[-1] - places[0] + 1 == len(places) and bool((is_image == is_image[0]).all())
    return (places[0], places[-1] + 1) if is_one_run else None


def patch_grid(weight: Tensor, output: Tensor) -> tuple[int, int] | None:
    """Rows and columns of patches, if a convolution divides images into patches.

    weight (M, channels, height, width), output (B, M, rows, columns)
    """
    rows, columns = output.shape[-2:]
    is_patches = weight.shape[1] <= MAX_IMAGE_CHANNELS and min(weight.shape[2:]) > 1 and rows * columns > 1
    return (rows, columns) if is_patches else None


def _find_windows(calls: Sequence[Call], batch: int, tokens: int) -> Iterator[Windows]:
    """Windows by the attributes `window_size` and `shift_size` of a module around the attention, and by its input."""
    for call in reversed(calls):
        size = _pair(getattr(call.module, "window_size", None))
        if size is None or tokens != size[0] * size[1]:
            continue
        shift = _pair(getattr(call.module, "shift_size", 0)) or (0, 0)
        for num_images, grid in _grids(call):
            windows = Windows(grid, size, shift)
            is_padded = bool(grid[0] % size[0] or grid[1] % size[1])
            if num_images * windows.count == batch and windows.count > 1 and not (is_padded and any(shift)):
                yield windows


def _grids(call: Call) -> Iterator[tuple[int, tuple[int, int]]]:
    """The number of images and the possible rows and columns of tokens that a module was given."""
    others = [*call.args, *call.kwargs.values(), getattr(call.module, "input_resolution", None)]
    pairs = [pair for pair in (_pair(other) for other in others if not isinstance(other, int)) if pair]
    for x in call.sequences().values():
        if x.dim() == 4:
            yield x.shape[0], (x.shape[1], x.shape[2])
            yield x.shape[0], (x.shape[2], x.shape[3])
        else:
            yield from ((x.shape[0], pair) for pair in pairs if pair[0] * pair[1] == x.shape[1])


def _pair(value: Any) -> tuple[int, int] | None:
    """Rows and columns: two integers, or one for both."""
    values = (value, value) if type(value) is int else value
    is_pair = isinstance(values, list | tuple) and len(values) == 2 and all(type(side) is int for side in values)
    return (values[0], values[1]) if is_pair else None
