"""Features of image regions from encoders with fixed weights, cached on disk.

Shapes: N images, C channels, R regions, F feature dimension, B batch.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import config, limits
from ..data.captions.datasets import CaptionedImages
from ..data.feature_cache import FILE_IMAGES, FeatureCache, state_digest
from ..errors import check
from ..files import CONFIG
from ..progress import Progress
from ..weights import read_weights
from .embedders import load_embedder
from .image_classifier import ImageClassifier, ImageClassifierConfig
from .image_encoders import Embedder, Transform
from .preprocessing import Preprocessing

IMAGE_CLASSIFICATION = "image_classification"


class PatchEmbedder(Embedder):
    """The patches of a trained Sightline image classifier after its last block."""

    def __init__(self, folder: Path):
        values = config.read(folder / CONFIG)
        rule = "an embedder must be a run of image_classification"
        check(values.get("task", IMAGE_CLASSIFICATION) == IMAGE_CLASSIFICATION, f"{rule}, got {values.get('task')!r}")
        model_config = config.build(ImageClassifierConfig, values.get("model", {}), "model")
        model = read_weights(folder, lambda: ImageClassifier(model_config), depth=model_config.depth)
        side, channels = model_config.grid_size, model.mean.shape[0]
        mean, std = (tuple(float(x) for x in 255 * value.flatten()) for value in (model.mean, model.std))
        assert model_config.image_size is not None
        preprocessing = Preprocessing(model_config.image_size, channels, mean, std)
        super().__init__(model, str(folder), preprocessing, embed_dim=model_config.embed_dim, grid=(side, side))

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.model.patch_tokens(images)  # type: ignore[operator]
        return tokens, tokens.mean(1)


def load_region_encoder(name: str, *, weights: str | None = None, allow_download: bool = True) -> Embedder:
    """The folder of a run of image_classification, or any embedder of `load_embedder`."""
    folder = Path(name).expanduser()
    if (folder / CONFIG).is_file():
        return PatchEmbedder(folder)
    return load_embedder(name, weights=weights, allow_download=allow_download)


def region_features(
    encoder: Embedder, images: CaptionedImages, progress: Progress | None = None, transform: Transform | None = None
) -> Tensor:
    """Features of all images: float16 (N, R, F). Unchanged images are read from the cache if they are there.

    A `transform` changes the pixels; such features are not cached.
    """
    shape = (encoder.num_tokens("patches"), encoder.token_dim("patches"))
    check_features_memory(encoder, len(images))
    features = torch.empty(len(images), *shape, dtype=torch.float16)
    if transform is not None:
        _embed(encoder, images, list(range(len(images))), features, progress, transform)
        return features
    keys = list(images.content_digests())
    cache = FeatureCache(_identity(encoder), shape)
    missing = cache.read(keys, features)
    for start in range(0, len(missing), FILE_IMAGES):
        rows = missing[start : start + FILE_IMAGES]
        done = len(images) - len(missing) + start
        report = None if progress is None else lambda i, _, done=done: progress(done + i, len(images))
        _embed(encoder, images, rows, features, report)
        cache.write([keys[row] for row in rows], features[rows])
    return features


def check_features_memory(encoder: Embedder, num_images: int, *, copies: int = 0) -> None:
    """Raise an error if the features of images and of their augmented copies are too large in total."""
    size = 2 * (1 + copies) * num_images * encoder.num_tokens("patches") * encoder.token_dim("patches")
    limit, images = limits.MAX_EMBEDDINGS_BYTES, f"{num_images:,} images and {copies} copies of each"
    check(size <= limit, f"features must take at most {limit:,} bytes, got {size:,} for {images}")


def _embed(
    encoder: Embedder,
    images: CaptionedImages,
    rows: list[int],
    out: Tensor,
    progress: Progress | None = None,
    transform: Transform | None = None,
) -> None:
    """Compute the features of the images at these rows."""
    for start in range(0, len(rows), FILE_IMAGES):
        part = rows[start : start + FILE_IMAGES]
        selected = images.take(part)
        pixels = selected.pixels
        if pixels is None:
            pixels = selected.load(encoder.image_size, encoder.channels)
        moved = None if transform is None else _shifted(transform, start)
        embedded = encoder.embed(pixels, "patches", transform=moved)
        check(
            bool(embedded.half().isfinite().all()),
            f"features must be finite in half precision, got others from {encoder.name}",
        )
        out[part] = embedded.half().cpu()
        if progress is not None:
            progress(start + len(part), len(rows))


def _shifted(transform: Transform, start: int) -> Transform:
    """The transform of images from `start` on."""
    return lambda pixels, rows: transform(pixels, slice(rows.start + start, rows.stop + start))


def _identity(encoder: Embedder) -> str:
    """A text that identifies the weights and the preprocessing of an encoder."""
    preprocessing: dict[str, Any] = {
        f.name: getattr(encoder.preprocessing, f.name) for f in fields(encoder.preprocessing)
    }
    return f"{type(encoder).__name__} {state_digest(encoder.model.state_dict())} {sorted(preprocessing.items())}"
