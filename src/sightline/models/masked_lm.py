"""A masked language model: a bidirectional text encoder that predicts masked tokens.

Shapes: B batch, T tokens, N positions to predict in each row, M embedding dimension, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.cross_entropy import linear_cross_entropy
from ..kernels.packing import packs
from ..layers import TokenEmbedding
from ..layers.blocks import ACTIVATIONS
from .encoders import EncoderOutput, TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(TextEncoderConfig):
    """Config of a `MaskedLM`: that of its encoder, and options of its head."""

    head_transform: bool = True
    """A linear layer, the activation and a layer norm before the output projection, as in BERT."""
    tie_embeddings: bool = True
    """The output projection is the table of token embeddings."""


class MaskedLMHead(nn.Module):
    """Logits of the vocabulary: an optional transform, then the projection by an embedding table, with a bias."""

    def __init__(self, config: MaskedLMConfig, vocab_size: int):
        super().__init__()
        embed_dim = config.dimensions["embed_dim"]
        self.dense = nn.Linear(embed_dim, embed_dim) if config.head_transform else None
        self.activation = ACTIVATIONS[config.activation]
        self.norm = nn.LayerNorm(embed_dim, config.norm_eps) if config.head_transform else None
        self.output_embedding = None if config.tie_embeddings else TokenEmbedding(vocab_size, embed_dim)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def transform(self, states: Tensor) -> Tensor:
        """states (..., M) -> (..., M)"""
        if self.dense is None or self.norm is None:
            return states
        return self.norm(self.activation(self.dense(states)))

    def forward(self, states: Tensor, embedding: TokenEmbedding, labels: Tensor | None = None) -> Tensor:
        """states (..., M) -> logits (..., V); with labels int64 (...), -100 for none: the summed cross entropy"""
        weight = (embedding if self.output_embedding is None else self.output_embedding).weight
        x = self.transform(states)
        return (
            F.linear(x, weight, self.bias)
            if labels is None
            else linear_cross_entropy(x, weight, labels, bias=self.bias)
        )


class MaskedLM(nn.Module):
    """A text encoder and a head that predicts the token at given positions."""

    def __init__(self, config: MaskedLMConfig):
        super().__init__()
        self.config = config
        self.encoder = config.build_encoder()
        assert self.encoder.embedding is not None
        self.head = MaskedLMHead(config, len(self.encoder.embedding.weight))

    def encode(
        self, tokens: Tensor, attention_mask: Tensor, *, segment_ids: Tensor | None = None, packed: bool = False
    ) -> EncoderOutput:
        """tokens int64 (B, T), attention_mask bool (B, T), segment_ids int64 (B, T) -> states (B, T, M)"""
        return self.encoder(tokens, attention_mask, segment_ids=segment_ids, packed=packed)

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor,
        *,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """tokens int64 (B, T), attention_mask bool (B, T), padding last -> logits (B, T, V)

        With positions int64 (B, N), only these are predicted: (B, N, V). With labels int64 (B, N), or (B, T) without
        positions, and -100 where there is none: the summed cross entropy.
        """
        is_packed = labels is not None and packs(self, tokens)
        states = self.encode(tokens, attention_mask, segment_ids=segment_ids, packed=is_packed).unpacked().states
        if positions is not None:
            states = states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        return self.head(states, self.encoder.embedding, labels)
