"""Export of a few-shot model: support images with labels and query images to logits."""

import torch
from torch import Tensor, nn

from ...exporting import Dimension, Export, Part, Tensors
from ...models.embedding_modules import EmbeddingModule, embedding_module
from .predictor import FewShotPredictor

SUPPORT, QUERY, WAY = Dimension(name="support"), Dimension(name="query"), Dimension(name="way")
SIZES = ((4, 3, 2), (5, 1, 5), (12, 7, 3))
"""Support images, queries and classes of the examples."""


class EpisodeClassifier(nn.Module):
    """The embeddings of support and query images, and the head over them."""

    def __init__(self, embed: nn.Module, head: nn.Module):
        super().__init__()
        self.embed, self.head = embed, head

    def forward(self, support: Tensor, labels: Tensor, query: Tensor, classes: Tensor) -> Tensor:
        """support (S, C, side, side), labels int64 (S,), query (Q, C, side, side), classes = 0 .. way - 1 (way,)
        -> logits (Q, way)
        """
        support, query = self.embed(support), self.embed(query)
        logits: Tensor = self.head(support[None], labels[None], query[None], way=classes.shape[0])[0]
        return logits


def export(predictor: FewShotPredictor) -> Export:
    """The backbone, or the external encoder, and the head as one model. Images have values from 0 to 1."""
    embedding = embedding_module(predictor.embedder)
    part = Part(
        name="model",
        module=EpisodeClassifier(embedding.module, predictor.model.head).eval(),
        examples=[_episode(embedding, *sizes) for sizes in SIZES],
        dimensions={"support": {0: SUPPORT}, "labels": {0: SUPPORT}, "query": {0: QUERY}, "classes": {0: WAY}},
        outputs=("logits",),
    )
    return Export(parts=[part], metadata={"task": predictor.config.task, **embedding.metadata})


def _episode(embedding: EmbeddingModule, support: int, query: int, way: int) -> Tensors:
    return {
        "support": embedding.example(support, 1)["images"],
        "labels": torch.arange(support) % way,
        "query": embedding.example(query, 1)["images"],
        "classes": torch.arange(way),
    }
