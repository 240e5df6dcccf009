"""A vision transformer that classifies images.

Shapes: B batch, C channels, T tokens (patches and the class token), M embedding dimension.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ..attention.masks import Additive, Causal, Mask, Multiplicative
from ..attention.scores import SCORES
from ..config import Config, Fraction, MlpRatio, ModelDim, Positive, PositiveInt, at_least, choice
from ..errors import SightlineError, check, check_divides
from ..layers import Encoder, PatchEmbedding
from ..layers.blocks import Norm
from ..layers.positions import PositionInit
from .encoders import make_positions


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig(Config):
    """Config of an `ImageClassifier`."""

    data_keys = ("image_size", "channels", "num_classes")

    image_size: PositiveInt | None = None
    """Side of the input images in pixels; null for that of the data."""
    channels: PositiveInt | None = None
    """1 for grayscale, 3 for color; null for those of the data."""
    num_classes: Annotated[int, at_least(2)] | None = None
    """Number of classes; null for that of the data."""
    patch_size: ModelDim = 4
    """Side of a patch in pixels. An image has (image_size / patch_size)² patches."""
    embed_dim: ModelDim = 64
    num_heads: ModelDim = 4
    head_dim: ModelDim | None = None
    """Dimension of a head; null for embed_dim / num_heads."""
    depth: ModelDim = 4
    """Number of encoder blocks."""
    mlp_ratio: MlpRatio = 2.0
    """Hidden dimension of the feed-forward networks, as a multiple of `embed_dim`."""
    norm: Norm = "pre"
    norm_eps: Positive = 1e-5
    """Epsilon of the layer norms."""
    dropout: Fraction = 0.0
    """Dropout of the residual branches and inside the feed-forward networks."""
    attention_dropout: Fraction = 0.0
    """Dropout of the attention weights."""
    attention_bias: bool = True
    """The projections of attention have biases."""
    in_context_bias: bool = False
    """Add a bias to the scores of each key, computed from its token."""
    score: Annotated[str, choice(SCORES)] = "dot"
    """Name of an attention score."""
    mask: Literal["none", "causal", "additive", "multiplicative"] = "none"
    """Attention mask. `additive` and `multiplicative` masks are learned tables, one for each block and head."""
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    position_init: PositionInit = "normal"
    """Initial values of learned positions."""
    train_positions: bool = True
    """Train learned positions; false keeps their initial values."""
    pool: Literal["class_token", "mean"] = "class_token"
    """What the classifier reads: the class token, or the mean of all tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size is not None:
            check_divides("image_size", self.image_size, patch_size=self.patch_size)
        if self.head_dim is None:
            check_divides("embed_dim", self.embed_dim, num_heads=self.num_heads, fix="; or set head_dim")
        embed_dim, ratio = self.embed_dim, self.mlp_ratio
        has_units = round(embed_dim * ratio) >= 1
        check(has_units, f"mlp_ratio must give a hidden dimension of at least 1 for embed_dim={embed_dim}, got {ratio}")
        is_valid = self.mask != "causal" or self.pool != "class_token"
        check(is_valid, "pool must be mean for a causal mask, got class_token, which attends only to itself")
        is_odd = "sinusoidal" in (self.positions, self.position_init) and self.embed_dim % 2
        check(not is_odd, f"embed_dim must be even for sinusoidal positions, got {self.embed_dim}")

    @property
    def grid_size(self) -> int:
        """Patches along one side."""
        if self.image_size is None:
            raise SightlineError("image_size must be set, got null")
        return self.image_size // self.patch_size

    @property
    def sequence_length(self) -> int:
        """Tokens of an image, the class token included."""
        return self.grid_size**2 + (self.pool == "class_token")


class ImageClassifier(nn.Module):
    """Normalized pixels, patch embedding, positions, encoder blocks and a linear classifier."""

    mean: Tensor
    std: Tensor
    calibration_scale: Tensor
    """Factor of the logits: 1 in training, then fitted on the validation set so that confidences are calibrated."""

    def __init__(self, config: ImageClassifierConfig):
        super().__init__()
        c = self.config = config
        if c.channels is None or c.num_classes is None:
            raise SightlineError(f"channels and num_classes must be set, got {c.channels} and {c.num_classes}")
        self.register_buffer("mean", torch.zeros(c.channels, 1, 1))
        self.register_buffer("std", torch.ones(c.channels, 1, 1))
        self.register_buffer("calibration_scale", torch.ones(()))
        self.patch_embedding = PatchEmbedding(c.channels, c.patch_size, c.embed_dim)
        class_token = torch.empty(1, 1, c.embed_dim).normal_().mul_(0.02) if c.pool == "class_token" else None
        self.class_token = None if class_token is None else nn.Parameter(class_token)
        self.positions: nn.Module = nn.Identity()
        if c.positions != "none":
            learned = {"init": c.position_init, "trainable": c.train_positions}
            self.positions = make_positions(c.positions, c.sequence_length, c.embed_dim, **learned)
        names = ("norm", "norm_eps", "dropout", "score", "attention_dropout", "attention_bias", "head_dim")
        block: dict[str, Any] = {name: getattr(c, name) for name in (*names, "in_context_bias")}
        block |= {"activation": "gelu", "mask": _make_mask(c)}
        self.encoder = Encoder(c.embed_dim, c.num_heads, round(c.embed_dim * c.mlp_ratio), c.depth, **block)
        self.classifier = nn.Linear(c.embed_dim, c.num_classes)

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """Set the mean and standard deviation of each channel of images with values from 0 to 1: (C,) each"""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), values from 0 to 1 -> logits (B, num_classes)"""
        x = self._encode((images - self.mean) / self.std)
        pooled = x.mean(1) if self.class_token is None else x[:, 0]
        return self.calibration_scale * self.classifier(pooled)

    def patch_tokens(self, images: Tensor) -> Tensor:
        """The patches after the last block: normalized images (B, C, image_size, image_size) -> (B, T, M)"""
        return self._encode(images)[:, self.config.pool == "class_token" :]

    def _encode(self, images: Tensor) -> Tensor:
        """All tokens after the last block: normalized images (B, C, image_size, image_size) -> (B, T, M)"""
        x = self.patch_embedding(images)
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(x.shape[0], -1, -1), x), 1)
        tokens: Tensor = self.encoder(self.positions(x))
        return tokens


def _make_mask(c: ImageClassifierConfig) -> Mask | None:
    learned = {"additive": Additive, "multiplicative": Multiplicative}
    if c.mask in learned:
        return learned[c.mask](c.sequence_length, num_heads=c.num_heads)
    return Causal() if c.mask == "causal" else None
