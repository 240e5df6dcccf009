"""Packed batches: the tokens of all rows one after another, without padding.

Layers that treat each token alone (linear layers, norms) then skip the padding.

Shapes: B batch, T tokens, N tokens that are not padding, C channels.
"""

from typing import Any

import torch
from torch import Tensor, nn


class Packing:
    """Indices of the tokens of a batch that are not padding. attention_mask (B, T): True for a token."""

    def __init__(self, attention_mask: Tensor):
        self.shape = attention_mask.shape
        self.indices = attention_mask.flatten().nonzero()[:, 0]

    def pack(self, x: Tensor) -> Tensor:
        """x (B, T, C) -> (1, N, C)"""
        packed: Tensor = _Gather.apply(x.flatten(0, 1), self.indices)
        return packed.unsqueeze(0)

    def unpack(self, x: Tensor) -> Tensor:
        """x (1, N, C) -> (B, T, C), zeros at padding"""
        unpacked: Tensor = _Scatter.apply(x[0], self.indices, self.shape.numel())
        return unpacked.unflatten(0, self.shape)


def packs(module: nn.Module, x: Tensor) -> bool:
    """Whether a training loss is computed without padding: worthwhile on a CPU. On a GPU, shapes would vary."""
    return module.training and x.device.type == "cpu" and not torch.compiler.is_compiling()


def reference_pack(x: Tensor, attention_mask: Tensor) -> Tensor:
    """`Packing.pack` in plain indexing: x (B, T, C), attention_mask (B, T) -> (1, N, C)"""
    return x[attention_mask].unsqueeze(0)


def reference_unpack(x: Tensor, attention_mask: Tensor) -> Tensor:
    """`Packing.unpack` in plain indexing: x (1, N, C), attention_mask (B, T) -> (B, T, C)"""
    return x.new_zeros(*attention_mask.shape, x.shape[-1]).index_put((attention_mask,), x[0])


class _Gather(torch.autograd.Function):
    """Select rows, x (B*T, C) -> (N, C). Indices are unique, so the backward pass copies instead of accumulating."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.size = len(x)
        return x.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Scatter.apply(gradient, *ctx.saved_tensors, ctx.size), None


class _Scatter(torch.autograd.Function):
    """Write rows to their indices, x (N, C) -> (B*T, C); the backward pass is `_Gather`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(indices)
        return x.new_zeros(size, x.shape[1]).index_copy_(0, indices, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Gather.apply(gradient, *ctx.saved_tensors), None, None
