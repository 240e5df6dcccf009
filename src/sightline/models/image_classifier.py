"""The image classifier: patch_embedding in, blocks of self-attention, one answer out.

Legend for all shapes: B batch, C channels, N tokens, M model embed_dim.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import limits
from ..attention.masks import Additive, Causal, Mask, Multiplicative
from ..attention.scores import SCORES
from ..errors import SightlineError, check_choice, check_fraction, check_int, check_max
from ..layers import Encoder, LearnedPositions, PatchEmbedding, SinusoidalPositions
from ..layers.positions import PositionInit


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig:
    """An image is a sentence of square patch_embedding."""

    image_size: int | None = None
    """Side of the square input, in pixels; in training null, for it is that of the data."""
    channels: int | None = None
    """1 for gray, 3 for color; in training null, for it is that of the data."""
    num_classes: int | None = None
    """In training null, for it is that of the data."""
    patch_size: int = 4
    """Side of one patch; the sequence has (image_size / patch_size)² of them."""
    embed_dim: int = 64
    """Channels of a token."""
    num_heads: int = 4
    head_dim: int | None = None
    """Channels of a head; null for embed_dim / num_heads."""
    depth: int = 4
    """Blocks."""
    mlp_ratio: float = 2.0
    """Width of the feed-forward's middle, as a multiple of `embed_dim`."""
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.0
    """In a block: on what attention and feed-forward add, and inside the latter."""
    attention_dropout: float = 0.0
    """On the attention weights."""
    attention_bias: bool = True
    """Whether the projections of attention have biases."""
    in_context_bias: bool = False
    """Whether each token also makes a bias to its own scores as a key."""
    score: str = "dot"
    """Attention score: a name in `sightline.attention.SCORES`."""
    mask: Literal["none", "causal", "additive", "multiplicative"] = "none"
    """Who sees whom; additive and multiplicative are tables to learn, one for each head and block."""
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """How a token knows its place: by a table, by fixed waves, or not at all."""
    positions_start: PositionInit = "normal"
    """What a learned table starts from."""
    positions_trainable: bool = True
    """Whether a learned table learns, or stays as it started."""
    pool: Literal["class_token", "mean"] = "class_token"
    """Where the answer is read: from a token of its own, or from the mean of all."""

    def __post_init__(self) -> None:
        check_int(1, patch_size=self.patch_size, embed_dim=self.embed_dim, num_heads=self.num_heads, depth=self.depth)
        check_max(
            limits.MAX_MODEL_DIM,
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            depth=self.depth,
            patch_size=self.patch_size,
        )
        for least, name in ((1, "image_size"), (1, "channels"), (2, "num_classes")):
            if getattr(self, name) is not None:
                check_int(least, **{name: getattr(self, name)})
        check_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)
        check_choice("score", self.score, SCORES)
        if self.image_size is not None and self.image_size % self.patch_size:
            raise SightlineError(f"patch_size must divide image_size={self.image_size}, got {self.patch_size}")
        if self.head_dim is None and self.embed_dim % self.num_heads:
            raise SightlineError(
                f"num_heads must divide embed_dim={self.embed_dim} or head_dim be given, got {self.num_heads}"
            )
        if self.head_dim is not None:
            check_int(1, head_dim=self.head_dim)
            check_max(limits.MAX_MODEL_DIM, head_dim=self.head_dim)
        if not 0 < self.mlp_ratio < math.inf or round(self.embed_dim * self.mlp_ratio) < 1:
            raise SightlineError(
                f"mlp_ratio must leave at least one channel of embed_dim={self.embed_dim}, got {self.mlp_ratio}"
            )
        if self.mask == "causal" and self.pool == "class_token":
            raise SightlineError(
                "pool must be mean where mask is causal, got class_token, which stands first and would see only itself"
            )
        if "sinusoidal" in (self.positions, self.positions_start) and self.embed_dim % 2:
            raise SightlineError(f"embed_dim must be even where positions are sinusoidal, got {self.embed_dim}")

    def of_data(self, *, image_size: int, channels: int, num_classes: int) -> "ImageClassifierConfig":
        """The same for images of this form; refused where it was told another."""
        form: dict[str, Any] = {"image_size": image_size, "channels": channels, "num_classes": num_classes}
        for name, value in form.items():
            if getattr(self, name) not in (None, value):
                raise SightlineError(
                    f"model.{name} must be that of the data, {value}, or null, got {getattr(self, name)}"
                )
        try:
            return replace(self, **form)
        except ValueError as error:
            raise SightlineError(f"model: {error}") from error

    @property
    def side(self) -> int:
        """Patches along one side."""
        if self.image_size is None:
            raise SightlineError("image_size must be given, got null")
        return self.image_size // self.patch_size

    @property
    def sequence_length(self) -> int:
        """Tokens of an image, the class token among them."""
        return self.side**2 + (self.pool == "class_token")


class Classifier(nn.Module):
    """One linear map from what was read off the tokens to a number per class."""

    def __init__(self, embed_dim: int, num_classes: int, *, pool: str = "class_token"):
        super().__init__()
        self.pool = pool
        self.answer = nn.Linear(embed_dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, M) -> logits (B, num_classes)"""
        return self.answer(x[:, 0] if self.pool == "class_token" else x.mean(1))


class ImageClassifier(nn.Module):
    """Normalize, cut into patch_embedding, add positions, attend, answer."""

    mean: Tensor
    std: Tensor
    calibration_scale: Tensor
    """What logits are multiplied by: 1 in training, then set so that confidence means what it says."""

    def __init__(self, config: ImageClassifierConfig):
        super().__init__()
        c = self.config = config
        if c.channels is None or c.num_classes is None:
            raise SightlineError(f"channels and num_classes must be given, got {c.channels} and {c.num_classes}")
        self.register_buffer("mean", torch.zeros(c.channels, 1, 1))
        self.register_buffer("std", torch.ones(c.channels, 1, 1))
        self.register_buffer("calibration_scale", torch.ones(()))
        self.patch_embedding = PatchEmbedding(c.channels, c.patch_size, c.embed_dim)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, c.embed_dim)) if c.pool == "class_token" else None
        self.positions: nn.Module = nn.Identity()
        if c.positions == "learned":
            self.positions = LearnedPositions(
                c.sequence_length, c.embed_dim, init=c.positions_start, trainable=c.positions_trainable
            )
        elif c.positions == "sinusoidal":
            self.positions = SinusoidalPositions(c.embed_dim)
        self.encoder = Encoder(
            c.embed_dim,
            c.num_heads,
            round(c.embed_dim * c.mlp_ratio),
            c.depth,
            activation="gelu",
            norm=c.norm,
            **_attention(c),
        )
        self.classifier = Classifier(c.embed_dim, c.num_classes, pool=c.pool)

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """What to take off each channel and divide it by, in shares of white: (C,) each."""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> logits (B, num_classes)"""
        x = self.patch_embedding((images - self.mean) / self.std)
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(len(x), -1, -1), x), 1)
        return self.calibration_scale * self.classifier(self.encoder(self.positions(x)))


def _attention(c: ImageClassifierConfig) -> dict[str, Any]:
    masks: dict[str, Callable[[], Mask | None]] = {
        "none": lambda: None,
        "causal": Causal,
        "additive": lambda: Additive(c.sequence_length, num_heads=c.num_heads),
        "multiplicative": lambda: Multiplicative(c.sequence_length, num_heads=c.num_heads),
    }
    return {
        "score": c.score,
        "mask": masks[c.mask](),
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "attention_bias": c.attention_bias,
        "head_dim": c.head_dim,
        "in_context_bias": c.in_context_bias,
    }
