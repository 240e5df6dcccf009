"""Batches without their filling: what is done to each token alone need not be done to what is none.

Legend for all shapes: B batch, N tokens, P = B x N places, R attention_mask tokens of all rows, C channels.
"""

from typing import Any

import torch
from torch import Tensor


class Packing:
    """Where the attention_mask tokens of a batch stand; packed, they come one after the other, as one long row."""

    def __init__(self, attention_mask: Tensor):
        """attention_mask (B, N): True where there is a token"""
        self.shape = attention_mask.shape
        self.places = attention_mask.flatten().nonzero()[:, 0]

    def pack(self, x: Tensor) -> Tensor:
        """x (B, N, C) -> (1, R, C)"""
        packed: Tensor = _Pack.apply(x.flatten(0, 1), self.places)
        return packed.unsqueeze(0)

    def fill(self, x: Tensor) -> Tensor:
        """x (1, R, C) -> (B, N, C), zeros where there is no token"""
        filled: Tensor = _Fill.apply(x[0], self.places, self.shape.numel())
        return filled.unflatten(0, self.shape)


class _Pack(torch.autograd.Function):
    """Rows by their places, x (P, C) -> (R, C); no place comes twice, so the way back need not add, as torch's must."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Fill.apply(gradient, *ctx.saved_tensors, ctx.size), None


class _Fill(torch.autograd.Function):
    """Rows to their places, x (R, C) -> (P, C); the way back is `_Pack`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(places)
        return x.new_zeros(size, x.shape[1]).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Pack.apply(gradient, *ctx.saved_tensors), None, None
