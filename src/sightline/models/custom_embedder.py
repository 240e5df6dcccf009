"""Any torch module or callable as the image encoder of a few-shot classifier.

Shapes: B batch, C channels, T tokens per image, M embedding dimension.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from .. import limits
from ..errors import SightlineError, check, check_choice, check_int, check_max
from .image_encoders import BATCH_SIZES
from .preprocessing import is_number

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the pixels of ImageNet, from 0 to 1, as most models of torchvision and timm expect."""
MAX_BATCH_DIFFERENCE = 0.05
"""Relative difference of the embeddings of one image in two batches, from which on an embedder is refused."""


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

    num_views = 1

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

    def embed_view(self, pixels: Tensor) -> Tensor:
        """As `embed`; an image has one view."""
        return self.embed(pixels)

    def feature_maps(self, pixels: Tensor) -> None:
        """None: how the embedding follows from a feature map is unknown."""

    def embed_small(self, pixels: Tensor) -> None:
        """None: the function may take one size of images only."""

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


def _per_channel(channels: int, **values: float | Sequence[float]) -> tuple[float, ...]:
    """One number for each channel; the name of the argument is that of the value."""
    [(name, value)] = values.items()
    numbers = tuple(value) if isinstance(value, Sequence) else (value,) * channels
    is_valid = len(numbers) == channels and all(map(is_number, numbers))
    check(is_valid, f"{name} must be one number or {channels}, one for each channel, got {value!r}")
    return numbers
