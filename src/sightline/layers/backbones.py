"""Convolutional backbones: images to a grid of feature vectors.

Shapes: B batch, C channels, T grid cells, M embedding dimension.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check, check_fraction, check_int


class Backbone(nn.Module):
    """Blocks that each halve the image, from `in_channels` to the last of `channels`."""

    def __init__(self, in_channels: int, channels: Sequence[int], blocks: Sequence[nn.Module]):
        super().__init__()
        self.in_channels, self.embed_dim, self.min_size = in_channels, channels[-1], 2 ** len(channels)
        self.blocks = nn.Sequential(*blocks)

    def grid_size(self, image_size: int) -> int:
        """Grid cells along one side of an image of this size."""
        rule = f"image_size must be at least {self.min_size} for this backbone"
        check(image_size >= self.min_size, f"{rule}, got {image_size}")
        return image_size // self.min_size

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, height, width) -> (B, T, M), cells in row-major order"""
        self.check_images(images)
        return self.blocks(images).flatten(2).mT

    def check_images(self, images: Tensor) -> None:
        """Raise an error for images of another shape."""
        if images.dim() != 4 or images.shape[1] != self.in_channels or min(images.shape[2:]) < self.min_size:
            shape = f"(batch, {self.in_channels}, height, width) and sides of at least {self.min_size}"
            raise SightlineError(f"images must have shape {shape}, got {tuple(images.shape)}")


class BatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` without `num_batches_tracked`, so that every entry of the state dict is floating point."""

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__(channels, eps=eps, momentum=momentum)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        # torch adds num_batches_tracked to a state dict without a version, such as one from a file
        super()._load_from_state_dict(state, prefix, {**metadata, "version": 2}, *rest)


class Conv4(Backbone):
    """Four blocks of convolution, batch norm, max pooling and ReLU: the small backbone of few-shot papers.

    `dropout` drops whole channels after each block in training.
    """

    def __init__(self, in_channels: int, *, channels: Sequence[int] = (64, 64, 64, 64), dropout: float = 0.0):
        check_fraction(dropout=dropout)
        inputs = _input_channels(in_channels, channels)
        blocks = [  # ReLU after pooling gives the same result as before it, at a quarter of the cost
            nn.Sequential(*_conv_norm(ins, outs), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Dropout2d(dropout))
            for ins, outs in zip(inputs, channels, strict=True)
        ]
        super().__init__(in_channels, channels, blocks)


class ResNet12(Backbone):
    """Four residual blocks of three convolutions, each followed by max pooling: the large backbone of few-shot papers.

    `dropout` drops whole channels after each block in training.
    """

    def __init__(self, in_channels: int, *, channels: Sequence[int] = (64, 160, 320, 640), dropout: float = 0.0):
        check_fraction(dropout=dropout)
        inputs = _input_channels(in_channels, channels)
        blocks = [_ResidualBlock(ins, outs, dropout) for ins, outs in zip(inputs, channels, strict=True)]
        super().__init__(in_channels, channels, blocks)


class _ResidualBlock(nn.Module):
    def __init__(self, ins: int, outs: int, dropout: float):
        super().__init__()
        activation = nn.LeakyReLU(0.1, inplace=True)
        self.path = nn.Sequential(
            *_conv_norm(ins, outs), activation, *_conv_norm(outs, outs), activation, *_conv_norm(outs, outs)
        )
        self.shortcut = nn.Sequential(*_conv_norm(ins, outs, 1))
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, height, width) -> (B, C', height / 2, width / 2)"""
        return self.dropout(F.leaky_relu(F.max_pool2d(self.path(x) + self.shortcut(x), 2), 0.1))


BACKBONES: dict[str, type[Conv4] | type[ResNet12]] = {"conv4": Conv4, "resnet12": ResNet12}
"""Backbones by name."""


def _conv_norm(ins: int, outs: int, kernel_size: int = 3) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(ins, outs, kernel_size, padding=kernel_size // 2, bias=False), BatchNorm(outs)


def _input_channels(in_channels: int, channels: Sequence[int]) -> tuple[int, ...]:
    """Input channels of each block."""
    check(channels, "channels must have at least one entry, got none")
    check_int(1, in_channels=in_channels, **{f"channels[{i}]": size for i, size in enumerate(channels)})
    return (in_channels, *channels[:-1])
