"""Images changed at random, a batch at a time, where the pixels are.

`draw` makes all random numbers of a batch on the CPU, from the seed and the step alone; `apply` uses them and nothing
else. So any batch can be made again, and parts of a batch come out as they would in the whole.

Legend for all shapes: B batch, C channels, H height, W width, K numbers drawn for one image.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ... import seeds
from ...errors import SightlineError, check_int, check_max
from .reading import MOST_SIZE

_LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue look
_YIQ = np.array([_LUMA, (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135)])
_YIQ_BACK = np.linalg.inv(_YIQ)
_UNIFORM = 20  # numbers drawn for one image, whatever is on: turning one change on does not alter the others


@dataclass(frozen=True, kw_only=True)
class Augment:
    """How far images are changed; everything is off unless it is set."""

    crop: int = 0
    """Shift by up to so many pixels each way; the edge is repeated outwards."""
    flip: bool = False
    """Mirror left and right, every other time."""
    rotate: float = 0.0
    """Turn by up to so many degrees each way."""
    scale: float = 0.0
    """Enlarge by up to this share, or shrink by as much: 0.25 is 4/5 to 5/4."""
    shear: float = 0.0
    """Lean by up to so many degrees each way."""
    translate: float = 0.0
    """Shift by up to this share of the side each way, between pixels too."""
    brightness: float = 0.0
    """Multiply by 1 plus or minus up to this."""
    contrast: float = 0.0
    """Multiply the distance from the mean gray by 1 plus or minus up to this."""
    saturation: float = 0.0
    """Multiply the distance from gray by 1 plus or minus up to this; nothing for gray images."""
    hue: float = 0.0
    """Turn the colors by up to this share of the circle each way; nothing for gray images."""
    erase: float = 0.0
    """Chance that a rectangle of 2% to 33% of the image is filled with the mean color."""
    mixup: float = 0.0
    """Blend two neighbors of the batch, with a share from Beta(mixup, mixup)."""
    cutmix: float = 0.0
    """Put a rectangle of one neighbor into the other, its share from Beta(cutmix, cutmix).

    With `mixup` too, each pair takes one of the two, either as likely.
    """
    probability: float = 1.0
    """Chance that an image is turned, scaled, leant and moved at all, and that its colors are changed at all."""

    def __post_init__(self) -> None:
        check_int(0, crop=self.crop)
        check_max(MOST_SIZE, crop=self.crop)
        if not isinstance(self.flip, bool):
            raise SightlineError(f"flip must be true or false, got {self.flip!r}")
        limits = {
            "rotate": 180.0,
            "shear": 60.0,
            "scale": 4.0,
            "translate": 1.0,
            "brightness": 1.0,
            "contrast": 1.0,
            "saturation": 1.0,
            "hue": 0.5,
            "erase": 1.0,
            "mixup": 100.0,
            "cutmix": 100.0,
            "probability": 1.0,
        }
        for name, most in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                raise SightlineError(f"{name} must be a number from 0 to {most:g}, got {value!r}")

    @property
    def affine(self) -> bool:
        """Whether pixels may move by other than whole steps."""
        return any((self.rotate, self.scale, self.shear, self.translate))

    @property
    def color(self) -> bool:
        """Whether colors or brightness may change."""
        return any((self.brightness, self.contrast, self.saturation, self.hue))

    @property
    def mixes(self) -> bool:
        """Whether targets become shares of classes."""
        return bool(self.mixup or self.cutmix)


@dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers of one batch, in one tensor so that they travel in one copy."""

    values: Tensor
    """float32 (B, K)."""
    columns: tuple[tuple[str, int, int], ...]
    """Where in `values` each part begins and ends."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, name: str) -> Tensor:
        """One part, (B, its numbers)."""
        for part, start, stop in self.columns:
            if part == name:
                return self.values[:, start:stop]
        raise SightlineError(f"a part must be one of {', '.join(part for part, _, _ in self.columns)}, got {name!r}")

    def rows(self, part: slice) -> "Draws":
        """Those of a contiguous part of the batch; where images are mixed, no pair may be torn."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise SightlineError(f"rows must be a contiguous part, got step {step}")
        if any(name == "mix" for name, _, _ in self.columns) and (start % 2 or (stop % 2 and stop != len(self))):
            raise SightlineError(f"rows must start and stop at even rows where neighbors are mixed, got {start}:{stop}")
        return replace(self, values=self.values[start:stop])

    def to(self, device: torch.device | str) -> "Draws":
        """Copied to a device without waiting for it."""
        device = torch.device(device)
        values = self.values
        if device.type == "cuda" and values.device.type == "cpu":
            values = values.pin_memory()
        return replace(self, values=values.to(device, non_blocking=True))


