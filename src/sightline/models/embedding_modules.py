"""Embedders as modules over plain tensors, for export.

Shapes: B batch, C channels, T tokens per input, M embedding dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SightlineError
from .embedders import BackboneEmbedder, ExternalEmbedder
from .few_shot import FewShot
from .few_shot_config import FewShotConfig
from .image_encoders import Embedder
from .text_embedders import SentenceEncoder, TextEmbedder

Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class EmbeddingModule:
    """A module that takes tensors by name and returns embeddings (B, T, M)."""

    module: nn.Module
    example: Callable[[int, int], Tensors]
    """Inputs for a batch size and, for text, a number of tokens."""
    dimensions: dict[str, dict[int, str]]
    """The varying dimensions of each input: batch and tokens."""
    metadata: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    """Further files by name, such as the tokenizer."""


class BackboneModule(nn.Module):
    """The backbone of a few-shot model."""

    def __init__(self, model: FewShot):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> (B, T, M)"""
        return self.model.embed_views(images)


class EncoderModule(nn.Module):
    """An external image encoder with its preprocessing."""

    def __init__(self, encoder: Embedder, config: FewShotConfig):
        super().__init__()
        self.encoder, self.model, self.config = encoder, encoder.model, config

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> (B, T, M)"""
        return self.encoder.embed_batch(images * 255, self.config.tokens, self.config.views)


def embedding_module(embedder: Any) -> EmbeddingModule:
    """The module of an embedder."""
    for kind, build in BUILDERS.items():
        if isinstance(embedder, kind):
            return build(embedder)
    rule = "the embedder of an exported classifier must be a backbone, a named image encoder or a text encoder"
    raise SightlineError(f"{rule}, got {type(embedder).__name__}; export the function itself, and fit on embeddings")


def _of_backbone(embedder: BackboneEmbedder) -> EmbeddingModule:
    return _of_images(BackboneModule(embedder.model), embedder.channels, embedder.image_size)


def _of_encoder(embedder: ExternalEmbedder) -> EmbeddingModule:
    module = EncoderModule(embedder.encoder.to("cpu"), embedder.config)
    return _of_images(module, embedder.channels, embedder.image_size)


def _of_images(module: nn.Module, channels: int, size: int) -> EmbeddingModule:
    def example(batch: int, tokens: int) -> Tensors:
        return {"images": torch.rand(batch, channels, size, size)}

    metadata = {"image_size": size, "channels": channels}
    return EmbeddingModule(module.eval(), example, {"images": {0: "batch"}}, metadata)


class SentenceModule(nn.Module):
    """A sentence encoder."""

    def __init__(self, encoder: SentenceEncoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids int64 (B, T), attention_mask bool (B, T) -> (B, 1, M)"""
        return self.encoder(input_ids, attention_mask)[:, None]


def _of_text(embedder: TextEmbedder) -> EmbeddingModule:
    encoder: SentenceEncoder = embedder.encoder.to("cpu")

    def example(batch: int, tokens: int) -> Tensors:
        lengths = tokens - torch.arange(batch) % tokens
        ids = torch.randint(encoder.vocab_size, (batch, tokens))
        return {"input_ids": ids, "attention_mask": torch.arange(tokens) < lengths[:, None]}

    axes = {0: "batch", 1: "tokens"}
    files = {"tokenizer.json": encoder.tokenizer.to_str().encode()}
    metadata = {"max_tokens": encoder.max_tokens}
    return EmbeddingModule(
        SentenceModule(encoder).eval(), example, {"input_ids": axes, "attention_mask": axes}, metadata, files
    )


BUILDERS: dict[type, Callable[[Any], EmbeddingModule]] = {
    TextEmbedder: _of_text,
    BackboneEmbedder: _of_backbone,
    ExternalEmbedder: _of_encoder,
}
