"""What a classifier is asked, embedded: what people bring, and moved copies of its own examples.

Legend for all shapes: n images, C channels, S side of an image, P tokens of an image, M model embed_dim.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.images import augmentation as augment
from ..data.images.augmentation import Augment
from ..errors import SightlineError
from .embedding import Embeds, finite
from .support import Support, pixels_of

MOVED = Augment(rotate=30, scale=0.35, translate=0.15, shear=30)
"""How copies of an image that is alone in its class are moved.

So far that they look as familiar to a trained model as the same character by another hand does, on held-out alphabets
of Omniglot's background set. Moved half as far, they set the threshold too high, and new images would be called
unknown.
"""
COPIES = 4
"""Of one image."""


def one_by_one(images: Any, support: Support) -> Sequence[Any] | None:
    """The images of a list or of an array with a batch; None where there is one image alone."""
    if isinstance(images, list | tuple):
        return images
    if isinstance(images, np.ndarray | Tensor):
        alone = 3 if support.pictures is not None else 1 if support.embeddings.shape[1] == 1 else 2
        several = images.ndim > alone
        return list(images) if several else None
    if isinstance(images, Mapping | set):
        raise SightlineError(f"images must be one or a list of them, got {type(images).__name__}")
    return None


def embedded(items: Sequence[Any], support: Support, embeds: Embeds | None) -> tuple[Tensor, Tensor | None]:
    """As the examples were: embeddings (n, P, M), and the pixels they were made of, uint8 (n, C, S, S)."""
    if support.pictures is not None:
        assert embeds is not None
        pixels = pixels_of(items, embeds)
        return _as_examples(embeds.embed(pixels).cpu(), support), pixels
    embed_dim = support.embeddings.shape[-1]
    try:
        stacked = torch.stack([torch.as_tensor(item).detach().cpu() for item in items])
    except (TypeError, ValueError, RuntimeError) as error:
        raise SightlineError(
            f"this classifier must be asked for embeddings of embed_dim {embed_dim}, as it was fitted, got "
            f"{'the path of a file' if isinstance(items[0], str | Path) else type(items[0]).__name__}"
        ) from error
    return _as_examples(finite(stacked, embed_dim, "what was asked"), support), None


def _as_examples(query: Tensor, support: Support) -> Tensor:
    places = support.embeddings.shape[1]
    if query.shape[1] != places:
        raise SightlineError(f"embeddings must have {places} tokens, as those of the examples, got {query.shape[1]}")
    return query


def moved_copies(embeds: Embeds | None, support: Support, rows: Tensor) -> Tensor | None:
    """Copies of these examples (n,), moved a little and embedded: (n, copies, P, M); None without pictures"""
    pictures = support.pictures
    if pictures is None or embeds is None or pictures.shape[-1] != embeds.image_size:
        return None
    pixels = pictures[rows].repeat_interleave(COPIES, 0)
    draws = augment.draw(MOVED, len(pixels), seed=0, step=0)
    moved, _ = augment.apply(MOVED, pixels, torch.zeros(len(pixels), dtype=torch.long), 1, draws)
    return embeds.embed((moved * 255).round().to(torch.uint8)).cpu().unflatten(0, (-1, COPIES))
