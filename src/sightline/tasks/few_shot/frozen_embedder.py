"""Learning a head on another model's embeddings: each image is looked at once, and never again.

Legend for all shapes: I images, E episodes, K images of an episode, P tokens of an image, M model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ... import limits, seeds
from ...data.images import augmentation as augment
from ...data.images.augmentation import Augment
from ...data.images.class_splits import ClassSplits
from ...data.images.loading import Progress
from ...errors import SightlineError, check_int, check_max
from ...models.embedders import Embedder, embedder
from ...models.few_shot import FewShotConfig
from ...training.device import choose_device
from .micro_batches import Shown

if TYPE_CHECKING:
    from .config import FewShotTaskConfig

AT_ONCE = {"cpu": 64, "cuda": 1024}
"""Images looked at between two words of progress."""


def check_embedder(recipe: "FewShotTaskConfig") -> None:
    """Whether what a recipe says of an embedder fits together."""
    data, backbone = recipe.data, recipe.model.backbone
    check_int(0, **{"data.copies": data.copies})
    check_max(limits.MAX_AUGMENTED_COPIES, **{"data.copies": data.copies})
    if data.embedder is None and (data.weights is not None or data.copies):
        raise SightlineError("data.weights and data.copies must be left out where there is no data.embedder, got some")
    if (data.embedder is None) == (backbone == "none"):
        raise SightlineError(
            f"model.backbone must be none with a data.embedder, and only then, got {backbone!r} and {data.embedder!r}"
        )
    if data.embedder is not None and (data.copies > 0) != (recipe.augment != Augment()):
        raise SightlineError(
            f"augment must say how the copies of an image differ, and only that, got {data.copies} data.copies; "
            f"set both or neither"
        )


class Frozen:
    """A model from elsewhere that learns no more, and the tokens that a head takes of it."""

    def __init__(self, name: str, weights: str | None, form: FewShotConfig):
        self.embedder: Embedder = embedder(name, weights=weights)
        self.tokens = form.tokens
        if form.embed_dim != self.embedder.embed_dim:
            raise SightlineError(
                f"model.embed_dim must be {self.embedder.embed_dim}, the dimension of the embeddings of {name}, got {form.embed_dim}"
            )

    @classmethod
    def of(cls, recipe: "FewShotTaskConfig") -> "Frozen | None":
        """That of a recipe, if it has one."""
        data = recipe.data
        return None if data.embedder is None else cls(data.embedder, data.weights, recipe.model)

    def look(self, pixels: Tensor) -> Tensor:
        """uint8 (B, C, size, size) -> float32 (B, P, M), where the embedder is; any size, and gray for color"""
        if pixels.shape[1] == 1:
            pixels = pixels.expand(-1, self.embedder.channels, -1, -1)
        return self.embedder.embed(pixels) if self.tokens == "patches" else self.embedder.embed_pooled(pixels)[:, None]

    @torch.no_grad()
    def all(
        self,
        pixels: Tensor,
        device: torch.device,
        progress: Progress | None = None,
        *,
        change: Callable[[Tensor, slice], Tensor] = lambda some, rows: some,
    ) -> Tensor:
        """All images, some at a time, changed first: uint8 (I, C, size, size) -> float32 (I, P, M) on the device"""
        self.embedder.to(device)
        parts, size = [], AT_ONCE[device.type]
        for start in range(0, len(pixels), size):
            rows = slice(start, min(start + size, len(pixels)))
            parts.append(self.look(change(pixels[rows].to(device), rows)))
            if progress:
                progress(rows.stop, len(pixels))
        return torch.cat(parts)

    def bytes(self, images: int) -> int:
        """What so many take in half precision."""
        places = self.embedder.grid[0] * self.embedder.grid[1] if self.tokens == "patches" else 1
        return 2 * images * places * self.embedder.embed_dim


@dataclass(frozen=True, eq=False)
class Embedded:
    """What a task learns from and chooses by in place of images."""

    train: Tensor
    """float16 (1 + copies, I, P, M), the images as they are first."""
    labels: Tensor
    """(I,), of those."""
    validation: Tensor
    """float32 (I, P, M); empty where there is none."""

    @classmethod
    def of(
        cls, recipe: "FewShotTaskConfig", splits: ClassSplits, progress: Progress | None = None
    ) -> "Embedded | None":
        """All images of these parts as the embedder of a recipe sees them; nothing where it has none."""
        frozen, pixels, data_fingerprint = Frozen.of(recipe), splits.train.pixels, splits.validation
        if frozen is None:
            return None
        copies = recipe.data.copies
        if (total := frozen.bytes((1 + copies) * len(pixels))) > limits.MAX_EMBEDDINGS_BYTES:
            raise SightlineError(
                f"embeddings must take at most {limits.MAX_EMBEDDINGS_BYTES:,} bytes of memory, got {total:,} for {len(pixels):,} "
                f"images and {copies} data.copies of each; lower data.copies, or take model.tokens=vector"
            )
        device = choose_device(recipe.training.device)
        found = [frozen.all(pixels, device, progress).half()]
        for number in range(copies):
            change = _change(recipe.augment, len(pixels), seed=recipe.seed, step=number)
            found.append(frozen.all(pixels, device, progress, change=change).half())
        train = torch.stack(found)
        if not train.isfinite().all():
            raise SightlineError(f"embeddings must be finite in half precision, got others from {frozen.embedder.name}")
        seen = torch.empty(0) if data_fingerprint is None else frozen.all(data_fingerprint.pixels, device, progress)
        return cls(train, splits.train.labels, seen)

    def to(self, device: torch.device) -> "Embedded":
        """The same there."""
        return Embedded(*(tensor.to(device) for tensor in (self.train, self.labels, self.validation)))

    def shown(self, chosen: Tensor, rows: Sequence[slice], *, seed: int, step: int) -> Shown:
        """These rows of the images chosen for a step, (E, K), each as it is or as one of its copies."""
        random = seeds.make_generator(seed, seeds.AUGMENTATION, step, 1)  # without the 1 it is that of the copies themselves
        which = random.integers(len(self.train), size=tuple(chosen.shape))
        copies = torch.from_numpy(which).to(chosen.device)
        return [(self.train[copies[some], chosen[some]].float(), self.labels[chosen[some]].flatten()) for some in rows]


def _change(how: Augment, count: int, *, seed: int, step: int) -> Callable[[Tensor, slice], Tensor]:
    """Pixels to pixels, each image in a way of its own."""
    draws = augment.draw(how, count, seed=seed, step=step)

    def changed(pixels: Tensor, rows: slice) -> Tensor:
        labels = torch.zeros(len(pixels), dtype=torch.long)
        images, _ = augment.apply(how, pixels, labels, 1, draws.rows(rows).to(pixels.device))
        return (images * 255).round().to(torch.uint8)

    return changed
