"""Dropout that draws fewer random numbers on a CPU."""

import torch
from torch import Tensor, nn

LEVELS = 1 << 16
"""Resolution of the dropout probability on a CPU: one random 16-bit integer per element."""


class Dropout(nn.Dropout):
    """`nn.Dropout` that is two to three times as fast on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """x (any shape) -> the same shape"""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or round(self.p * LEVELS) >= LEVELS or torch.compiler.is_compiling():
            return torch.dropout(x, self.p, True)
        return fast_dropout(x, self.p)


def reference_dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the rest by 1 / (1 - p)."""
    return x * (torch.rand_like(x) >= p).to(x.dtype) / (1 - p)


def fast_dropout(x: Tensor, p: float) -> Tensor:
    """`reference_dropout` with one random 64-bit integer per four elements; p is rounded to 1 / LEVELS."""
    dropped = round(p * LEVELS)
    random = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
    kept = random[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
    return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
