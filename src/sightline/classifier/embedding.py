"""Image embedders of a classifier, and the models that classifiers are fitted with.

Shapes: B batch, C channels, T tokens per image, M embedding dimension.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import config, limits, zoo
from ..errors import MissingDependencyError, SightlineError, one_of
from ..files import CONFIG, warn_unfinished
from ..models.embedders import EMBEDDERS, ExternalEmbedder, load_embedder
from ..models.few_shot import FewShot, FewShotConfig
from ..weights import read_weights

BATCH_SIZES = {"cpu": 1, "cuda": 1024}
"""Images per forward pass of a backbone. With 1 on a CPU, an embedding does not depend on the other images."""


class ImageEmbedder(Protocol):
    """Turns images of one size into tokens."""

    @property
    def image_size(self) -> int:
        """Side length of the images."""

    @property
    def channels(self) -> int:
        """1 for grayscale, 3 for color."""

    def embed(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, image_size, image_size) -> float32 (B, T, M)"""


class BackboneEmbedder:
    """The backbone of a few-shot model."""

    def __init__(self, model: FewShot):
        assert model.config.image_size is not None
        assert model.config.channels is not None
        self.model, self.image_size, self.channels = model, model.config.image_size, model.config.channels
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.no_grad()
    def embed(self, pixels: Tensor) -> Tensor:
        device = self.model.head.calibration_scale.device
        batches = pixels.contiguous(memory_format=torch.channels_last).split(BATCH_SIZES[device.type])
        return torch.cat([self.model.embed(batch.to(device).float() / 255) for batch in batches]).float()


ModelEmbedder = BackboneEmbedder | ExternalEmbedder | None
"""The embedder of a model; None if the model takes embeddings."""


def make_embedder(
    model: FewShot, name: str | None = None, weights: str | None = None, *, allow_download: bool = True
) -> ModelEmbedder:
    """The external encoder of this name, or the backbone of the model."""
    if name is not None:
        return ExternalEmbedder(name, model.config, weights, allow_download=allow_download)
    if weights is not None:
        raise SightlineError(f"weights must be left out for a model without an embedder, got {weights!r}")
    return None if model.backbone is None else BackboneEmbedder(model)


def nearest_mean_model(embed_dim: int) -> FewShot:
    """A model without parameters: classification by cosine similarity to the class mean."""
    return FewShot(FewShotConfig(backbone="none", embed_dim=embed_dim, depth=0)).eval()


def load_base_model(
    source: str | Path, weights: str | None = None, *, allow_download: bool = False
) -> tuple[FewShot, ModelEmbedder]:
    """A few-shot model by the folder of its run or its name in the zoo; or an embedder, with a nearest-mean model.

    An embedder that a run's config names is downloaded only with `allow_download`.
    """
    folder = zoo.folder(source)
    if not (folder / CONFIG).is_file():
        return _load_embedder_model(str(source), weights)
    warn_unfinished(folder)
    values = config.read(folder / CONFIG)
    section = values.get("model")
    if not isinstance(section, dict) or "image_size" not in section or values.get("task", "few_shot") != "few_shot":
        raise SightlineError(
            f"model must be a few-shot model, got {str(source)!r} of task {values.get('task')!r}; train one with "
            f"sightline train task=few_shot"
        )
    model_config = config.build(FewShotConfig, section, "model")
    model = read_weights(folder, lambda: FewShot(model_config), depth=model_config.depth).eval().float()
    model.classifier, model.config = None, replace(model_config, num_classes=0)  # only training needs it
    data = values.get("data") if model_config.backbone == "none" else None
    data = data if isinstance(data, dict) else {}
    weights = data.get("weights") if weights is None else weights
    return model, make_embedder(model, data.get("embedder"), weights, allow_download=allow_download)


def _load_embedder_model(name: str, weights: str | None) -> tuple[FewShot, ExternalEmbedder]:
    try:
        encoder = load_embedder(name, weights=weights)
    except MissingDependencyError:
        raise
    except SightlineError as error:
        if name in EMBEDDERS:
            raise
        pretrained = [model for model in zoo.names() if config.read(zoo.HOME / model / CONFIG)["task"] == "few_shot"]
        is_path = "/" in name or Path(name).is_dir()
        raise SightlineError(
            f"model must be the folder of a few-shot run or of a Hugging Face vision model, hub:owner/name, or "
            f"{one_of(name, [*pretrained, *EMBEDDERS])}" + (f" ({error})" if is_path else "")
        ) from error
    model = nearest_mean_model(encoder.embed_dim)
    embedder = ExternalEmbedder(name, model.config, weights)
    embedder.loaded = encoder
    return model, embedder


def check_embeddings(x: Tensor | np.ndarray[Any, Any], embed_dim: int | None, owner: str) -> Tensor:
    """Embeddings given by a user as float32 (N, T, M); `owner` names them in error messages."""
    is_numeric = x.dtype != torch.bool and not x.is_complex() if isinstance(x, Tensor) else x.dtype.kind in "iuf"
    if not is_numeric or x.ndim not in (2, 3) or 0 in x.shape:
        raise SightlineError(
            f"embeddings of {owner} must be numbers of shape (n, embed_dim) or (n, tokens, embed_dim), "
            f"got {x.dtype} of shape {tuple(x.shape)}"
        )
    with np.errstate(over="ignore"):
        tensor = x.detach().cpu().float() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float32))
    tensor = tensor[:, None] if tensor.dim() == 2 else tensor
    if embed_dim is not None and tensor.shape[-1] != embed_dim:
        raise SightlineError(
            f"embed_dim of all embeddings must be {embed_dim}, got {tensor.shape[-1]} for {owner}; use one encoder for "
            f"all, and FewShotClassifier() for an encoder without a trained head"
        )
    if not (tensor.abs() <= limits.MAX_EMBEDDING_VALUE).all():  # false for NaN
        raise SightlineError(
            f"embeddings must be finite and at most {limits.MAX_EMBEDDING_VALUE:g}, got another value in {owner}; "
            f"leave it out"
        )
    return tensor.contiguous()
