"""EfficientNet-Lite, backbones for photographs that are fast on a CPU.

Seven stages of inverted residual blocks: expand, depthwise convolution, project, and add where the shapes agree. The
versions have the same stages with more blocks and channels.

Shapes: B batch, C channels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from ..errors import SightlineError, check_choice
from .backbones import Backbone, BatchNorm

_STAGES = (
    # blocks, kernel size, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM_CHANNELS, _HEAD_CHANNELS = 32, 1280
_CHANNEL_MULTIPLE = 8
_PARTS = ("expand", "depthwise", "project")
_BLOCK_NAMES = {  # names in `efficientnet_lite_pytorch` -> names here
    **{f"_{part}_conv": f"{part}.0" for part in _PARTS},
    **{f"_bn{i}": f"{part}.1" for i, part in enumerate(_PARTS)},
}


_norm = partial(BatchNorm, eps=1e-3, momentum=0.01)


@dataclass(frozen=True)
class Version:
    """How a version of EfficientNet-Lite differs from the smallest one, and the image size it was trained with."""

    width: float
    """Factor of the channels, which are rounded to multiples of 8."""
    depth: float
    """Factor of the blocks of a stage, rounded up. The first and the last stage keep one block."""
    image_size: int

    def blocks(self) -> list[tuple[int, int, int, int]]:
        """Kernel size, stride, expansion and channels of each inverted residual block."""
        blocks = []
        for stage, (count, kernel_size, stride, expansion, channels) in enumerate(_STAGES):
            is_inner = 0 < stage < len(_STAGES) - 1
            for i in range(math.ceil(count * self.depth) if is_inner else count):
                blocks.append((kernel_size, 1 if i else stride, expansion, self._round(channels)))
        return blocks

    def _round(self, channels: int) -> int:
        """The channels of this version: the nearest multiple of 8, but at most a tenth less."""
        scaled = channels * self.width
        rounded = int(scaled + _CHANNEL_MULTIPLE / 2) // _CHANNEL_MULTIPLE * _CHANNEL_MULTIPLE
        return rounded if rounded >= 0.9 * scaled else rounded + _CHANNEL_MULTIPLE


EFFICIENTNETS = {
    "efficientnet_lite0": Version(1.0, 1.0, 224),
    "efficientnet_lite1": Version(1.0, 1.1, 240),
    "efficientnet_lite2": Version(1.1, 1.2, 260),
}
"""Versions of EfficientNet-Lite by name."""


class EfficientNetLite(Backbone):
    """RGB photographs to a vector of 1,280 channels per 32 x 32 pixels; 3.4 to 4.8 million parameters."""

    def __init__(self, name: str = "efficientnet_lite0") -> None:
        check_choice("name", name, EFFICIENTNETS)
        blocks: list[nn.Module] = [_conv_norm_relu(3, _STEM_CHANNELS, 3, stride=2)]
        ins, halvings = _STEM_CHANNELS, list[int]()
        for kernel_size, stride, expansion, outs in EFFICIENTNETS[name].blocks():
            if stride == 2:
                halvings.append(ins)
                last_halving = len(blocks)
            blocks.append(_InvertedResidual(ins, outs, kernel_size, stride=stride, expansion=expansion))
            ins = outs
        blocks.append(_conv_norm_relu(ins, _HEAD_CHANNELS, 1))
        super().__init__(3, (*halvings, _HEAD_CHANNELS), blocks)
        self.last_halving, self.map_channels = last_halving, halvings[-1]

    def forward_with_map(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, 3, height, width) -> (B, T, M), and the last map of twice the resolution (B, C, rows, columns)"""
        self.check_images(images)
        feature_map = self.blocks[: self.last_halving](images)
        return self.blocks[self.last_halving :](feature_map).flatten(2).mT, feature_map

    def grid_size(self, image_size: int) -> int:
        """Grid cells along one side; a remainder of fewer than 32 pixels has a cell too."""
        super().grid_size(image_size)
        return -(-image_size // self.min_size)

    def fuse_batch_norms(self) -> None:
        """Merge each batch norm into the convolution before it, for faster inference."""
        for module in self.modules():
            match list(module.children()):
                case [_SameConv2d() as convolution, BatchNorm() as norm, *_] if isinstance(module, nn.Sequential):
                    module[0], module[1] = fuse_conv_bn_eval(convolution, norm), nn.Identity()


class _InvertedResidual(nn.Module):
    def __init__(self, ins: int, outs: int, kernel_size: int, *, stride: int, expansion: int):
        super().__init__()
        hidden = ins * expansion
        self.expand = _conv_norm_relu(ins, hidden, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _conv_norm_relu(hidden, hidden, kernel_size, stride=stride, groups=hidden)
        self.project = nn.Sequential(_SameConv2d(hidden, outs, 1), _norm(outs))
        self.has_shortcut = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, height, width) -> (B, C', height / stride, width / stride)"""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.has_shortcut else y


class _SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: odd padding goes to the right and the bottom.

    Where padding is odd, it is made symmetric and one stride wider, and the first row or column of the output is left
    out. This is faster than to copy the input into a padded one.
    """

    def __init__(self, ins: int, outs: int, kernel_size: int, *, stride: int = 1, groups: int = 1):
        padding = kernel_size // 2 if stride == 1 else 0  # with stride 1 SAME padding is symmetric
        super().__init__(ins, outs, kernel_size, stride=stride, padding=padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, height, width) -> (B, C', height / stride, width / stride)"""
        stride = self.stride[0]
        if stride == 1:
            return super().forward(x)
        totals = [max(self.kernel_size[0] - (size % stride or stride), 0) for size in x.shape[2:]]
        padding = [total // 2 + stride * (total % 2) for total in totals]
        y = F.conv2d(x, self.weight, self.bias, stride, padding, groups=self.groups)
        rows, columns = (
            slice(total % 2, total % 2 - (-size // stride)) for total, size in zip(totals, x.shape[2:], strict=True)
        )
        return y[..., rows, columns]


def _conv_norm_relu(ins: int, outs: int, kernel_size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = _SameConv2d(ins, outs, kernel_size, stride=stride, groups=groups)
    return nn.Sequential(convolution, _norm(outs), nn.ReLU6(inplace=True))


def convert_state_dict(state: Mapping[str, Tensor], name: str = "efficientnet_lite0") -> dict[str, Tensor]:
    """A state dict of `efficientnet_lite_pytorch` with the names used here, without its classifier and counters."""
    last = 1 + len(EFFICIENTNETS[name].blocks())
    stem_and_head = {"_conv_stem": "0.0", "_bn0": "0.1", "_conv_head": f"{last}.0", "_bn1": f"{last}.1"}
    converted = {}
    for key, tensor in state.items():
        module, _, parameter = key.rpartition(".")
        *parents, leaf = module.split(".")
        if leaf == "_fc" or parameter == "num_batches_tracked":
            continue
        if not parents and leaf in stem_and_head:
            converted[f"blocks.{stem_and_head[leaf]}.{parameter}"] = tensor
        elif len(parents) == 2 and parents[0] == "_blocks" and parents[1].isdecimal() and leaf in _BLOCK_NAMES:
            converted[f"blocks.{int(parents[1]) + 1}.{_BLOCK_NAMES[leaf]}.{parameter}"] = tensor
        else:
            raise SightlineError(f"weights must have the names of {name}, got {key!r}")
    return converted
