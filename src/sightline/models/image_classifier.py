"""A vision transformer that classifies images.

Shapes: B batch, C channels, T tokens (patches and the class token), M embedding dimension.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .. import limits
from ..attention.masks import Additive, Causal, Mask, Multiplicative
from ..attention.scores import SCORES
from ..errors import SightlineError, check_choice, check_fraction, check_int, check_max
from ..layers import Encoder, LearnedPositions, PatchEmbedding, SinusoidalPositions
from ..layers.blocks import Norm
from ..layers.positions import PositionInit

MaskName = Literal["none", "causal", "additive", "multiplicative"]
Positions = Literal["learned", "sinusoidal", "none"]
Pool = Literal["class_token", "mean"]


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig:
    """Config of an `ImageClassifier`."""

    image_size: int | None = None
    """Side of the input images in pixels; null for that of the data."""
    channels: int | None = None
    """1 for grayscale, 3 for color; null for those of the data."""
    num_classes: int | None = None
    """Number of classes; null for that of the data."""
    patch_size: int = 4
    """Side of a patch in pixels. An image has (image_size / patch_size)² patches."""
    embed_dim: int = 64
    num_heads: int = 4
    head_dim: int | None = None
    """Dimension of a head; null for embed_dim / num_heads."""
    depth: int = 4
    """Number of encoder blocks."""
    mlp_ratio: float = 2.0
    """Hidden dimension of the feed-forward networks, as a multiple of `embed_dim`."""
    norm: Norm = "pre"
    dropout: float = 0.0
    """Dropout of the residual branches and inside the feed-forward networks."""
    attention_dropout: float = 0.0
    """Dropout of the attention weights."""
    attention_bias: bool = True
    """The projections of attention have biases."""
    in_context_bias: bool = False
    """Add a bias to the scores of each key, computed from its token."""
    score: str = "dot"
    """Name of an attention score."""
    mask: MaskName = "none"
    """Attention mask. `additive` and `multiplicative` masks are learned tables, one for each block and head."""
    positions: Positions = "learned"
    position_init: PositionInit = "normal"
    """Initial values of learned positions."""
    train_positions: bool = True
    """Train learned positions; false keeps their initial values."""
    pool: Pool = "class_token"
    """What the classifier reads: the class token, or the mean of all tokens."""

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("patch_size", "embed_dim", "num_heads", "depth")}
        if self.head_dim is not None:
            sizes["head_dim"] = self.head_dim
        check_int(1, **sizes)
        check_max(limits.MAX_MODEL_DIM, **sizes)
        for minimum, name in ((1, "image_size"), (1, "channels"), (2, "num_classes")):
            if getattr(self, name) is not None:
                check_int(minimum, **{name: getattr(self, name)})
        check_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)
        check_choice("score", self.score, SCORES)
        for name, choices in (("norm", Norm), ("mask", MaskName), ("positions", Positions), ("pool", Pool)):
            check_choice(name, getattr(self, name), get_args(choices))
        check_choice("position_init", self.position_init, get_args(PositionInit))
        if self.image_size is not None and self.image_size % self.patch_size:
            raise SightlineError(f"patch_size must divide image_size={self.image_size}, got {self.patch_size}")
        if self.head_dim is None and self.embed_dim % self.num_heads:
            raise SightlineError(
                f"num_heads must divide embed_dim={self.embed_dim}, got {self.num_heads}; or set head_dim"
            )
        if not 0 < self.mlp_ratio < math.inf or round(self.embed_dim * self.mlp_ratio) < 1:
            raise SightlineError(
                f"mlp_ratio must give a hidden dimension of at least 1 for embed_dim={self.embed_dim}, got "
                f"{self.mlp_ratio}"
            )
        if self.mask == "causal" and self.pool == "class_token":
            raise SightlineError(
                "pool must be mean for a causal mask, got class_token, which is the first token and attends only to "
                "itself"
            )
        if "sinusoidal" in (self.positions, self.position_init) and self.embed_dim % 2:
            raise SightlineError(f"embed_dim must be even for sinusoidal positions, got {self.embed_dim}")

    def for_data(self, *, image_size: int, channels: int, num_classes: int) -> "ImageClassifierConfig":
        """The config with the sizes of a data set, which must not contradict it."""
        sizes: dict[str, Any] = {"image_size": image_size, "channels": channels, "num_classes": num_classes}
        for name, size in sizes.items():
            if (value := getattr(self, name)) not in (None, size):
                raise SightlineError(f"model.{name} must be null or that of the data, {size}, got {value}")
        try:
            return replace(self, **sizes)
        except SightlineError as error:
            raise SightlineError(f"model: {error}") from error

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
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, c.embed_dim)) if c.pool == "class_token" else None
        self.positions: nn.Module = nn.Identity()
        if c.positions == "learned":
            options: dict[str, Any] = {"init": c.position_init, "trainable": c.train_positions}
            self.positions = LearnedPositions(c.sequence_length, c.embed_dim, **options)
        elif c.positions == "sinusoidal":
            self.positions = SinusoidalPositions(c.embed_dim)
        self.encoder = Encoder(
            c.embed_dim,
            c.num_heads,
            round(c.embed_dim * c.mlp_ratio),
            c.depth,
            activation="gelu",
            norm=c.norm,
            dropout=c.dropout,
            score=c.score,
            mask=_make_mask(c),
            attention_dropout=c.attention_dropout,
            attention_bias=c.attention_bias,
            head_dim=c.head_dim,
            in_context_bias=c.in_context_bias,
        )
        self.classifier = nn.Linear(c.embed_dim, c.num_classes)

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """Set the mean and standard deviation of each channel of images with values from 0 to 1: (C,) each"""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), values from 0 to 1 -> logits (B, num_classes)"""
        x = self.patch_embedding((images - self.mean) / self.std)
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(len(x), -1, -1), x), 1)
        x = self.encoder(self.positions(x))
        pooled = x.mean(1) if self.class_token is None else x[:, 0]
        return self.calibration_scale * self.classifier(pooled)


def _make_mask(c: ImageClassifierConfig) -> Mask | None:
    masks: dict[str, Callable[[], Mask | None]] = {
        "none": lambda: None,
        "causal": Causal,
        "additive": lambda: Additive(c.sequence_length, num_heads=c.num_heads),
        "multiplicative": lambda: Multiplicative(c.sequence_length, num_heads=c.num_heads),
    }
    return masks[c.mask]()
