"""A text classifier: a bidirectional text encoder and a linear classifier.

Shapes: B batch, T tokens, M embedding dimension.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ..config import at_least
from ..errors import SightlineError
from ..kernels.packing import packs
from ..layers import Dropout
from .encoders import EncoderOutput, TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class TextClassifierConfig(TextEncoderConfig):
    """Config of a `TextClassifier`: that of its encoder, and options of its head."""

    num_classes: Annotated[int, at_least(2)] | None = None
    """Number of classes; null for that of the data."""
    pool: Literal["mean", "first"] = "mean"
    """What the classifier reads: the mean of the states of all tokens, or the state of the first token."""
    pooler: bool = False
    """A linear layer and tanh before the classifier, as in BERT."""


class TextClassifier(nn.Module):
    """Encoder, pooling and a linear classifier."""

    calibration_scale: Tensor
    """Factor of the logits: 1 in training, then fitted on the validation set so that confidences are calibrated."""

    def __init__(self, config: TextClassifierConfig):
        super().__init__()
        self.config, embed_dim = config, config.dimensions["embed_dim"]
        if config.num_classes is None:
            raise SightlineError("num_classes must be set, got null")
        self.encoder = config.build_encoder()
        self.register_buffer("calibration_scale", torch.ones(()))
        self.pooler = nn.Linear(embed_dim, embed_dim) if config.pooler else None
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(embed_dim, config.num_classes)

    def pool(self, output: EncoderOutput) -> Tensor:
        """One vector for each text: states (B, T, M) -> (B, M)"""
        x = output.states[:, 0] if self.config.pool == "first" else output.pooled_states()
        return x if self.pooler is None else torch.tanh(self.pooler(x))

    def forward(self, tokens: Tensor, attention_mask: Tensor, *, segment_ids: Tensor | None = None) -> Tensor:
        """tokens int64 (B, T), attention_mask bool (B, T), padding last -> logits (B, num_classes)"""
        output = self.encoder(tokens, attention_mask, segment_ids=segment_ids, packed=packs(self, tokens))
        logits: Tensor = self.classifier(self.dropout(self.pool(output.unpacked())))
        return self.calibration_scale * logits
