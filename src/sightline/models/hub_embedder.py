"""Vision models of Hugging Face as embedders: ViT, DINOv2, CLIP, SigLIP, Swin, ResNet, ConvNeXt and their kin.

What an image must look like is read from the files of the model; neither torchvision nor an image processor is needed.
Legend for all shapes: B batch, C channels, P places of the grid, M model embed_dim.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import limits
from ..errors import SightlineError, check_int, check_max
from ..files import read_json
from .embedders import Embedder

PATTERNS = ("config.json", "preprocessor_config.json", "processor_config.json", "model*.safetensors", "model*.json")
"""What of a model is taken from the hub."""


class HubEmbedder(Embedder):
    """A folder of a model, or its `owner/name` on the hub.

    Its places are the patches, without the class token. The whole is what the model pools, where that has learned
    something; else the class token; else the mean of the places. A pooling layer that ends in a tanh, as ViT's, is left
    out: most checkpoints come without its weights.
    """

    def __init__(self, name: str | Path):
        folder = _folder(name)
        model, config, self.pools = _opened(folder)
        self.form = Form.read(folder, config)
        tokens = _probe(str(name), model.eval(), self.form)
        embed_dim, grid, self.skip = _grid(str(name), tokens, self.form.size, getattr(config, "patch_size", None))
        super().__init__(
            model,
            name=str(name),
            image_size=self.form.size,
            channels=self.form.channels,
            mean=self.form.mean,
            std=self.form.std,
            embed_dim=embed_dim,
            grid=grid,
        )

    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.model(pixel_values=images.flip(1) if self.form.flips else images)
        parts: Tensor = seen.last_hidden_state
        if parts.dim() == 4:
            parts = parts.flatten(2).mT
        pooled = getattr(seen, "pooler_output", None) if self.pools else None
        if pooled is not None and pooled.flatten(1).shape[1] == self.embed_dim:
            whole = pooled.flatten(1)
        else:
            whole = parts[:, 0] if self.skip else parts.mean(1)
        return parts[:, self.skip :], whole


@dataclass(frozen=True)
class Form:
    """What an image must look like."""

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool
    """Whether blue comes first."""

    @classmethod
    def read(cls, folder: Path, config: Any) -> "Form":
        """From the files of a model; means and deviations are of levels from 0 to 255."""
        found = _processor(folder)
        channels = getattr(config, "num_channels", 3)
        if channels not in (1, 3):
            raise SightlineError(f"a vision model must take 1 or 3 channels, got {channels!r} in {folder}")
        size = _side(found.get("crop_size")) if found.get("do_center_crop") else None
        size = size or _side(found.get("size")) or _side(getattr(config, "image_size", None))
        if size is None:
            raise SightlineError(f"a vision model must say how large its images are, got no square size in {folder}")
        check_int(1, image_size=size)
        check_max(limits.MAX_EMBEDDER_IMAGE_SIZE, image_size=size)
        factor = found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1.0
        if not _is_number(factor) or factor <= 0:
            raise SightlineError(f"rescale_factor must be a number above 0, got {factor!r} in {folder}")
        flips = bool(found.get("do_flip_channel_order"))
        mean, std = (0.0,) * channels, (1.0,) * channels
        if found.get("do_normalize", not flips):  # MobileViT, which flips, does not, and does not say so
            mean, std = (_levels(folder, name, found.get(name), channels) for name in ("image_mean", "image_std"))
        if min(std) <= 0:
            raise SightlineError(f"image_std must be above 0, got {std} in {folder}")
        return cls(
            size=size,
            channels=channels,
            mean=tuple((level + bool(found.get("rescale_offset"))) / factor for level in mean),
            std=tuple(level * (level if found.get("include_top") else 1) / factor for level in std),
            flips=flips,
        )


def _folder(name: str | Path) -> Path:
    if (folder := Path(name).expanduser()).is_dir():
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(PATTERNS)))
    except Exception as error:  # the hub's client raises many kinds; the user needs one
        raise SightlineError(
            f"an embedder must be a folder or a model on the hub, got {str(name)!r}: {error}"
        ) from error


def _opened(folder: Path) -> tuple[nn.Module, Any, bool]:
    """The model, its configuration, and whether what it pools is worth having."""
    try:
        import transformers
    except ImportError as error:
        raise SightlineError("a Hugging Face model must have transformers: pip install 'sightline[hub]'") from error
    try:
        with _quiet(transformers.utils.logging):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            config = getattr(config, "vision_config", config)  # of a pair with a text model, the half that sees
            model, report = transformers.AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises many kinds; the user needs one
        raise SightlineError(f"{folder} must hold a vision model of Hugging Face, got an error: {error}") from error
    missing = sorted(report["missing_keys"])
    if other := [name for name in missing if not name.startswith("pooler.")]:
        raise SightlineError(f"{folder} must hold all weights of the model, got none for {other[0]}")
    return model, config, not missing and not hasattr(config, "pooler_act")


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """That a model's text half or its classifier stays behind is meant, and no news."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _probe(name: str, model: nn.Module, form: Form) -> Tensor:
    """What the model gives for one image; the image goes in twice, to find out a model that draws by lot."""
    image = torch.linspace(-1, 1, form.channels * form.size**2).view(1, form.channels, form.size, form.size)
    try:
        with torch.no_grad():
            tokens: Tensor = model(pixel_values=image.expand(2, -1, -1, -1)).last_hidden_state
    except Exception as error:  # a model from outside fails in its own words
        raise SightlineError(f"{name} must take images of {form.size} x {form.size}, got an error: {error}") from error
    if not torch.allclose(tokens[0], tokens[1], rtol=1e-3, atol=1e-3):
        raise SightlineError(
            f"{name} must see the same in the same image, got two answers; does it hide patches by lot?"
        )
    return tokens


