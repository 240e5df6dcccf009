"""Image captioning: regions of an image in, a sentence out.

The regions are the positions of a feature map. They come from a backbone inside the model, or from an encoder with
fixed weights outside of it, whose features are then the input.

Shapes: B batch, C channels, R regions, F feature dimension, M embedding dimension, T target tokens, V vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.normalizers import Gradient, reinforce
from ..attention.scores import SCORES
from ..config import Config, Fraction, ModelDim, NonNegative, NonNegativeInt, PositiveInt, at_least, at_most, choice
from ..errors import SightlineError, check, check_divides
from ..kernels.cross_entropy import IGNORE_INDEX
from ..layers import Dropout, Encoder, GridPositions
from ..layers.backbones import BACKBONES, Backbone
from ..layers.efficientnet import EFFICIENTNETS, EfficientNetLite
from ..layers.recurrent import Cell
from .encoders import EncoderOutput
from .text_decoder import RecurrentTextDecoder, TextDecoder, TransformerTextDecoder

REINFORCE_OPTIONS = {"reinforce_weight": 0.02, "soft_share": 0.5}
"""Defaults of hard attention that is trained by REINFORCE."""


@dataclass(frozen=True, kw_only=True)
class CaptionerConfig(Config):
    """Config of a `Captioner`."""

    data_keys = ("vocab_size", "image_size", "channels", "feature_dim", "num_regions")
    dependent_keys: ClassVar[dict[str, tuple[str, ...]]] = {"backbone": ("backbone_channels",)}
    """Fields that follow from another one if they are null."""
    kind: Literal["transformer", "rnn_attention", "rnn"] = "transformer"
    """The decoder: a Transformer, a recurrent network with attention over the regions, or one with a context vector."""
    backbone: Annotated[str, choice((*BACKBONES, *EFFICIENTNETS, "none"))] = "conv4"
    """The image encoder that is trained with the decoder; `none` if the inputs are features (`data.embedder`)."""
    backbone_channels: tuple[PositiveInt, ...] | None = None
    """Channels of the blocks of conv4 or resnet12, each of which halves the image; null for those of the literature."""
    average_flipped: bool = False
    """In evaluation mode, regions are the mean of those of the image and of its horizontal flip, at twice the cost."""
    image_size: Annotated[int, at_least(1), at_most("MAX_EMBEDDER_IMAGE_SIZE")] | None = None
    """Side of the images in pixels; null for that of the data."""
    channels: Literal[1, 3] | None = None
    """1 for grayscale, 3 for color; null for those of the data."""
    feature_dim: ModelDim | None = None
    """Dimension of the features; null for that of the backbone or of the data."""
    num_regions: ModelDim | None = None
    """Regions of an image, a square; null for those of the backbone or of the data."""
    vocab_size: Annotated[int, at_least(4), at_most("MAX_MODEL_VOCAB_SIZE")] | None = None
    """Size of the vocabulary; null to use that of the data."""
    embed_dim: ModelDim = 256
    ffn_dim: ModelDim = 1024
    """Hidden dimension of the feed-forward networks."""
    num_heads: ModelDim = 4
    encoder_layers: NonNegativeInt = 1
    """Transformer blocks over the regions."""
    decoder_layers: ModelDim = 3
    """Blocks of a Transformer decoder, or layers of a recurrent one."""
    score: Annotated[str, choice(SCORES)] = "dot"
    """Attention score of the Transformer blocks."""
    cell: Cell = "gru"
    """Cell of a recurrent decoder."""
    attention: Annotated[str, choice(SCORES)] = "additive"
    """Attention score of a recurrent decoder."""
    hard: bool = False
    """The attention of a recurrent decoder selects one region for each word."""
    hard_gradient: Gradient = "reinforce"
    """How hard attention is trained: by REINFORCE with a moving baseline, or with the gradient of the softmax."""
    reinforce_weight: NonNegative | None = None
    """Weight of REINFORCE in the loss; null for 0.02. Its gradient has a high variance, which the encoder gets too."""
    soft_share: Fraction | None = None
    """Share of the training captions that use the weights of the softmax instead of one region; null for 0.5 with
    REINFORCE."""
    entropy_weight: NonNegative = 0.01
    """Weight of the entropy of hard attention in the term of REINFORCE, which keeps it from collapsing early."""
    max_positions: ModelDim = 128
    """Longest caption in tokens."""
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides("embed_dim", self.embed_dim, num_heads=self.num_heads)
        has_grid = self.backbone in BACKBONES
        check(has_grid or not self.backbone_channels, f"backbone_channels must be null for backbone {self.backbone!r}")
        is_averaged = self.backbone == "none" and self.average_flipped
        check(not is_averaged, "average_flipped must be false for backbone 'none', got true")
        is_recurrent = self.kind == "rnn_attention"
        check(is_recurrent or not self.hard, f"hard must be false for kind {self.kind!r}, got true; use rnn_attention")
        for name, default in REINFORCE_OPTIONS.items():
            value = getattr(self, name)
            is_used = self.trains_choices or value is None
            check(is_used, f"{name} must be null without hard attention and REINFORCE, got {value}")
            if self.trains_choices and value is None:
                object.__setattr__(self, name, default)

    @property
    def trains_choices(self) -> bool:
        """Whether hard attention is trained by REINFORCE."""
        return self.hard and self.hard_gradient == "reinforce"

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of regions, which must be known."""
        side = round(self.required("num_regions") ** 0.5)
        return side, self.required("num_regions") // side

    def required(self, name: str) -> int:
        """The value of a field that follows from the data, which must be known."""
        value = getattr(self, name)
        if value is None:
            raise SightlineError(f"{name} must be set to build a captioner, got null")
        return int(value)


