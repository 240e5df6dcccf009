"""Position embeddings, added to token embeddings.

Shapes: B batch, T tokens, M embedding dimension.
"""

import math
import sys
from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check, check_choice, check_int

PositionInit = Literal["zeros", "ones", "normal", "sinusoidal"]


def sinusoids(length: int, embed_dim: int, *, offset: int = 0, device: torch.device | None = None) -> Tensor:
    """Sines and cosines of geometrically growing wavelength at positions offset .. offset + length - 1: (length, M)"""
    check(embed_dim >= 2 and embed_dim % 2 == 0, f"embed_dim must be even and at least 2, got {embed_dim}")
    if torch.get_default_device().type == "meta":  # only the shape counts, and torch would import its compiler
        return torch.empty(length, embed_dim)
    positions = torch.arange(offset, offset + length, dtype=torch.float64)  # on the CPU: not every device has float64
    exponents = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    angles = positions[:, None] * torch.exp(-math.log(10_000.0) * exponents)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).float().to(device)


class PositionEmbedding(nn.Module, ABC):
    """A table with one vector per position."""

    table: Tensor
    max_positions: int
    """Largest number of positions."""

    def forward(self, x: Tensor, *, offset: int = 0) -> Tensor:
        """Add the embeddings of positions offset .. offset + T - 1: x (B, T, M) -> (B, T, M)"""
        check_int(0, offset=offset)
        embed_dim, end = self.table.shape[1], offset + x.shape[1]
        if x.shape[-1] != embed_dim:
            raise SightlineError(f"x must have {embed_dim} channels, the embed_dim of the positions, got {x.shape[-1]}")
        self.reserve(end)
        return x + self.table[offset:end].to(x.dtype)

    def add_at(self, x: Tensor, position: Tensor) -> Tensor:
        """Add the embedding of one reserved position, given as a tensor (1,) on the device: x (B, 1, M) -> (B, 1, M)"""
        return x + self.table.index_select(0, position).to(x.dtype)

    @abstractmethod
    def reserve(self, length: int) -> None:
        """Ensure that the table has at least `length` positions, or raise an error."""


class SinusoidalPositions(PositionEmbedding):
    """Fixed sinusoids for any length, without parameters."""

    max_positions = sys.maxsize

    def __init__(self, embed_dim: int):
        super().__init__()
        self.register_buffer("table", sinusoids(256, embed_dim), persistent=False)

    def reserve(self, length: int) -> None:
        """Grow the table to at least `length` positions."""
        if length > self.table.shape[0]:
            with torch.inference_mode(False):  # the table must be usable in training
                self.table = sinusoids(2 * length, self.table.shape[1], device=self.table.device).to(self.table.dtype)


class LearnedPositions(PositionEmbedding):
    """One learned vector for each of `max_positions` positions, or a frozen one if not `trainable`."""

    is_table = True
    """The parameters are a table indexed by position, not a matrix of a linear map."""

    def __init__(self, max_positions: int, embed_dim: int, *, init: PositionInit = "normal", trainable: bool = True):
        super().__init__()
        check_int(1, max_positions=max_positions, embed_dim=embed_dim)
        check_choice("init", init, get_args(PositionInit))
        table = {
            "zeros": lambda: torch.zeros(max_positions, embed_dim),
            "ones": lambda: torch.ones(max_positions, embed_dim),
            "normal": lambda: torch.empty(max_positions, embed_dim).normal_().mul_(0.02),
            "sinusoidal": lambda: sinusoids(max_positions, embed_dim),
        }[init]()
        self.table = nn.Parameter(table, requires_grad=trainable)
        self.max_positions = max_positions

    def reserve(self, length: int) -> None:
        """Raise an error if there are fewer than `length` positions."""
        if length > self.max_positions:
            raise SightlineError(f"positions must be below max_positions={self.max_positions}, got {length - 1}")


class GridPositions(LearnedPositions):
    """One learned vector for each cell of a grid, in row-major order.

    The vectors are linear in row and column at first, so that attention can compare places from the first step on.
    """

    def __init__(self, rows: int, columns: int, embed_dim: int):
        super().__init__(rows * columns, embed_dim)
        cells = torch.cartesian_prod(torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns))
        self.table = nn.Parameter(cells @ torch.randn(2, embed_dim))


def reserve_positions(module: nn.Module, length: int) -> int | None:
    """The largest number of tokens that a module takes without growing a table; None if it has no positions.

    Sinusoidal positions are reserved up to at least `length`. An exported model cannot grow its tables.
    """
    tables = [positions for positions in module.modules() if isinstance(positions, PositionEmbedding)]
    for positions in tables:
        positions.reserve(min(length, positions.max_positions))
    return min((positions.table.shape[0] for positions in tables), default=None)