def _grid(name: str, tokens: Tensor, size: int, patch: object) -> tuple[int, tuple[int, int], int]:
    """The embed_dim, the grid, and how many tokens come before it: a class token, registers."""
    if tokens.dim() == 4:  # (B, M, height, width)
        return tokens.shape[1], (tokens.shape[2], tokens.shape[3]), 0
    if tokens.dim() == 3:
        count, embed_dim = tokens.shape[1:]
        side = size // patch if isinstance(patch, int) and patch > 0 else 0
        if 0 < side * side <= count:
            return embed_dim, (side, side), count - side * side
        for before in (0, 1):  # patches were merged on the way
            side = math.isqrt(count - before)
            if 0 < side * side == count - before:
                return embed_dim, (side, side), before
    raise SightlineError(f"{name} must give a square grid of places, got {tuple(tokens.shape)}")


def _processor(folder: Path) -> dict[str, Any]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := folder / name).is_file():
            found = read_json(path)
            found = found.get("image_processor", found) if isinstance(found, dict) else found
            if isinstance(found, dict):
                return found
    raise SightlineError(
        f"a vision model must say what its images look like, got no preprocessor_config.json in {folder}; "
        "save its image processor beside it"
    )


def _side(size: Any) -> int | None:
    """The side of a square, in any of the ways these files have of writing it."""
    if isinstance(size, dict):
        size = size.get("shortest_edge") or (size.get("height"), size.get("width"))
    if isinstance(size, list | tuple):
        size = size[0] if len(size) == 2 and size[0] == size[1] else None
    return size if isinstance(size, int) else None


def _levels(folder: Path, name: str, levels: Any, channels: int) -> tuple[float, ...]:
    levels = levels if isinstance(levels, list) else [levels] * channels
    if len(levels) != channels or not all(_is_number(level) for level in levels):
        raise SightlineError(f"{name} must be {channels} numbers, got {levels!r} in {folder}")
    return tuple(levels)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
