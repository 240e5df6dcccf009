"""What a captioner takes: pixels for a backbone that is trained, features for an encoder with fixed weights.

Shapes: N images, C channels, R regions, F feature dimension.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...config import for_data
from ...data.captions.datasets import CaptionedImages, CaptionSplits
from ...data.images import augmentation
from ...errors import check
from ...layers.efficientnet import EFFICIENTNETS
from ...models.captioner import CaptionerConfig, make_backbone
from ...models.image_encoders import Embedder, Transform
from ...models.region_features import check_features_memory, load_region_encoder, region_features
from ...predictor import Progress
from ...training.device import choose_device
from .config import DEFAULT_IMAGE_SIZE, CaptioningTaskConfig


class ImageInputs:
    """Reads images as a config's model takes them. An encoder with fixed weights is loaded on first use."""

    def __init__(self, config: CaptioningTaskConfig, *, allow_download: bool = True):
        self.config, self.allow_download = config, allow_download
        self._encoder: Embedder | None = None

    @classmethod
    def for_data(cls, config: CaptioningTaskConfig, data: CaptionSplits, vocab_size: int) -> "ImageInputs":
        """Inputs whose config has a model completed with what follows from the data and the encoder."""
        inputs = cls(config)
        inputs.config = replace(config, model=_complete_model(config, data, vocab_size, inputs.encoder))
        return inputs

    @property
    def encoder(self) -> Embedder | None:
        """The encoder with fixed weights; None if the model has a backbone."""
        data = self.config.data
        if data.embedder is not None and self._encoder is None:
            encoder = load_region_encoder(data.embedder, weights=data.weights, allow_download=self.allow_download)
            self._encoder = encoder.to(choose_device(self.config.training.device))
        return self._encoder

    @property
    def size_and_channels(self) -> tuple[int, int]:
        """Side and channels of the images to read."""
        if self.encoder is not None:
            return self.encoder.image_size, self.encoder.channels
        model = self.config.model
        return model.required("image_size"), model.required("channels")

    def load(self, images: CaptionedImages, progress: Progress | None = None) -> Tensor:
        """All images: uint8 (N, C, side, side), or features float16 (N, R, F)"""
        if self.encoder is not None:
            return region_features(self.encoder, images, progress)
        return images.load(*self.size_and_channels, progress)

    def load_training(self, images: CaptionedImages, progress: Progress | None = None) -> Tensor:
        """The training images with their augmented copies: (1 + copies, N, ...)"""
        copies, encoder = self.config.data.augmented_copies, self.encoder
        if encoder is None or not copies:
            return self.load(images, progress)[None]
        check_features_memory(encoder, len(images), copies=copies)
        transforms = [None, *(self._augmentation(len(images), copy) for copy in range(copies))]
        return torch.stack([region_features(encoder, images, progress, transform) for transform in transforms])

    def _augmentation(self, count: int, step: int) -> Transform:
        config = self.config
        params = augmentation.sample_params(config.augment, count, seed=config.seed, step=step)
        return lambda pixels, rows: augmentation.augment_pixels(config.augment, pixels, params.take(rows))

    @torch.no_grad()
    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Prepared images uint8 (N, C, side, side) as the model takes them."""
        if self.encoder is None:
            return pixels
        return self.encoder.embed(pixels, "patches").half()


def _complete_model(
    config: CaptioningTaskConfig, data: CaptionSplits, vocab_size: int, encoder: Embedder | None
) -> CaptionerConfig:
    """The model's config, completed with what follows from the data and the encoder."""
    model = config.model
    if encoder is not None:
        features = {"feature_dim": encoder.token_dim("patches"), "num_regions": encoder.num_tokens("patches")}
        return for_data(model, vocab_size=vocab_size, **features)
    size, channels = _image_format(config, data)
    model = for_data(model, vocab_size=vocab_size, image_size=size, channels=channels)
    backbone: Any = make_backbone(model)
    return for_data(model, feature_dim=backbone.embed_dim, num_regions=backbone.grid_size(size) ** 2)


def _image_format(config: CaptioningTaskConfig, data: CaptionSplits) -> tuple[int, int]:
    """Side and channels of the images for a backbone."""
    size, channels = config.data.image_size, config.model.channels or 3
    if data.train.pixels is not None:
        own = tuple(data.train.pixels.shape[1:])
        is_own = size in (None, own[1])
        check(is_own, f"data.image_size must be null or {own[1]} for generated images, got {size}")
        return own[1], own[0]
    version = EFFICIENTNETS.get(config.model.backbone)
    default = DEFAULT_IMAGE_SIZE if version is None else version.image_size
    return size or config.model.image_size or default, channels
