"""Training data as embeddings of an encoder with fixed weights. Every image is embedded once, before training.

Shapes: N images, E episodes, S images per episode, T tokens per image, M embedding dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ... import limits, seeds
from ...data.episodes import EpisodeSource
from ...data.images import augmentation
from ...data.images.augmentation import AugmentConfig
from ...data.images.class_splits import ClassSplits
from ...errors import check
from ...models.embedders import ExternalEmbedder
from ...models.image_encoders import Transform
from ...predictor import Progress
from ...training.device import choose_device
from .config import FewShotTaskConfig


@dataclass(frozen=True, eq=False)
class EmbeddedData:
    """Embeddings of the training and validation images."""

    train: Tensor
    """float16 (1 + augmented_copies, N, T, M); the first are the unchanged images."""
    labels: Tensor
    """(N,), of the training images."""
    validation: Tensor
    """float32 (N, T, M); empty without validation classes."""

    @classmethod
    def of(cls, config: FewShotTaskConfig, splits: ClassSplits, progress: Progress | None = None) -> Self | None:
        """The embeddings of a data set, which are kept with it; None if the config has no embedder."""
        data, model = config.data, config.model
        if data.embedder is None:
            return None
        copies = (data.augmented_copies, config.augment, config.seed) if data.augmented_copies else ()
        key = (data.embedder, data.weights, model.tokens, model.views, model.embed_dim, *copies)
        embedded: Self | None = splits.embeddings.get(key)
        if embedded is None:
            embedder = ExternalEmbedder(data.embedder, model, data.weights).to(choose_device(config.training.device))
            embedded = cls._create(config, splits, embedder, progress)
            kept = sum(other.train.nbytes for other in splits.embeddings.values()) + embedded.train.nbytes
            if kept > limits.MAX_EMBEDDINGS_BYTES:
                splits.embeddings.clear()
            splits.embeddings[key] = embedded
        return embedded

    @classmethod
    def _create(
        cls, config: FewShotTaskConfig, splits: ClassSplits, embedder: ExternalEmbedder, progress: Progress | None
    ) -> Self:
        pixels, copies, encoder = splits.train.pixels, config.data.augmented_copies, embedder.encoder
        tokens = config.model.tokens
        size = 2 * (1 + copies) * len(pixels) * encoder.num_tokens(tokens) * encoder.token_dim(tokens)
        limit, count = limits.MAX_EMBEDDINGS_BYTES, f"{len(pixels):,} images and {copies} copies of each"
        fix = "lower data.augmented_copies, or use model.tokens=pooled"
        check(size <= limit, f"embeddings must take at most {limit:,} bytes, got {size:,} for {count}; {fix}")
        transforms = [_augmentation(config.augment, len(pixels), config.seed, step) for step in range(copies)]
        versions = [embedder.embed(pixels, progress=progress, transform=f).half() for f in (None, *transforms)]
        train, held_out = torch.stack(versions), splits.validation
        is_finite = train.isfinite().all()
        check(is_finite, f"embeddings must be finite in half precision, got others from {embedder.name}")
        validation = torch.empty(0) if held_out is None else embedder.embed(held_out.pixels, progress=progress)
        return cls(train, splits.train.labels, validation)

    def by_source(self, sources: Sequence[EpisodeSource]) -> list[tuple[Tensor, Tensor]]:
        """Embeddings (N, T, M) of the unchanged training images of each source, and their labels (N,) from 0."""
        selected = []
        for source in sources:
            labels = self.labels - source.first_class
            mask = (labels >= 0) & (labels < len(source.classes.names))
            selected.append((self.train[0, mask], labels[mask]))
        return selected

    def to(self, device: torch.device) -> "EmbeddedData":
        """A copy on a device."""
        return EmbeddedData(*(tensor.to(device) for tensor in (self.train, self.labels, self.validation)))

    def select(self, indices: Tensor, slices: Sequence[slice], *, seed: int, step: int) -> list[tuple[Tensor, Tensor]]:
        """Embeddings (E, S, T, M) and labels (E * S) of the images of a step, for each slice of its episodes.

        indices (E, S). Each image is drawn at random from its unchanged version and its augmented copies.
        """
        random = seeds.make_generator(seed, seeds.AUGMENTATION, step, 1)  # the 1 separates it from the augmentation
        copies = torch.from_numpy(random.integers(len(self.train), size=tuple(indices.shape))).to(indices.device)
        return [
            (self.train[copies[rows], indices[rows]].float(), self.labels[indices[rows]].flatten()) for rows in slices
        ]


def _augmentation(config: AugmentConfig, count: int, seed: int, step: int) -> Transform:
    """A function from uint8 pixels to augmented uint8 pixels."""
    params = augmentation.sample_params(config, count, seed=seed, step=step)
    return lambda pixels, rows: augmentation.augment_pixels(config, pixels, params.take(rows))