def draw(config: Augment, count: int, *, seed: int, step: int) -> Draws:
    """All random numbers for a batch of `count` images: the same for the same arguments, on every machine."""
    check_int(0, count=count, seed=seed, step=step)
    random = seeds.make_generator(seed, seeds.AUGMENTATION, step)
    u = random.random((count, _UNIFORM))
    parts: dict[str, np.ndarray[Any, Any]] = {}
    if config.crop:
        parts["shift"] = np.floor(u[:, 0:2] * (2 * config.crop + 1)) - config.crop
    if config.flip:
        parts["flip"] = u[:, 2:3] < 0.5
    if config.affine:
        changed = u[:, 3] < config.probability
        parts["affine"] = matrices(
            degrees=_spread(u[:, 4], config.rotate) * changed,
            scale=(1 + config.scale) ** (_spread(u[:, 5], 1) * changed),
            shear=_spread(u[:, 6], config.shear) * changed,
            right=_spread(u[:, 7], config.translate) * changed,
            down=_spread(u[:, 8], config.translate) * changed,
        ).reshape(count, 6)
    if config.color:
        changed = u[:, 9] < config.probability
        brightness = 1 + _spread(u[:, 10], config.brightness) * changed
        contrast = 1 + _spread(u[:, 11], config.contrast) * changed
        parts["tone"] = np.stack((brightness * contrast, brightness * (1 - contrast)), 1)
        if config.saturation or config.hue:
            saturation = 1 + _spread(u[:, 12], config.saturation) * changed
            parts["tint"] = _tints(saturation, _spread(u[:, 13], config.hue) * changed).reshape(count, 9)
    if config.erase:
        area = 0.02 + 0.31 * u[:, 15]
        aspect = np.exp(_spread(u[:, 16], np.log(3.3)))
        parts["erase"] = _boxes(np.sqrt(area * aspect), np.sqrt(area / aspect), u[:, 17], u[:, 18])
        parts["erase"] *= u[:, 14:15] < config.erase
    if config.mixes:
        parts["mix"] = _mix(config, count, random)
    columns, start = [], 0
    for name, part in parts.items():
        columns.append((name, start, start + part.shape[1]))
        start += part.shape[1]
    values = np.concatenate([*parts.values(), np.empty((count, 0))], axis=1).astype(np.float32)
    return Draws(torch.from_numpy(values), tuple(columns))


def apply(config: Augment, pixels: Tensor, labels: Tensor, classes: int, draws: Draws) -> tuple[Tensor, Tensor]:
    """pixels uint8 (B, C, H, W), labels (B,) -> images float32 (B, C, H, W) from 0 to 1, targets

    Targets are the labels (B,) as they are, or float32 (B, classes) when images are mixed.
    """
    if pixels.dtype != torch.uint8 or pixels.ndim != 4:
        raise SightlineError(f"pixels must be uint8 (B, C, H, W), got {pixels.dtype} {tuple(pixels.shape)}")
    if len(pixels) != len(draws) or len(labels) != len(draws):
        raise SightlineError(
            f"pixels and labels must have a row for each of the {len(draws)} draws, got {len(pixels)} and {len(labels)}"
        )
    if config.affine:
        images = _resample(config, pixels.float() / 255, draws)
    elif config.crop or config.flip:
        images = _move(config, pixels, draws).float() / 255
    else:
        images = pixels.float() / 255
    if config.color:
        images = _recolor(images, draws, tint=bool(config.saturation or config.hue))
    if config.erase:
        height, width = images.shape[-2:]
        inside = _inside(_edges(draws["erase"], height, width), height, width)
        images = torch.where(inside, images.mean((2, 3), keepdim=True), images)
    return _mixed(images, labels, classes, draws["mix"]) if config.mixes else (images, labels)


