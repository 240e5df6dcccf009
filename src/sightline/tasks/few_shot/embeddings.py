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
from ...models.embedders import load_embedder
from ...predictor import Progress
from ...training.device import choose_device
from .config import FewShotTaskConfig

BATCH_SIZES = {"cpu": 64, "cuda": 1024}
"""Images embedded between two calls of `progress`."""


class FrozenEmbedder:
    """The embedder of a config, with the tokens that its head takes."""

    def __init__(self, config: FewShotTaskConfig, *, allow_download: bool = True):
        data, model = config.data, config.model
        assert data.embedder is not None
        self.embedder = load_embedder(data.embedder, weights=data.weights, allow_download=allow_download)
        self.tokens = model.tokens
        if model.embed_dim != self.embedder.embed_dim:
            raise SightlineError(
                f"model.embed_dim must be {self.embedder.embed_dim}, the dimension of the embeddings of "
                f"{data.embedder}, got {model.embed_dim}"
            )

    @torch.no_grad()
    def embed(
        self,
        pixels: Tensor,
        device: torch.device,
        progress: Progress | None = None,
        *,
        transform: Callable[[Tensor, slice], Tensor] | None = None,
    ) -> Tensor:
        """uint8 (N, C, side, side) -> float32 (N, T, M) on the device; grayscale images are converted to color.

        `transform` changes the pixels of a batch, given with its slice.
        """
        self.embedder.to(device)
        batches, size = [], BATCH_SIZES[device.type]
        for start in range(0, len(pixels), size):
            rows = slice(start, min(start + size, len(pixels)))
            batch = pixels[rows].to(device)
            batch = batch if transform is None else transform(batch, rows)
            if batch.shape[1] == 1:
                batch = batch.expand(-1, self.embedder.channels, -1, -1)
            if self.tokens == "patches":
                batches.append(self.embedder.embed_patches(batch))
            else:
                batches.append(self.embedder.embed_pooled(batch)[:, None])
            if progress is not None:
                progress(rows.stop, len(pixels))
        return torch.cat(batches)

    def num_bytes(self, num_images: int) -> int:
        """The size of the embeddings of this many images in half precision."""
        num_tokens = self.embedder.grid[0] * self.embedder.grid[1] if self.tokens == "patches" else 1
        return 2 * num_images * num_tokens * self.embedder.embed_dim


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
        if config.data.embedder is None:
            return None
        embedder, pixels, copies = FrozenEmbedder(config), splits.train.pixels, config.data.augmented_copies
        if (size := embedder.num_bytes((1 + copies) * len(pixels))) > limits.MAX_EMBEDDINGS_BYTES:
            raise SightlineError(
                f"embeddings must take at most {limits.MAX_EMBEDDINGS_BYTES:,} bytes, got {size:,} for "
                f"{len(pixels):,} images and {copies} copies of each; lower data.augmented_copies, or use "
                f"model.tokens=pooled"
            )
        device = choose_device(config.training.device)
        embeddings = [embedder.embed(pixels, device, progress).half()]
        for number in range(copies):
            transform = _augmentation(config.augment, len(pixels), seed=config.seed, step=number)
            embeddings.append(embedder.embed(pixels, device, progress, transform=transform).half())
        train = torch.stack(embeddings)
        if not train.isfinite().all():
            raise SightlineError(
                f"embeddings must be finite in half precision, got others from {embedder.embedder.name}"
            )
        validation = torch.empty(0)
        if splits.validation is not None:
            validation = embedder.embed(splits.validation.pixels, device, progress)
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


def _augmentation(config: AugmentConfig, count: int, *, seed: int, step: int) -> Callable[[Tensor, slice], Tensor]:
    """A function from uint8 pixels to augmented uint8 pixels."""
    params = augmentation.sample_params(config, count, seed=seed, step=step)

    def transform(pixels: Tensor, rows: slice) -> Tensor:
        labels = torch.zeros(len(pixels), dtype=torch.long)
        images, _ = augmentation.apply(config, pixels, labels, 1, params.take(rows).to(pixels.device))
        return (images * 255).round().to(torch.uint8)

    return transform
