"""Dropout that does not keep a CPU waiting for its dice."""

import torch
from torch import Tensor, nn

SIDES = 1 << 16
"""A share is rounded to one part in so many, and what is kept is scaled by the rounded share."""
LOWEST = -(1 << 63)


class Dropout(nn.Dropout):
    """`nn.Dropout`, on a CPU two to three times as fast: torch throws one die for every number, this one for four."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        dropped = round(self.p * SIDES)
        if x.device.type != "cpu" or dropped >= SIDES or torch.compiler.is_compiling():
            return torch.dropout(x, self.p, True)
        dice = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(LOWEST, None).view(torch.int16)
        kept = dice[: x.numel()].view(x.shape) >= dropped - SIDES // 2
        return x * kept.to(x.dtype).mul_(SIDES / (SIDES - dropped))