def matrices(
    *,
    degrees: np.ndarray[Any, Any],
    scale: np.ndarray[Any, Any],
    shear: np.ndarray[Any, Any],
    right: np.ndarray[Any, Any],
    down: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Where each pixel of the new image comes from (B, 2, 3): x and y from the middle, shifts in shares of the side.

    The image is leant, scaled, turned anticlockwise by `degrees`, then moved right and down.
    """
    turn, lean = np.deg2rad(degrees), np.tan(np.deg2rad(shear))
    cos, sin = np.cos(turn), np.sin(turn)
    # the inverse of turn @ scale @ lean, written out; y runs downwards
    linear = np.stack((cos - lean * sin, -sin - lean * cos, sin, cos), 1).reshape(-1, 2, 2) / scale[:, None, None]
    shift = -(linear * np.stack((right, down), 1)[:, None]).sum(2, keepdims=True)
    return np.concatenate((linear, shift), 2)


def _spread(u: np.ndarray[Any, Any], most: float) -> np.ndarray[Any, Any]:
    return (2 * u - 1) * most


def _boxes(height: Any, width: Any, y: Any, x: Any) -> np.ndarray[Any, Any]:
    """Rectangles (B, 4): top, bottom, left, right in shares of the side, all of it inside the image."""
    height, width = np.minimum(height, 1), np.minimum(width, 1)
    top, left = y * (1 - height), x * (1 - width)
    return np.stack((top, top + height, left, left + width), 1)


def _tints(saturation: np.ndarray[Any, Any], turn: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Matrices (B, 3, 3) on red, green, blue; gray stays what it is."""
    cos, sin = np.cos(2 * np.pi * turn) * saturation, np.sin(2 * np.pi * turn) * saturation
    one, zero = np.ones_like(cos), np.zeros_like(cos)
    inner = np.stack((one, zero, zero, zero, cos, -sin, zero, sin, cos), 1).reshape(-1, 3, 3)
    return _YIQ_BACK @ inner @ _YIQ


def _mix(config: Augment, count: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """(B, 5): the share an image keeps of itself, and the rectangle its partner fills; the same for both of a pair."""
    pairs = (count + 1) // 2
    u = random.random((pairs, 3))
    cut = u[:, 0] * (config.mixup > 0) < 0.5 if config.cutmix else np.zeros(pairs, dtype=bool)
    blend = random.beta(config.mixup, config.mixup, pairs) if config.mixup else np.ones(pairs)
    share = random.beta(config.cutmix, config.cutmix, pairs) if config.cutmix else np.zeros(pairs)
    side = np.sqrt(1 - share)
    box = _boxes(side, side, u[:, 1], u[:, 2])
    mix = np.concatenate((np.where(cut, 1, blend)[:, None], np.where(cut[:, None], box, 0)), 1)
    rows = np.repeat(mix, 2, axis=0)[:count]
    if count % 2:
        rows[-1] = (1, 0, 0, 0, 0)
    return rows


def _move(config: Augment, pixels: Tensor, draws: Draws) -> Tensor:
    """Whole steps and mirrors by indexing: every pixel is one of the old ones."""
    batch, channels, height, width = pixels.shape
    y = torch.arange(height, device=pixels.device).expand(batch, height)
    x = torch.arange(width, device=pixels.device).expand(batch, width)
    if config.crop:
        shift = draws["shift"].long()
        y, x = (y + shift[:, :1]).clamp(0, height - 1), (x + shift[:, 1:]).clamp(0, width - 1)
    if config.flip:
        x = torch.where(draws["flip"] > 0.5, x.flip(1), x)
    rows = torch.arange(batch, device=pixels.device)[:, None, None, None]
    layers = torch.arange(channels, device=pixels.device)[:, None, None]
    return pixels[rows, layers, y[:, None, :, None], x[:, None, None, :]]


def _resample(config: Augment, images: Tensor, draws: Draws) -> Tensor:
    """Crop, mirror and everything affine in one pass over the pixels."""
    height, width = images.shape[-2:]
    matrix = draws["affine"].view(-1, 2, 3)
    y = (torch.arange(height, device=images.device) - (height - 1) / 2).expand(len(images), height)
    x = (torch.arange(width, device=images.device) - (width - 1) / 2).expand(len(images), width)
    if config.flip:
        x = torch.where(draws["flip"] > 0.5, -x, x)
    if config.crop:
        shift = draws["shift"]
        y, x = y + shift[:, :1], x + shift[:, 1:]
    y, x = y[:, :, None], x[:, None, :]
    (xx, xy, dx), (yx, yy, dy) = (row.unbind(1) for row in matrix[:, :, :, None, None].unbind(1))
    across = (xx * x + xy * y + dx * width) * (2 / width)
    down = (yx * x + yy * y + dy * height) * (2 / height)
    grid = torch.stack((across, down), -1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _recolor(images: Tensor, draws: Draws, *, tint: bool) -> Tensor:
    """Brightness, contrast, saturation and hue as one linear map for each image, and one clamp."""
    gain, lift = draws["tone"][:, :, None, None, None].unbind(1)
    means = images.mean((2, 3), keepdim=True)
    if images.shape[1] == 3:
        means = (_LUMA[0] * means[:, :1] + _LUMA[1] * means[:, 1:2]) + _LUMA[2] * means[:, 2:]
        if tint:
            red, green, blue = draws["tint"].view(-1, 3, 3, 1, 1).unbind(2)
            images = red * images[:, :1] + green * images[:, 1:2] + blue * images[:, 2:]
    return (gain * images + lift * means).clamp(0, 1)


def _edges(box: Tensor, height: int, width: int) -> Tensor:
    """Shares of the side to pixels (B, 4)"""
    top_bottom, left_right = box[:, :2] * height, box[:, 2:] * width
    return torch.cat((top_bottom, left_right), 1).round()


def _inside(edges: Tensor, height: int, width: int) -> Tensor:
    """Which pixels are in the rectangle: (B, 1, H, W)"""
    top, bottom, left, right = edges[:, :, None, None].unbind(1)
    y = torch.arange(height, device=edges.device)[:, None]
    x = torch.arange(width, device=edges.device)
    return ((y >= top) & (y < bottom) & (x >= left) & (x < right))[:, None]


def _mixed(images: Tensor, labels: Tensor, classes: int, mix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows 2j and 2j + 1 are partners; an odd last row is its own."""
    batch, _, height, width = images.shape
    partner = (torch.arange(batch, device=images.device) ^ 1).clamp(max=batch - 1)
    edges = _edges(mix[:, 1:], height, width)
    keep = mix[:, 0]
    other = images[partner]
    weight = keep[:, None, None, None]
    images = torch.where(_inside(edges, height, width), other, weight * images + (1 - weight) * other)
    cut = (edges[:, 1] - edges[:, 0]) * (edges[:, 3] - edges[:, 2]) / (height * width)
    own = (keep * (1 - cut))[:, None]
    hard = (labels[:, None] == torch.arange(classes, device=labels.device)).float()
    return images, own * hard + (1 - own) * hard[partner]
