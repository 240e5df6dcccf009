"""The image classifier: patches in, blocks of self-attention, one answer out.

Legend for all shapes: B batch, C channels, N tokens, M model width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention.masks import Additive, Causal, Mask, Multiplicative
from ..checks import check_most, check_share, check_whole
from ..layers import Encoder, ImageToSequence, LearntPositions, SinusoidalPositions
from ..layers.positions import Start

MOST_CHANNELS = 1 << 14
"""No model is wider, deeper or has more heads."""


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig:
    """An image is a sentence of square patches."""

    image_size: int | None = None
    """Side of the square input, in pixels; in training null, for it is that of the data."""
    channels: int | None = None
    """1 for grey, 3 for colour; in training null, for it is that of the data."""
    classes: int | None = None
    """In training null, for it is that of the data."""
    patch_size: int = 4
    """Side of one patch; the sequence has (image_size / patch_size)² of them."""
    width: int = 64
    """Channels of a token."""
    heads: int = 4
    head_width: int | None = None
    """Channels of a head; null for width / heads."""
    depth: int = 4
    """Blocks."""
    expansion: float = 2.0
    """Width of the feed-forward's middle, as a multiple of `width`."""
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.0
    """In a block: on what attention and feed-forward add, and inside the latter."""
    attention_dropout: float = 0.0
    """On the attention weights."""
    attention_bias: bool = True
    """Whether the projections of attention have biases."""
    in_context_bias: bool = False
    """Whether each token also makes a bias to its own scores as a key."""
    score: Literal["dot", "cosine"] = "dot"
    mask: Literal["none", "causal", "additive", "multiplicative"] = "none"
    """Who sees whom; additive and multiplicative are tables to learn, one for each head and block."""
    positions: Literal["learnt", "sinusoidal", "none"] = "learnt"
    """How a token knows its place: by a table, by fixed waves, or not at all."""
    positions_start: Start = "normal"
    """What a learnt table starts from."""
    positions_trainable: bool = True
    """Whether a learnt table learns, or stays as it started."""
    pool: Literal["class_token", "mean"] = "class_token"
    """Where the answer is read: from a token of its own, or from the mean of all."""

    def __post_init__(self) -> None:
        check_whole(1, patch_size=self.patch_size, width=self.width, heads=self.heads, depth=self.depth)
        check_most(MOST_CHANNELS, width=self.width, heads=self.heads, depth=self.depth, patch_size=self.patch_size)
        for least, name in ((1, "image_size"), (1, "channels"), (2, "classes")):
            if getattr(self, name) is not None:
                check_whole(least, **{name: getattr(self, name)})
        check_share(dropout=self.dropout, attention_dropout=self.attention_dropout)
        if self.image_size is not None and self.image_size % self.patch_size:
            raise ValueError(f"patch_size must divide image_size={self.image_size}, got {self.patch_size}")
        if self.head_width is None and self.width % self.heads:
            raise ValueError(f"heads must divide width={self.width} or head_width be given, got {self.heads}")
        if self.head_width is not None:
            check_whole(1, head_width=self.head_width)
            check_most(MOST_CHANNELS, head_width=self.head_width)
        if not 0 < self.expansion < math.inf or round(self.width * self.expansion) < 1:
            raise ValueError(f"expansion must leave at least one channel of width={self.width}, got {self.expansion}")
        if self.mask == "causal" and self.pool == "class_token":
            raise ValueError(
                "pool must be mean where mask is causal, got class_token, which stands first and would see only itself"
            )
        if "sinusoidal" in (self.positions, self.positions_start) and self.width % 2:
            raise ValueError(f"width must be even where positions are sinusoidal, got {self.width}")

    def of_data(self, *, image_size: int, channels: int, classes: int) -> "ImageClassifierConfig":
        """The same for images of this form; refused where it was told another."""
        form: dict[str, Any] = {"image_size": image_size, "channels": channels, "classes": classes}
        for name, value in form.items():
            if getattr(self, name) not in (None, value):
                raise ValueError(f"model.{name} must be that of the data, {value}, or null, got {getattr(self, name)}")
        try:
            return replace(self, **form)
        except ValueError as error:
            raise ValueError(f"model: {error}") from error

    @property
    def side(self) -> int:
        """Patches along one side."""
        if self.image_size is None:
            raise ValueError("image_size must be given, got null")
        return self.image_size // self.patch_size

    @property
    def sequence_length(self) -> int:
        """Tokens of an image, the class token among them."""
        return self.side**2 + (self.pool == "class_token")


class Classifier(nn.Module):
    """One linear map from what was read off the tokens to a number per class."""

    def __init__(self, width: int, classes: int, *, pool: str = "class_token"):
        super().__init__()
        self.pool = pool
        self.answer = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, M) -> logits (B, classes)"""
        return self.answer(x[:, 0] if self.pool == "class_token" else x.mean(1))


class ImageClassifier(nn.Module):
    """Normalise, cut into patches, add positions, attend, answer."""

    mean: Tensor
    std: Tensor
    sharpness: Tensor
    """What logits are multiplied by: 1 in training, then set so that confidence means what it says."""

    def __init__(self, config: ImageClassifierConfig):
        super().__init__()
        c = self.config = config
        if c.channels is None or c.classes is None:
            raise ValueError(f"channels and classes must be given, got {c.channels} and {c.classes}")
        self.register_buffer("mean", torch.zeros(c.channels, 1, 1))
        self.register_buffer("std", torch.ones(c.channels, 1, 1))
        self.register_buffer("sharpness", torch.ones(()))
        self.patches = ImageToSequence(c.channels, c.patch_size, c.width)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, c.width)) if c.pool == "class_token" else None
        self.positions: nn.Module = nn.Identity()
        if c.positions == "learnt":
            self.positions = LearntPositions(
                c.sequence_length, c.width, start=c.positions_start, trainable=c.positions_trainable
            )
        elif c.positions == "sinusoidal":
            self.positions = SinusoidalPositions(c.width)
        self.encoder = Encoder(
            c.width, c.heads, round(c.width * c.expansion), c.depth, activation="gelu", norm=c.norm, **_attention(c)
        )
        self.classifier = Classifier(c.width, c.classes, pool=c.pool)

    def set_normalisation(self, mean: Tensor, std: Tensor) -> None:
        """What to take off each channel and divide it by, in shares of white: (C,) each."""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> logits (B, classes)"""
        x = self.patches((images - self.mean) / self.std)
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(len(x), -1, -1), x), 1)
        return self.sharpness * self.classifier(self.encoder(self.positions(x)))


def _attention(c: ImageClassifierConfig) -> dict[str, Any]:
    masks: dict[str, Callable[[], Mask | None]] = {
        "none": lambda: None,
        "causal": Causal,
        "additive": lambda: Additive(c.sequence_length, heads=c.heads),
        "multiplicative": lambda: Multiplicative(c.sequence_length, heads=c.heads),
    }
    return {
        "score": c.score,
        "mask": masks[c.mask](),
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "attention_bias": c.attention_bias,
        "head_width": c.head_width,
        "in_context_bias": c.in_context_bias,
    }
