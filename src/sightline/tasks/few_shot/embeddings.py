"""Training data as embeddings of an encoder with fixed weights. Every image is embedded once, before training.

Shapes: N images, E episodes, S images per episode, T tokens per image, M embedding dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import limits, seeds
from ...data.images import augmentation
from ...data.images.augmentation import AugmentConfig
from ...data.images.class_splits import ClassSplits
from ...errors import SightlineError
from ...models.embedders import ExternalEmbedder
from ...predictor import Progress
from ...training.device import choose_device
from .config import FewShotTaskConfig

BATCH_SIZES = {"cpu": 64, "cuda": 1024}
"""Images embedded between two calls of `progress`."""


def make_embedder(config: FewShotTaskConfig, *, allow_download: bool = True) -> ExternalEmbedder | None:
    """The embedder of a config; None if the model has a backbone."""
    name, weights = config.data.embedder, config.data.weights
    return None if name is None else ExternalEmbedder(name, config.model, weights, allow_download=allow_download)


def embed_all(
    embedder: ExternalEmbedder,
    pixels: Tensor,
    progress: Progress | None = None,
    transform: Callable[[Tensor, slice], Tensor] | None = None,
) -> Tensor:
    """uint8 (N, C, side, side) -> float32 (N, T, M) on the device of the embedder, in batches.

    `transform` changes the pixels of a batch, given with its slice.
    """
    batches, size = [], BATCH_SIZES[embedder.device.type]
    for start in range(0, len(pixels), size):
        rows = slice(start, min(start + size, len(pixels)))
        batch = pixels[rows].to(embedder.device)
        batches.append(embedder.embed(batch if transform is None else transform(batch, rows)))
        if progress is not None:
            progress(rows.stop, len(pixels))
    return torch.cat(batches)


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
    def create(
        cls, config: FewShotTaskConfig, splits: ClassSplits, progress: Progress | None = None
    ) -> "EmbeddedData | None":
        """Embed all images of a data set; None if the config has no embedder."""
        embedder, pixels, copies = make_embedder(config), splits.train.pixels, config.data.augmented_copies
        if embedder is None:
            return None
        embedder.to(choose_device(config.training.device))
        embed_dim, num_images = embedder.encoder.embed_dim, (1 + copies) * len(pixels)
        if (size := 2 * num_images * embedder.num_tokens * embed_dim) > limits.MAX_EMBEDDINGS_BYTES:
            raise SightlineError(
                f"embeddings must take at most {limits.MAX_EMBEDDINGS_BYTES:,} bytes, got {size:,} for "
                f"{len(pixels):,} images and {copies} copies of each; lower data.augmented_copies, or use "
                f"model.tokens=pooled"
            )
        transforms = [_augmentation(config.augment, len(pixels), config.seed, step) for step in range(copies)]
        train = torch.stack([embed_all(embedder, pixels, progress, f).half() for f in (None, *transforms)])
        if not train.isfinite().all():
            raise SightlineError(f"embeddings must be finite in half precision, got others from {embedder.name}")
        validation = torch.empty(0)
        if splits.validation is not None:
            validation = embed_all(embedder, splits.validation.pixels, progress)
        return cls(train, splits.train.labels, validation)

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


def _augmentation(config: AugmentConfig, count: int, seed: int, step: int) -> Callable[[Tensor, slice], Tensor]:
    """A function from uint8 pixels to augmented uint8 pixels."""
    params = augmentation.sample_params(config, count, seed=seed, step=step)

    def transform(pixels: Tensor, rows: slice) -> Tensor:
        labels = torch.zeros(len(pixels), dtype=torch.long)
        images, _ = augmentation.apply(config, pixels, labels, 1, params.take(rows).to(pixels.device))
        return (images * 255).round().to(torch.uint8)

    return transform
