"""Random image augmentation of whole batches on their device.

`sample_params` draws all random numbers of a batch on the CPU from the seed and the step. Given these, `apply` is
deterministic. A batch can therefore be reproduced, and a slice of a batch equals that slice of the augmented batch.

Legend for all shapes: B batch, C channels, H height, W width, K parameters per image.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ... import seeds
from ...config import Config, Rule, at_least, at_most, rule
from ...errors import SightlineError, check, check_int

_LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in brightness
_RGB_TO_YIQ = np.array([_LUMA, (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135)])
_YIQ_TO_RGB = np.linalg.inv(_RGB_TO_YIQ)
_NUM_UNIFORM = 20  # uniform numbers per image, the same for all configs: an option does not change the others' numbers

Array = np.ndarray[Any, Any]


def up_to(maximum: float) -> Rule:
    """The rule that a number is from 0 to a maximum."""
    return rule(f"a number from 0 to {maximum:g}", lambda value: 0 <= value <= maximum)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """Strength of each augmentation. All are off by default."""

    crop: Annotated[int, at_least(0), at_most("MAX_IMAGE_SIZE")] = 0
    """Maximum shift in pixels, with edge pixels repeated."""
    flip: bool = False
    """Flip horizontally with probability 0.5."""
    rotate: Annotated[float, up_to(180)] = 0.0
    """Maximum rotation in degrees."""
    scale: Annotated[float, up_to(4)] = 0.0
    """Maximum relative scaling: 0.25 scales by 4/5 to 5/4."""
    shear: Annotated[float, up_to(60)] = 0.0
    """Maximum horizontal shear in degrees."""
    translate: Annotated[float, up_to(1)] = 0.0
    """Maximum shift as a fraction of the side, with interpolation."""
    brightness: Annotated[float, up_to(1)] = 0.0
    """Maximum relative change of brightness."""
    contrast: Annotated[float, up_to(1)] = 0.0
    """Maximum relative change of the distance from the mean gray level."""
    saturation: Annotated[float, up_to(1)] = 0.0
    """Maximum relative change of the distance from gray. Ignored for grayscale images."""
    hue: Annotated[float, up_to(0.5)] = 0.0
    """Maximum rotation of the hue as a fraction of the color circle. Ignored for grayscale images."""
    erase: Annotated[float, up_to(1)] = 0.0
    """Probability that a rectangle of 2% to 33% of the image is filled with its mean color."""
    mixup: Annotated[float, up_to(100)] = 0.0
    """Blend neighboring images of a batch with a weight from Beta(mixup, mixup)."""
    cutmix: Annotated[float, up_to(100)] = 0.0
    """Paste a rectangle of the neighboring image with an area fraction from Beta(cutmix, cutmix).

    With `mixup`, each pair uses one of the two with equal probability.
    """
    probability: Annotated[float, up_to(1)] = 1.0
    """Probability that affine transforms are applied to an image, and likewise color changes."""

    @property
    def has_affine(self) -> bool:
        """Whether images are resampled with an affine transform."""
        return any((self.rotate, self.scale, self.shear, self.translate))

    @property
    def has_color(self) -> bool:
        """Whether colors or brightness change."""
        return any((self.brightness, self.contrast, self.saturation, self.hue))

    @property
    def mixes_labels(self) -> bool:
        """Whether targets are class probabilities instead of labels."""
        return bool(self.mixup or self.cutmix)


@dataclass(frozen=True, eq=False)
class AugmentParams:
    """Random parameters of a batch, in one tensor so that a single copy moves them to a device."""

    values: Tensor
    """float32 (B, K)."""
    columns: dict[str, slice]
    """Columns of each group of parameters in `values`."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, name: str) -> Tensor:
        """The parameters of one group, (B, columns of the group)."""
        return self.values[:, self.columns[name]]

    def take(self, batch_slice: slice) -> "AugmentParams":
        """Parameters of a contiguous slice of the batch. If images are mixed, no pair may be split."""
        start, stop, step = batch_slice.indices(len(self))
        check(step == 1, f"batch_slice must be contiguous, got step {step}")
        is_valid = "mix" not in self.columns or (start % 2 == 0 and (stop % 2 == 0 or stop == len(self)))
        check(is_valid, f"batch_slice must start and stop at even indices if neighbors are mixed, got {start}:{stop}")
        return replace(self, values=self.values[start:stop])

    def to(self, device: torch.device | str) -> "AugmentParams":
        """Copy to a device asynchronously."""
        is_pinned = torch.device(device).type == "cuda" and self.values.is_cpu
        values = self.values.pin_memory() if is_pinned else self.values
        return replace(self, values=values.to(device, non_blocking=True))


