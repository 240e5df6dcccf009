"""Export of a fitted classifier: images, texts or embeddings to probabilities and known scores."""

import torch
from torch import Tensor, nn

from ..exporting import BATCH, Dimension, Export, Part
from ..models.embedding_modules import EmbeddingModule, embedding_module
from .classifier import FewShotClassifier
from .fitted import Fitted
from .methods import Blend

SIZES = ((3, 5), (1, 2), (7, 11))
"""Inputs, and tokens of a text, of the examples."""


class FittedModule(nn.Module):
    """A fitted classifier. The encoded support set is a part of it."""

    def __init__(self, fitted: Fitted, embed: nn.Module):
        super().__init__()
        self.fitted, self.embed, self.head = fitted, embed, fitted.head
        members = fitted.head.members if isinstance(fitted.head, Blend) else (fitted.head,)
        self.heads = nn.ModuleList(member for member in members if isinstance(member, nn.Module))  # their parameters

    def scores(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """embeddings (B, T, M) -> probabilities (B, way), known_score (B,)"""
        logits = self.head.classify(self.fitted.state, embeddings[None])[0]
        calibration = self.fitted.calibration
        probabilities = (calibration.scale * logits).softmax(-1)
        return probabilities.float(), calibration.known_score(logits).float()


class ImageModule(FittedModule):
    """A classifier of images."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, C, image_size, image_size), from 0 to 1 -> probabilities (B, way), known_score (B,)"""
        return self.scores(self.embed(images))


class TextModule(FittedModule):
    """A classifier of texts."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """input_ids int64 (B, T), attention_mask bool (B, T) -> probabilities (B, way), known_score (B,)"""
        return self.scores(self.embed(input_ids, attention_mask))


class EmbeddingsModule(FittedModule):
    """A classifier of embeddings."""

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """embeddings (B, T, M) -> probabilities (B, way), known_score (B,)"""
        return self.scores(embeddings)


MODULES: dict[str, type[FittedModule]] = {
    "images": ImageModule,
    "input_ids": TextModule,
    "embeddings": EmbeddingsModule,
}
"""The module by the first input of its embedding."""


def export(classifier: FewShotClassifier) -> Export:
    """The classifier as one model, with the encoder of its images or texts."""
    fitted = classifier.fitted
    embedding = _embedding(fitted)
    dims = {"batch": BATCH, "tokens": Dimension(name="tokens", max=embedding.metadata.get("max_tokens"))}
    part = Part(
        name="model",
        module=MODULES[next(iter(embedding.dimensions))](fitted, embedding.module).eval(),
        examples=[embedding.example(batch, tokens) for batch, tokens in SIZES],
        dimensions={name: {i: dims[key] for i, key in axes.items()} for name, axes in embedding.dimensions.items()},
        outputs=("probabilities", "known_score"),
    )
    metadata = {"task": "few_shot_classifier", "classes": list(classifier.classes), **embedding.metadata}
    return Export(parts=[part], metadata=metadata, files=embedding.files)


def _embedding(fitted: Fitted) -> EmbeddingModule:
    if fitted.has_inputs:
        return embedding_module(fitted.embedder)
    shape = fitted.support.embeddings.shape[1:]
    axes = {"embeddings": {0: "batch"}}
    return EmbeddingModule(nn.Identity(), lambda batch, _: {"embeddings": torch.randn(batch, *shape)}, axes, {})
