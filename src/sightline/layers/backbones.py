"""Backbones: images in, a vector for each place of a small grid out.

Legend for all shapes: B batch, C in_channels, N places, M model channels.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check_fraction, check_int


class Backbone(nn.Module):
    """Blocks that each halve the picture, from `in_channels` to the last of `channels`.

    While they learn, a share of each block's in_channels, its `dropout`, is left out.
    """

    def __init__(self, in_channels: int, channels: Sequence[int], blocks: Sequence[nn.Module]):
        super().__init__()
        self.in_channels, self.embed_dim, self.min_size = in_channels, channels[-1], 2 ** len(channels)
        self.blocks = nn.Sequential(*blocks)

    def side(self, image_size: int) -> int:
        """Places of the grid along one side, of images of this size."""
        if image_size < self.min_size:
            raise SightlineError(f"image_size must be at least {self.min_size} for this backbone, got {image_size}")
        return image_size // self.min_size

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, height, width) -> (B, N, M), places in reading order"""
        if images.dim() != 4 or images.shape[1] != self.in_channels or min(images.shape[2:]) < self.min_size:
            raise SightlineError(
                f"images must have shape (batch, {self.in_channels}, height, width) and sides of at least "
                f"{self.min_size}, got {tuple(images.shape)}"
            )
        return self.blocks(images).flatten(2).mT


class Norm(nn.BatchNorm2d):
    """Without the counter of batches: it is of no use, and the one number of a model that would be no float."""

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__(channels, eps=eps, momentum=momentum)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        # into a state dict that does not say its version, as one from a file, torch would put the counter first
        super()._load_from_state_dict(state, prefix, {**metadata, "version": 2}, *rest)


class Conv4(Backbone):
    """Four convolutions, each with a norm, a bend and a halving: the small backbone of few-shot papers."""

    def __init__(self, in_channels: int, *, channels: Sequence[int] = (64, 64, 64, 64), dropout: float = 0.0):
        check_fraction(dropout=dropout)
        ins = _checked(in_channels, channels)
        blocks = [  # halved, then bent: the same as bent first, for less
            nn.Sequential(*_convolution(a, b), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Dropout2d(dropout))
            for a, b in zip(ins, channels, strict=True)
        ]
        super().__init__(in_channels, channels, blocks)


class ResNet12(Backbone):
    """Four residual blocks of three convolutions, each with a halving: the large backbone of few-shot papers."""

    def __init__(self, in_channels: int, *, channels: Sequence[int] = (64, 160, 320, 640), dropout: float = 0.0):
        check_fraction(dropout=dropout)
        ins = _checked(in_channels, channels)
        super().__init__(in_channels, channels, [_Residual(a, b, dropout) for a, b in zip(ins, channels, strict=True)])


class _Residual(nn.Module):
    def __init__(self, ins: int, outs: int, dropout: float):
        super().__init__()
        bend = nn.LeakyReLU(0.1, inplace=True)
        self.path = nn.Sequential(
            *_convolution(ins, outs), bend, *_convolution(outs, outs), bend, *_convolution(outs, outs)
        )
        self.shortcut = nn.Sequential(*_convolution(ins, outs, 1))
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, height, width) -> (B, C', height / 2, width / 2)"""
        return self.dropout(F.leaky_relu(F.max_pool2d(self.path(x) + self.shortcut(x), 2), 0.1))


def _convolution(ins: int, outs: int, size: int = 3) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(ins, outs, size, padding=size // 2, bias=False), Norm(outs)


BACKBONES: dict[str, type[Conv4] | type[ResNet12]] = {"conv4": Conv4, "resnet12": ResNet12}
"""By name."""


def _checked(in_channels: int, channels: Sequence[int]) -> tuple[int, ...]:
    if not channels:
        raise SightlineError("channels must name at least one block, got none")
    check_int(1, in_channels=in_channels, **{f"channels[{i}]": size for i, size in enumerate(channels)})
    return (in_channels, *channels[:-1])