def sample_params(config: AugmentConfig, batch_size: int, *, seed: int, step: int) -> AugmentParams:
    """Sample the parameters of a batch. The result depends only on the arguments."""
    check_int(0, batch_size=batch_size, seed=seed, step=step)
    generator = seeds.make_generator(seed, seeds.AUGMENTATION, step)
    u = generator.random((batch_size, _NUM_UNIFORM))
    groups: dict[str, Array] = {}
    if config.crop:
        groups["shift"] = np.floor(u[:, 0:2] * (2 * config.crop + 1)) - config.crop
    if config.flip:
        groups["flip"] = u[:, 2:3] < 0.5
    if config.has_affine:
        is_applied = u[:, 3] < config.probability
        groups["affine"] = inverse_affine(
            degrees=_symmetric(u[:, 4], config.rotate) * is_applied,
            scale=(1 + config.scale) ** (_symmetric(u[:, 5], 1) * is_applied),
            shear=_symmetric(u[:, 6], config.shear) * is_applied,
            right=_symmetric(u[:, 7], config.translate) * is_applied,
            down=_symmetric(u[:, 8], config.translate) * is_applied,
        ).reshape(batch_size, 6)
    if config.has_color:
        is_applied = u[:, 9] < config.probability
        brightness = 1 + _symmetric(u[:, 10], config.brightness) * is_applied
        contrast = 1 + _symmetric(u[:, 11], config.contrast) * is_applied
        groups["tone"] = np.stack((brightness * contrast, brightness * (1 - contrast)), 1)
        if config.saturation or config.hue:
            saturation = 1 + _symmetric(u[:, 12], config.saturation) * is_applied
            hue = _symmetric(u[:, 13], config.hue) * is_applied
            groups["tint"] = _tint_matrices(saturation, hue).reshape(batch_size, 9)
    if config.erase:
        area = 0.02 + 0.31 * u[:, 15]
        aspect = np.exp(_symmetric(u[:, 16], np.log(3.3)))
        groups["erase"] = _boxes(np.sqrt(area * aspect), np.sqrt(area / aspect), u[:, 17], u[:, 18])
        groups["erase"] *= u[:, 14:15] < config.erase
    if config.mixes_labels:
        groups["mix"] = _sample_mix(config, batch_size, generator)
    edges = pairwise(accumulate((group.shape[1] for group in groups.values()), initial=0))
    columns = {name: slice(start, stop) for name, (start, stop) in zip(groups, edges, strict=True)}
    values = np.concatenate([*groups.values(), np.empty((batch_size, 0))], axis=1).astype(np.float32)
    return AugmentParams(torch.from_numpy(values), columns)


def apply(
    config: AugmentConfig, pixels: Tensor, labels: Tensor, num_classes: int, params: AugmentParams
) -> tuple[Tensor, Tensor]:
    """Augment images: uint8 (B, C, H, W) and labels (B,) -> float32 (B, C, H, W) from 0 to 1, and targets.

    Targets are the labels (B,), or class probabilities float32 (B, classes) if images are mixed.
    """
    if pixels.dtype != torch.uint8 or pixels.ndim != 4:
        raise SightlineError(f"pixels must be uint8 (B, C, H, W), got {pixels.dtype} {tuple(pixels.shape)}")
    if not len(pixels) == len(labels) == len(params):
        sizes = f"{len(pixels)} and {len(labels)}"
        raise SightlineError(f"pixels and labels must have the batch size of params, {len(params)}, got {sizes}")
    if (config.crop or config.flip) and not config.has_affine:
        pixels = _shift_and_flip(config, pixels, params)
    images = pixels.float() / 255
    if config.has_affine:
        images = _resample(config, images, params)
    if config.has_color:
        images = _change_color(images, params)
    if config.erase:
        height, width = images.shape[-2:]
        is_inside = _inside(_to_pixels(params["erase"], height, width), height, width)
        images = torch.where(is_inside, images.mean((2, 3), keepdim=True), images)
    return _mix(images, labels, num_classes, params["mix"]) if config.mixes_labels else (images, labels)