def make_backbone(config: CaptionerConfig) -> Backbone | None:
    """The image encoder of a config with random weights; None if the inputs are features."""
    if config.backbone == "none":
        return None
    if config.backbone in EFFICIENTNETS:
        check(config.channels in (None, 3), f"channels must be 3 for backbone {config.backbone}, got {config.channels}")
        model = EfficientNetLite(config.backbone)
        model.eval().fuse_batch_norms()
        return model
    options: dict[str, Any] = {} if config.backbone_channels is None else {"channels": config.backbone_channels}
    return BACKBONES[config.backbone](config.required("channels"), **options)


class RegionEncoder(nn.Module):
    """Features of regions to an `EncoderOutput`: projection, positions and Transformer blocks."""

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        c = config
        self.norm = nn.LayerNorm(c.required("feature_dim"))
        self.proj = nn.Linear(c.required("feature_dim"), c.embed_dim)
        self.positions = GridPositions(*c.grid, c.embed_dim)
        self.dropout = Dropout(c.dropout)
        options: dict[str, Any] = {"norm": "pre", "activation": "gelu", "dropout": c.dropout, "score": c.score}
        blocks = (c.embed_dim, c.num_heads, c.ffn_dim, c.encoder_layers)
        self.stack = Encoder(*blocks, **options) if c.encoder_layers else nn.LayerNorm(c.embed_dim)

    def forward(self, features: Tensor) -> EncoderOutput:
        """features (B, R, F) -> states (B, R, M)"""
        x = self.dropout(self.positions(self.proj(self.norm(features.to(self.norm.weight.dtype)))))
        return EncoderOutput(self.stack(x))


class Captioner(nn.Module):
    """An image encoder and a text decoder over its regions.

    Decode with `beam_search(model.decoder, model.encode(images), options)`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = config
        self.backbone = make_backbone(config)
        self.encoder = RegionEncoder(config)
        self.decoder = _make_decoder(config)
        if self.backbone is not None:
            self.register_buffer("mean", torch.full((1, config.required("channels"), 1, 1), 127.0))
            self.register_buffer("std", torch.full((1, config.required("channels"), 1, 1), 128.0))

    def regions(self, images: Tensor) -> Tensor:
        """Images uint8 (B, C, height, width), or features (B, R, F), which are returned as they are -> (B, R, F)"""
        if self.backbone is None:
            return images
        normalized = (images.to(self.mean.dtype) - self.mean) / self.std
        regions = self.backbone(normalized.contiguous(memory_format=torch.channels_last))
        if self.config.average_flipped and not self.training:
            flipped = self.backbone(normalized.flip(-1).contiguous(memory_format=torch.channels_last))
            regions = (regions + flipped.unflatten(1, self.config.grid).flip(2).flatten(1, 2)) / 2
        return regions

    def encode(self, images: Tensor) -> EncoderOutput:
        """Images uint8 (B, C, height, width), or features (B, R, F) -> states (B, R, M)"""
        output: EncoderOutput = self.encoder(self.regions(images))
        return output

    def forward(
        self, images: Tensor, target: Tensor, *, labels: Tensor | None = None, label_smoothing: float = 0.0
    ) -> Tensor:
        """images as `encode` takes them, target int64 (B, T) -> logits (B, T, V)

        With labels int64 (B, T), -100 where there is none: the summed cross entropy. A target with K rows for each
        image, one after another, has (B * K, T) tokens.
        """
        output = self.encode(images)
        if (rows := target.shape[0] // output.states.shape[0]) > 1:
            output = output.take(torch.arange(len(target), device=target.device) // rows)
        if labels is None:
            return self.decoder(output, target)
        if self.training and self.config.trains_choices:
            return self._reinforce_loss(self.decoder(output, target), labels, label_smoothing)
        return self.decoder.loss(output, target, labels, label_smoothing=label_smoothing)

    def _reinforce_loss(self, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        """The summed cross entropy of logits (B, T, V), with a term that trains the choices of hard attention.

        The choice for a word affects the loss of this word only, because the recurrence does not depend on attention.
        """
        options: dict[str, Any] = {"ignore_index": IGNORE_INDEX, "reduction": "none"}
        losses = F.cross_entropy(logits.mT.float(), labels, label_smoothing=label_smoothing, **options)
        has_label = labels != IGNORE_INDEX
        term = reinforce(self.decoder, losses, where=has_label, entropy_weight=self.config.entropy_weight)
        assert self.config.reinforce_weight is not None
        return losses.sum() + self.config.reinforce_weight * term * has_label.sum()


def _make_decoder(config: CaptionerConfig) -> TextDecoder:
    c, vocab_size = config, config.required("vocab_size")
    if c.kind == "transformer":
        options: dict[str, Any] = {"norm": "pre", "activation": "gelu", "score": c.score, "dropout": c.dropout}
        sizes = (vocab_size, c.embed_dim, c.num_heads, c.ffn_dim, c.decoder_layers)
        return TransformerTextDecoder(*sizes, max_positions=c.max_positions, **options)
    return RecurrentTextDecoder(
        vocab_size,
        c.embed_dim,
        c.embed_dim,
        cell=c.cell,
        num_layers=c.decoder_layers,
        attention="none" if c.kind == "rnn" else c.attention,
        hard=c.hard,
        hard_gradient=c.hard_gradient,
        soft_share=c.soft_share or 0.0,
        dropout=c.dropout,
    )
