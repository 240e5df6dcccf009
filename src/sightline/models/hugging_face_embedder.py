"""Vision models of Hugging Face as image encoders.

Shapes: B batch, C channels, T tokens per image, M embedding dimension.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import hub
from ..errors import MissingDependencyError, SightlineError, check, reraise
from .image_encoders import Embedder
from .preprocessing import Preprocessing

HUGGING_FACE_FILES = ("config.json", "*processor_config.json", "model*.safetensors", "model*.json")
"""Files of a Hugging Face model that are downloaded."""


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