def augment_pixels(config: AugmentConfig, pixels: Tensor, params: AugmentParams) -> Tensor:
    """Augmented images as uint8 (B, C, H, W), for a config that does not mix labels."""
    labels = torch.zeros(len(pixels), dtype=torch.long)
    images, _ = apply(config, pixels, labels, 1, params.to(pixels.device))
    return (images * 255).round().to(torch.uint8)


def inverse_affine(*, degrees: Array, scale: Array, shear: Array, right: Array, down: Array) -> Array:
    """Matrices (B, 2, 3) that map output coordinates to input coordinates.

    Coordinates are relative to the center, shifts are fractions of the side. The image is sheared, scaled, rotated
    counterclockwise by `degrees`, then shifted right and down.
    """
    angle, slope = np.deg2rad(degrees), np.tan(np.deg2rad(shear))
    cos, sin = np.cos(angle), np.sin(angle)
    # inverse of rotation @ scale @ shear; the y axis points down
    linear = np.stack((cos - slope * sin, -sin - slope * cos, sin, cos), 1).reshape(-1, 2, 2) / scale[:, None, None]
    shift = -(linear * np.stack((right, down), 1)[:, None]).sum(2, keepdims=True)
    return np.concatenate((linear, shift), 2)


def _symmetric(u: Array, maximum: float) -> Array:
    """Uniform numbers from 0 to 1 -> from -maximum to maximum."""
    return (2 * u - 1) * maximum


def _boxes(height: Any, width: Any, y: Any, x: Any) -> Array:
    """Rectangles (B, 4) inside the image: top, bottom, left, right as fractions of the side."""
    height, width = np.minimum(height, 1), np.minimum(width, 1)
    top, left = y * (1 - height), x * (1 - width)
    return np.stack((top, top + height, left, left + width), 1)


def _tint_matrices(saturation: Array, hue: Array) -> Array:
    """RGB matrices (B, 3, 3) that change saturation and hue. Gray is unchanged."""
    cos, sin = np.cos(2 * np.pi * hue) * saturation, np.sin(2 * np.pi * hue) * saturation
    one, zero = np.ones_like(cos), np.zeros_like(cos)
    yiq = np.stack((one, zero, zero, zero, cos, -sin, zero, sin, cos), 1).reshape(-1, 3, 3)
    return _YIQ_TO_RGB @ yiq @ _RGB_TO_YIQ


def _sample_mix(config: AugmentConfig, batch_size: int, generator: np.random.Generator) -> Array:
    """(B, 5): weight of the image itself, and the rectangle pasted from its partner. Equal for both of a pair."""
    pairs = (batch_size + 1) // 2
    u = generator.random((pairs, 3))
    uses_cutmix = u[:, 0] * (config.mixup > 0) < 0.5 if config.cutmix else np.zeros(pairs, dtype=bool)
    weight = generator.beta(config.mixup, config.mixup, pairs) if config.mixup else np.ones(pairs)
    kept_area = generator.beta(config.cutmix, config.cutmix, pairs) if config.cutmix else np.zeros(pairs)
    side = np.sqrt(1 - kept_area)
    box = _boxes(side, side, u[:, 1], u[:, 2])
    mix = np.concatenate((np.where(uses_cutmix, 1, weight)[:, None], np.where(uses_cutmix[:, None], box, 0)), 1)
    mix = np.repeat(mix, 2, axis=0)[:batch_size]
    mix[batch_size - batch_size % 2 :] = (1, 0, 0, 0, 0)  # an odd last image has no partner
    return mix


