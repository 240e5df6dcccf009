"""Where a token stands, added to what it is.

Legend for all shapes: B batch, N tokens, M model width.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..checks import check_whole, nearest

Start = Literal["zeros", "ones", "normal", "sinusoidal"]


def sinusoids(length: int, width: int, *, first: int = 0, device: torch.device | None = None) -> Tensor:
    """Sine and cosine waves of growing length: positions first .. first + length - 1 -> (length, width)"""
    if width < 2 or width % 2:
        raise ValueError(f"width must be even and at least 2, got {width}")
    places = torch.arange(first, first + length, dtype=torch.float64)  # in float64 on the CPU: not every device has it
    steps = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = places[:, None] * torch.exp(-math.log(10_000.0) * steps)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).float().to(device)


class SinusoidalPositions(nn.Module):
    """Fixed waves; nothing to learn, defined at every length."""

    table: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("table", sinusoids(256, width), persistent=False)

    def forward(self, x: Tensor, *, first: int = 0) -> Tensor:
        """x (B, N, M), whose first token stands at `first` -> (B, N, M)"""
        check_whole(0, first=first)
        width, end = self.table.shape[1], first + x.shape[1]
        if x.shape[-1] != width:
            raise ValueError(f"x must have width {width}, got {x.shape[-1]}")
        if end > self.table.shape[0]:
            with torch.inference_mode(False):  # it stays, whatever this call is for
                self.table = sinusoids(2 * end, width, device=self.table.device).to(self.table.dtype)
        return x + self.table[first:end].to(x.dtype)


class LearntPositions(nn.Module):
    """A vector for each of `length` positions, started from zeros, ones, noise or sinusoids, then trained or frozen."""

    is_table = True
    """What it learns belongs to places; it is no matrix that maps one thing to another."""

    def __init__(self, length: int, width: int, *, start: Start = "normal", trainable: bool = True):
        super().__init__()
        check_whole(1, length=length, width=width)
        if start not in get_args(Start):
            raise ValueError(f"start must be {nearest(str(start), get_args(Start))}")
        table = {
            "zeros": lambda: torch.zeros(length, width),
            "ones": lambda: torch.ones(length, width),
            "normal": lambda: 0.02 * torch.randn(length, width),
            "sinusoidal": lambda: sinusoids(length, width),
        }[start]()
        self.table = nn.Parameter(table, requires_grad=trainable)

    def forward(self, x: Tensor, *, first: int = 0) -> Tensor:
        """x (B, N, M), whose first token stands at `first` -> (B, N, M)"""
        check_whole(0, first=first)
        length, width = self.table.shape
        if x.shape[-1] != width:
            raise ValueError(f"x must have width {width}, got {x.shape[-1]}")
        if first + x.shape[1] > length:
            raise ValueError(
                f"positions must be below {length}, the length they were learnt for, got {first + x.shape[1] - 1}"
            )
        return x + self.table[first : first + x.shape[1]].to(x.dtype)
