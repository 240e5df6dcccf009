"""The Lightweight Cosine Transformer: few-shot classification by attention over a support set.

Support images attend to the support set, queries to the support set and to themselves. A readout then computes the
logits: by default the cosine similarity of the query and the mean of the class, divided by a learned temperature. Every
block is the identity at initialization, so the untrained model is a nearest-mean classifier by cosine similarity.

Shapes: E episodes, S support images, Q queries, T tokens per image, M embedding dimension, H heads, D head dimension.
"""

from itertools import chain

import torch
from torch import Tensor, nn

from ..errors import SightlineError
from ..layers.backbones import BACKBONES, Backbone
from .drawings import drawing_views, normalize_drawings
from .few_shot_config import FewShotConfig
from .few_shot_head import FewShotHead

EMBEDDING_BATCH_SIZES = {"cpu": 64, "cuda": 1024}
"""Images per forward pass of the backbone; on a CPU, activations then stay in its cache."""


def nearest_mean_model(embed_dim: int) -> "FewShot":
    """A model without parameters: classification by cosine similarity to the class mean."""
    return FewShot(FewShotConfig(backbone="none", embed_dim=embed_dim, depth=0)).eval()


class FewShot(nn.Module):
    """A backbone and a few-shot head."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: FewShotConfig):
        super().__init__()
        c = self.config = config
        self.backbone: Backbone | None = None
        if c.backbone == "none":
            assert c.embed_dim is not None
            self.embed_dim, self.grid = c.embed_dim, (1, 1)
        else:
            if c.image_size is None or c.channels is None:
                raise SightlineError("image_size and channels must be given to build a model, got null")
            options = {} if c.backbone_channels is None else {"channels": c.backbone_channels}
            self.backbone = BACKBONES[c.backbone](c.channels, dropout=c.backbone_dropout, **options)
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on all devices
            side = self.backbone.grid_size(c.image_size)
            self.embed_dim, self.grid = self.backbone.embed_dim * (side * side if c.pool == "flat" else 1), (side, side)
            self.register_buffer("mean", torch.zeros(c.channels, 1, 1))
            self.register_buffer("std", torch.ones(c.channels, 1, 1))
        self.head = FewShotHead(self.embed_dim, c)
        self.classifier = nn.Linear(self.embed_dim, c.num_classes) if c.num_classes else None

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """Set the mean and standard deviation of the channels, of pixel values from 0 to 1: (C,) each."""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    @torch.no_grad()
    def embed_pixels(self, pixels: Tensor, batch_size: int | None = None, *, all_views: bool = True) -> Tensor:
        """pixels uint8 (N, C, image_size, image_size) -> float32 (N, T, M) on the device of the model, in batches"""
        embed, views = (self.embed_views, self.config.views) if all_views else (self.embed, 1)
        device = self.head.device
        size = max(1, (batch_size or EMBEDDING_BATCH_SIZES[device.type]) // views)
        batches = (embed(batch.to(device).float() / 255).float() for batch in pixels.split(size))
        embeddings = first = next(batches)
        if len(first) < len(pixels):  # one tensor: many small ones would lie between the activations and keep memory
            embeddings = first.new_empty(len(pixels), *first.shape[1:])
            for start, batch in zip(range(0, len(pixels), size), chain([first], batches), strict=True):
                embeddings[start : start + size] = batch
        return embeddings

    def embed(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> (B, T, M)

        Without a backbone, embeddings (B, M) or (B, T, M) -> (B, T, M).
        """
        if self.backbone is None:
            return images if images.dim() == 3 else images[:, None]
        return self.pool(self.backbone(self.normalize(images)))

    def embed_views(self, images: Tensor) -> Tensor:
        """As `embed`, the mean over the views of the config, which are one batch for the backbone."""
        if self.backbone is None or self.config.views == 1:
            return self.embed(images)
        if self.config.normalize_drawings:
            views = torch.cat(list(drawing_views(normalize_drawings(images))))
            return self.pool(self.backbone(self.standardize(views))).unflatten(0, (self.config.views, -1)).mean(0)
        x, mirrored = self.embed(torch.cat((images, images.flip(-1)))).unflatten(0, (2, -1))
        if self.config.tokens == "patches":  # tokens of the same place are averaged
            mirrored = mirrored.unflatten(1, self.grid).flip(2).flatten(1, 2)
        return (x + mirrored) / 2

    def normalize(self, images: Tensor) -> Tensor:
        """Images as the backbone takes them: (B, C, image_size, image_size), from 0 to 1 -> the same shape"""
        images = normalize_drawings(images) if self.config.normalize_drawings else images
        return self.standardize(images)

    def standardize(self, images: Tensor) -> Tensor:
        """Subtract the mean of each channel, and divide by its standard deviation."""
        return (images - self.mean) / self.std

    def pool(self, features: Tensor) -> Tensor:
        """The feature map of the backbone (B, T, M) -> the tokens of the head: all positions, or one vector"""
        if self.config.tokens == "patches":
            return features
        return features.flatten(1)[:, None] if self.config.pool == "flat" else features.mean(1, keepdim=True)

    def forward(
        self, images: Tensor, *, way: int, shot: int, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """images (E, way * shot + Q, C, image_size, image_size), support first -> logits (E, Q, way)

        The second output are the logits of the auxiliary classifier for all images, (E * (way * shot + Q),
        num_classes), or None. The support is ordered by class; `labels` (E, way * shot) are given if some support
        images are to be ignored: theirs are -1.
        """
        x = self.embed(images.flatten(0, 1))
        auxiliary = None if self.classifier is None else self.classifier(x.mean(1))
        x = x.unflatten(0, images.shape[:2])
        padded = labels is not None
        if labels is None:
            labels = torch.arange(way, device=x.device).repeat_interleave(shot).expand(x.shape[0], -1)
        return self.head(x[:, : way * shot], labels, x[:, way * shot :], way=way, padded=padded), auxiliary