def _shift_and_flip(config: AugmentConfig, pixels: Tensor, params: AugmentParams) -> Tensor:
    """Shift by whole pixels and flip, by indexing without interpolation."""
    batch, channels, height, width = pixels.shape
    y = torch.arange(height, device=pixels.device).expand(batch, height)
    x = torch.arange(width, device=pixels.device).expand(batch, width)
    if config.crop:
        shift = params["shift"].long()
        y, x = (y + shift[:, :1]).clamp(0, height - 1), (x + shift[:, 1:]).clamp(0, width - 1)
    if config.flip:
        x = torch.where(params["flip"] > 0.5, x.flip(1), x)
    image = torch.arange(batch, device=pixels.device)[:, None, None, None]
    channel = torch.arange(channels, device=pixels.device)[:, None, None]
    return pixels[image, channel, y[:, None, :, None], x[:, None, None, :]]


def _resample(config: AugmentConfig, images: Tensor, params: AugmentParams) -> Tensor:
    """Shift, flip and transform in one bilinear resampling."""
    height, width = images.shape[-2:]
    y = (torch.arange(height, device=images.device) - (height - 1) / 2).expand(len(images), height)
    x = (torch.arange(width, device=images.device) - (width - 1) / 2).expand(len(images), width)
    if config.flip:
        x = torch.where(params["flip"] > 0.5, -x, x)
    if config.crop:
        shift = params["shift"]
        y, x = y + shift[:, :1], x + shift[:, 1:]
    y, x = y[:, :, None], x[:, None, :]
    (xx, xy, dx), (yx, yy, dy) = (row.unbind(1) for row in params["affine"].view(-1, 2, 3, 1, 1).unbind(1))
    grid_x = (xx * x + xy * y + dx * width) * (2 / width)
    grid_y = (yx * x + yy * y + dy * height) * (2 / height)
    grid = torch.stack((grid_x, grid_y), -1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _change_color(images: Tensor, params: AugmentParams) -> Tensor:
    """Brightness, contrast, saturation and hue as one linear map per image, then one clamp."""
    gain, lift = params["tone"][:, :, None, None, None].unbind(1)
    means = images.mean((2, 3), keepdim=True)
    if images.shape[1] == 3:
        means = (_LUMA[0] * means[:, :1] + _LUMA[1] * means[:, 1:2]) + _LUMA[2] * means[:, 2:]
        if "tint" in params.columns:
            red, green, blue = params["tint"].view(-1, 3, 3, 1, 1).unbind(2)
            images = red * images[:, :1] + green * images[:, 1:2] + blue * images[:, 2:]
    return (gain * images + lift * means).clamp(0, 1)


def _to_pixels(boxes: Tensor, height: int, width: int) -> Tensor:
    """Rectangles in fractions of the side -> whole pixels, (B, 4)."""
    top_bottom, left_right = boxes[:, :2] * height, boxes[:, 2:] * width
    return torch.cat((top_bottom, left_right), 1).round()


def _inside(edges: Tensor, height: int, width: int) -> Tensor:
    """Mask of the pixels inside each rectangle: (B, 4) -> bool (B, 1, H, W)."""
    top, bottom, left, right = edges[:, :, None, None].unbind(1)
    y = torch.arange(height, device=edges.device)[:, None]
    x = torch.arange(width, device=edges.device)
    return ((y >= top) & (y < bottom) & (x >= left) & (x < right))[:, None]


def _mix(images: Tensor, labels: Tensor, num_classes: int, mix: Tensor) -> tuple[Tensor, Tensor]:
    """Mix images 2j and 2j + 1 and their targets; an odd last image is unchanged."""
    batch, _, height, width = images.shape
    partner = (torch.arange(batch, device=images.device) ^ 1).clamp(max=batch - 1)
    weight, edges = mix[:, 0], _to_pixels(mix[:, 1:], height, width)
    other, pixel_weight = images[partner], weight[:, None, None, None]
    images = torch.where(_inside(edges, height, width), other, pixel_weight * images + (1 - pixel_weight) * other)
    pasted_area = (edges[:, 1] - edges[:, 0]) * (edges[:, 3] - edges[:, 2]) / (height * width)
    label_weight = (weight * (1 - pasted_area))[:, None]
    one_hot = (labels[:, None] == torch.arange(num_classes, device=labels.device)).float()
    return images, label_weight * one_hot + (1 - label_weight) * one_hot[partner]
