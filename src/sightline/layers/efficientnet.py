"""EfficientNet-Lite0: a backbone for photographs that is small enough for a CPU.

Seven stages of inverted residuals: widen, look around channel by channel, narrow, and add where the shape allows it.
Legend for all shapes: B batch, C channels, N places, M model width.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from ..errors import SightlineError
from .backbones import Backbone, Norm

_STAGES = (
    # blocks, kernel, stride, expand_ratio, width
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280
_PARTS = {
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "depthwise.0",
    "_bn1": "depthwise.1",
    "_project_conv": "project.0",
    "_bn2": "project.1",
}  # of one block, in the naming of `efficientnet_lite_pytorch`, and in ours


class EfficientNetLite0(Backbone):
    """Colored photographs in, a vector of 1,280 for each 32 x 32 pixels out: 3.4 million parameters."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = [_bent(3, _STEM, 3, stride=2)]
        ins = _STEM
        for count, size, stride, expand_ratio, outs in _STAGES:
            for number in range(count):
                blocks.append(_Inverted(ins, outs, size, stride=1 if number else stride, expand_ratio=expand_ratio))
                ins = outs
        blocks.append(_bent(ins, _HEAD, 1))
        super().__init__(3, (16, 24, 40, 112, _HEAD), blocks)  # the width before each of five halvings

    def side(self, image_size: int) -> int:
        """Places of the grid along one side; a rest of fewer than 32 pixels has a place too."""
        super().side(image_size)
        return -(-image_size // self.min_size)

    def fold(self) -> None:
        """Make each norm part of the convolution before it: for a model that learns no more, and is to be fast."""
        for part in self.modules():
            if isinstance(part, nn.Sequential) and isinstance(part[0], _Convolution) and isinstance(part[1], Norm):
                part[0], part[1] = fuse_conv_bn_eval(part[0], part[1]), nn.Identity()


class _Inverted(nn.Module):
    def __init__(self, ins: int, outs: int, size: int, *, stride: int, expand_ratio: int):
        super().__init__()
        middle = ins * expand_ratio
        self.expand = _bent(ins, middle, 1) if expand_ratio > 1 else nn.Identity()
        self.depthwise = _bent(middle, middle, size, stride=stride, groups=middle)
        self.project = nn.Sequential(_Convolution(middle, outs, 1), _norm(outs))
        self.adds = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, height, width) -> (B, C', height / stride, width / stride)"""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds else y


class _Convolution(nn.Conv2d):
    """Pads as TensorFlow does, where these weights were learned: what is odd goes to the right and the bottom."""

    def __init__(self, ins: int, outs: int, size: int, *, stride: int = 1, groups: int = 1):
        even = size // 2 if stride == 1 else 0  # the same on both sides, which a convolution does by itself
        super().__init__(ins, outs, size, stride=stride, padding=even, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            rests = [max(self.kernel_size[0] - (side % self.stride[0] or self.stride[0]), 0) for side in x.shape[:1:-1]]
            x = F.pad(x, [part for rest in rests for part in (rest // 2, rest - rest // 2)])
        return super().forward(x)


def _norm(width: int) -> Norm:
    return Norm(width, eps=1e-3, momentum=0.01)


def _bent(ins: int, outs: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = _Convolution(ins, outs, size, stride=stride, groups=groups)
    return nn.Sequential(convolution, _norm(outs), nn.ReLU6(inplace=True))


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of `efficientnet_lite_pytorch` in our naming; its classifier and its counters stay behind."""
    last = 1 + sum(count for count, *_ in _STAGES)
    ends = {"_conv_stem": "0.0", "_bn0": "0.1", "_conv_head": f"{last}.0", "_bn1": f"{last}.1"}
    ours = {}
    for name, tensor in state.items():
        module, _, kind = name.rpartition(".")
        *place, part = module.split(".")
        if part == "_fc" or kind == "num_batches_tracked":
            continue
        if not place and part in ends:
            ours[f"blocks.{ends[part]}.{kind}"] = tensor
        elif len(place) == 2 and place[0] == "_blocks" and place[1].isdecimal() and part in _PARTS:
            ours[f"blocks.{int(place[1]) + 1}.{_PARTS[part]}.{kind}"] = tensor
        else:
            raise SightlineError(f"weights must have the names of EfficientNet-Lite0, got {name!r}")
    return ours
