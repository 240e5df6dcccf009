"""What turns images into vectors for a classifier, and the head that was trained on them: by name or by folder.

Legend for all shapes: B batch, C channels, S side of an image, P tokens of an image, M model embed_dim.
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import config, limits, zoo
from ..errors import SightlineError, one_of
from ..files import CONFIG
from ..models.few_shot import FewShot, FewShotConfig
from ..weights import read_weights

if TYPE_CHECKING:
    from ..models.embedders import Embedder

AT_ONCE = {"cpu": 1, "cuda": 1024}
"""Images embedded in one go: on a CPU each alone, so that none depends on the others to the last bit."""


class Embeds(Protocol):
    """Images of one size in, tokens out."""

    @property
    def image_size(self) -> int:
        """The side of the images it takes."""

    @property
    def channels(self) -> int:
        """1 for gray, 3 for color."""

    def embed(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, S, S) -> float32 (B, P, M)"""


class Ours:
    """The backbone of a few-shot model."""

    def __init__(self, model: FewShot):
        assert model.config.image_size is not None
        assert model.config.channels is not None
        self.model, self.image_size, self.channels = model, model.config.image_size, model.config.channels
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.no_grad()
    def embed(self, pixels: Tensor) -> Tensor:
        where = self.model.head.calibration_scale.device
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        parts = [self.model.embed(some.to(where).float() / 255) for some in pixels.split(AT_ONCE[where.type])]
        return torch.cat(parts).float()


class Theirs:
    """A model from elsewhere, opened when it is first needed."""

    def __init__(self, name: str, model: FewShot, weights: str | None = None):
        self.name, self.model, self.weights = name, model, weights

    @cached_property
    def opened(self) -> "Embedder":
        """The model itself."""
        from ..models.embedders import embedder

        opened = embedder(self.name, weights=self.weights)
        if opened.embed_dim != self.model.embed_dim:
            raise SightlineError(
                f"the embedder {self.name!r} must give vectors of embed_dim {self.model.embed_dim}, as the head takes them, "
                f"got {opened.embed_dim}"
            )
        return opened

    @property
    def image_size(self) -> int:
        return self.opened.image_size

    @property
    def channels(self) -> int:
        return self.opened.channels

    @torch.no_grad()
    def embed(self, pixels: Tensor) -> Tensor:
        theirs = self.opened.to(self.model.head.calibration_scale.device)
        return theirs.embed(pixels) if self.model.config.tokens == "patches" else theirs.embed_pooled(pixels)[:, None]


def prototypes(embed_dim: int) -> FewShot:
    """A head that has learned nothing: a class is the mean of its examples, and an answer goes by angle."""
    return FewShot(FewShotConfig(backbone="none", embed_dim=embed_dim, depth=0, num_heads=1)).eval()


def opened(source: str | Path, weights: str | None = None) -> tuple[FewShot, str | None, str | None]:
    """A trained model by the folder of its run or its name in the zoo, or any embedder by name with a head that has
    learned nothing; beside it the name of the embedder, where that is not the model's own backbone, and the file of its
    weights, where they are not those it comes with."""
    folder = zoo.folder(source)
    if not (folder / CONFIG).is_file():
        return _outside(source, weights)
    values = config.read(folder / CONFIG)
    section = values.get("model")
    if not isinstance(section, dict) or "image_size" not in section or values.get("task", "few_shot") != "few_shot":
        raise SightlineError(
            f"a model to begin with must be a few-shot model, got {str(source)!r} of task {values.get('task')!r}; "
            f"train one with sightline train task=few_shot"
        )
    form = config.build(FewShotConfig, section, "model")
    model = read_weights(folder, lambda: FewShot(form), depth=form.depth)
    model.classifier, model.config = None, replace(form, num_classes=0)  # it was there to train by
    data = values.get("data") if form.backbone == "none" else None
    data = data if isinstance(data, dict) else {}
    return model.eval().float(), data.get("embedder"), data.get("weights") if weights is None else weights


def _outside(source: str | Path, weights: str | None) -> tuple[FewShot, str, str | None]:
    from ..models.embedders import EMBEDDERS, embedder

    name = str(source)
    try:
        theirs = embedder(name, weights=weights)
    except ValueError as error:
        if name in EMBEDDERS:
            raise
        ours = [one for one in zoo.names() if config.read(zoo.HOME / one / CONFIG)["task"] == "few_shot"]
        meant = "/" in name or Path(name).is_dir()
        raise SightlineError(
            f"a model must be the folder of a few-shot run, or of a Hugging Face vision model, its owner/name, or "
            f"{one_of(name, [*ours, *EMBEDDERS])}" + (f" ({error})" if meant else "")
        ) from error
    return prototypes(theirs.embed_dim), name, weights


def embeds(model: FewShot, name: str | None, weights: str | None = None) -> Embeds | None:
    """What makes embeddings for this model; None where they are brought."""
    if name is not None:
        return Theirs(name, model, weights)
    return None if model.backbone is None else Ours(model)


def finite(x: Tensor | np.ndarray[Any, Any], embed_dim: int | None, whose: str) -> Tensor:
    """Embeddings from outside as float32 (n, P, M), all of one embed_dim and finite."""
    numbers = x.dtype != torch.bool and not x.is_complex() if isinstance(x, Tensor) else x.dtype.kind in "iuf"
    if not numbers or x.ndim not in (2, 3) or 0 in x.shape:
        raise SightlineError(
            f"embeddings of {whose} must be numbers of shape (n, embed_dim) or (n, tokens, embed_dim), "
            f"got {x.dtype} of shape {tuple(x.shape)}"
        )
    with np.errstate(over="ignore"):
        tensor = x.detach().cpu().float() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float32))
    tensor = tensor[:, None] if tensor.dim() == 2 else tensor
    if embed_dim is not None and tensor.shape[-1] != embed_dim:
        raise SightlineError(
            f"embeddings must all have one embed_dim, {embed_dim}, got {tensor.shape[-1]} for {whose}; embed them with one "
            f"model, and begin with FewShotClassifier() where no head was trained for it"
        )
    if not (tensor.abs() <= limits.MAX_EMBEDDING_VALUE).all():  # NaN is refused too
        raise SightlineError(
            f"embeddings must be finite, and at most {limits.MAX_EMBEDDING_VALUE:g}, got NaN, infinity or more in {whose}; "
            f"leave that example out"
        )
    return tensor.contiguous()
