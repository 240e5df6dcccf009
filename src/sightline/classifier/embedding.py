"""Image embedders of a classifier, and the models that classifiers are fitted with.

Shapes: B batch, C channels, T tokens per image, M embedding dimension.
"""

from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import config, hub, limits, zoo
from ..errors import MissingDependencyError, SightlineError, one_of
from ..files import CONFIG
from ..models.embedders import EMBEDDERS, Embedder, load_embedder
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


class ExternalEmbedder:
    """A pretrained encoder that is not part of the few-shot model. It is loaded on first use."""

    def __init__(self, name: str, model: FewShot, weights: str | None, *, allow_download: bool):
        self.name, self.model, self.weights, self.allow_download = name, model, weights, allow_download
        self.loaded: Embedder | None = None
        self._lock = Lock()

    @property
    def encoder(self) -> Embedder:
        """The encoder itself."""
        with self._lock:
            if self.loaded is None:
                encoder = load_embedder(self.name, weights=self.weights, allow_download=self.allow_download)
                if encoder.embed_dim != self.model.embed_dim:
                    raise SightlineError(
                        f"embed_dim of the embedder {self.name!r} must be {self.model.embed_dim}, as in the model, "
                        f"got {encoder.embed_dim}"
                    )
                self.loaded = encoder
            return self.loaded

    @property
    def image_size(self) -> int:
        return self.encoder.image_size

    @property
    def channels(self) -> int:
        return self.encoder.channels

    @torch.no_grad()
    def embed(self, pixels: Tensor) -> Tensor:
        encoder = self.encoder.to(self.model.head.calibration_scale.device)
        if self.model.config.tokens == "patches":
            return encoder.embed_patches(pixels)
        return encoder.embed_pooled(pixels)[:, None]


class BaseModel(NamedTuple):
    """A model that classifiers are fitted with."""

    model: FewShot
    embedder: str | None = None
    """Name of the external encoder; None if the model has a backbone or takes embeddings."""
    weights: str | None = None
    """Weight file of the external encoder; None for its default weights."""
    loaded: Embedder | None = None
    """The external encoder, if it is loaded already."""


def nearest_mean_model(embed_dim: int) -> FewShot:
    """A model without parameters: classification by cosine similarity to the class mean."""
    return FewShot(FewShotConfig(backbone="none", embed_dim=embed_dim, depth=0)).eval()


def load_base_model(source: str | Path, weights: str | None = None) -> BaseModel:
    """A few-shot model by the folder of its run, its name in the zoo or `hub:owner/name`, or an embedder by name.

    An embedder gets a nearest-mean model.
    """
    folder = zoo.folder(source)
    if not (folder / CONFIG).is_file():
        return _load_embedder_model(source, weights)
    values = config.read(folder / CONFIG)
    section = values.get("model")
    if not isinstance(section, dict) or "image_size" not in section or values.get("task", "few_shot") != "few_shot":
        raise SightlineError(
            f"model must be a few-shot model, got {str(source)!r} of task {values.get('task')!r}; train one with "
            f"sightline train task=few_shot"
        )
    model_config = config.build(FewShotConfig, section, "model")
    model = read_weights(folder, lambda: FewShot(model_config), depth=model_config.depth)
    model.classifier, model.config = None, replace(model_config, num_classes=0)  # only training needs it
    data = values.get("data") if model_config.backbone == "none" else None
    data = data if isinstance(data, dict) else {}
    return BaseModel(model.eval().float(), data.get("embedder"), data.get("weights") if weights is None else weights)


def _load_embedder_model(source: str | Path, weights: str | None) -> BaseModel:
    name = str(source)
    try:
        encoder = load_embedder(name, weights=weights)
    except MissingDependencyError:
        raise
    except SightlineError as error:
        if name in EMBEDDERS:
            raise
        pretrained = [model for model in zoo.names() if config.read(zoo.HOME / model / CONFIG)["task"] == "few_shot"]
        is_path = "/" in name or Path(name).is_dir() or hub.is_hub_name(name)
        raise SightlineError(
            f"model must be the folder of a few-shot run or of a Hugging Face vision model, hub:owner/name, or "
            f"{one_of(name, [*pretrained, *EMBEDDERS])}" + (f" ({error})" if is_path else "")
        ) from error
    return BaseModel(nearest_mean_model(encoder.embed_dim), name, weights, encoder)


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
