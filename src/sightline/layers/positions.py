"""Where a token stands, added to what it is.

Legend for all shapes: B batch, N tokens, M model embed_dim.
"""

import math
import sys
from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check_int, one_of

Start = Literal["zeros", "ones", "normal", "sinusoidal"]


def sinusoids(length: int, embed_dim: int, *, first: int = 0, device: torch.device | None = None) -> Tensor:
    """Sine and cosine waves of growing length: positions first .. first + length - 1 -> (length, embed_dim)"""
    if embed_dim < 2 or embed_dim % 2:
        raise SightlineError(f"embed_dim must be even and at least 2, got {embed_dim}")
    places = torch.arange(first, first + length, dtype=torch.float64)  # in float64 on the CPU: not every device has it
    steps = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    angles = places[:, None] * torch.exp(-math.log(10_000.0) * steps)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).float().to(device)


class _Table(nn.Module, ABC):
    """A vector for each place."""

    table: Tensor

    def forward(self, x: Tensor, *, first: int = 0) -> Tensor:
        """x (B, N, M), whose first token stands at `first` -> (B, N, M)"""
        check_int(0, first=first)
        embed_dim, end = self.table.shape[1], first + x.shape[1]
        if x.shape[-1] != embed_dim:
            raise SightlineError(f"x must have embed_dim {embed_dim}, got {x.shape[-1]}")
        self.reserve(end)
        return x + self.table[first:end].to(x.dtype)

    def at(self, x: Tensor, place: Tensor) -> Tensor:
        """x (B, 1, M), which stands at a place (1,) that is reserved, and that only the device knows -> (B, 1, M)"""
        return x + self.table.index_select(0, place).to(x.dtype)

    @property
    @abstractmethod
    def most(self) -> int:
        """How many places there may be."""

    @abstractmethod
    def reserve(self, end: int) -> None:
        """See that there are so many places, or say why not."""


class SinusoidalPositions(_Table):
    """Fixed waves; nothing to learn, defined at every length."""

    def __init__(self, embed_dim: int):
        super().__init__()
        self.register_buffer("table", sinusoids(256, embed_dim), persistent=False)

    @property
    def most(self) -> int:
        """How many places there may be."""
        return sys.maxsize

    def reserve(self, end: int) -> None:
        """See that there are so many places."""
        if end > self.table.shape[0]:
            with torch.inference_mode(False):  # it stays, whatever this call is for
                self.table = sinusoids(2 * end, self.table.shape[1], device=self.table.device).to(self.table.dtype)


class LearnedPositions(_Table):
    """A vector for each of `length` positions, started from zeros, ones, noise or sinusoids, then trained or frozen."""

    is_table = True
    """What it learns belongs to places; it is no matrix that maps one thing to another."""

    def __init__(self, length: int, embed_dim: int, *, start: Start = "normal", trainable: bool = True):
        super().__init__()
        check_int(1, length=length, embed_dim=embed_dim)
        if start not in get_args(Start):
            raise SightlineError(f"start must be {one_of(str(start), get_args(Start))}")
        table = {
            "zeros": lambda: torch.zeros(length, embed_dim),
            "ones": lambda: torch.ones(length, embed_dim),
            "normal": lambda: 0.02 * torch.randn(length, embed_dim),
            "sinusoidal": lambda: sinusoids(length, embed_dim),
        }[start]()
        self.table = nn.Parameter(table, requires_grad=trainable)

    @property
    def most(self) -> int:
        """How many places there may be."""
        return self.table.shape[0]

    def reserve(self, end: int) -> None:
        """Refuse more places than were learned."""
        if end > self.most:
            raise SightlineError(
                f"positions must be below {self.most}, the length they were learned for, got {end - 1}"
            )
