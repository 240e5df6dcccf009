"""Warnings about examples that are added to a classifier and repeat others."""

import hashlib
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.images.checks import MAX_COMPARED, MAX_LISTED, SIDE, Finding, Thumbnails, are_blank, image_findings
from ..errors import SightlineWarning
from .support import SupportSet
from .texts import duplicate_findings

IMAGES_PER_BATCH = 64
"""Images that are reduced to thumbnails at once."""


def warn_repeated(before: SupportSet, after: SupportSet, *, are_texts: bool) -> None:
    """Warn of duplicates, and of blank images, that a support set has after examples were added to it.

    Embeddings are not compared, nor are images if there are more than `MAX_COMPARED`.
    """
    if not are_texts and (after.images is None or len(after) > MAX_COMPARED):
        return
    find = _find_texts(after) if are_texts else _find_images(after)
    known = {*find(_old_rows(before, after))}
    found = [finding for finding in find(range(len(after))) if finding not in known]
    more = [f"{len(found) - MAX_LISTED:,} more findings"] if len(found) > MAX_LISTED else []
    for text in [*(f"{finding.kind}: {finding.text}" for finding in found[:MAX_LISTED]), *more]:
        warnings.warn(text, SightlineWarning, stacklevel=3)


def _old_rows(before: SupportSet, after: SupportSet) -> list[int]:
    """The rows of `after` that are those of `before`: the first ones of each class."""
    counts = dict(zip(before.classes, before.labels.bincount().tolist(), strict=True))
    rows = [(after.labels == i).nonzero().flatten()[: counts.get(name, 0)] for i, name in enumerate(after.classes)]
    return torch.cat(rows).tolist()


def _find_texts(support: SupportSet) -> Callable[[Sequence[int]], list[Finding]]:
    classes = _class_names(support)
    return lambda rows: duplicate_findings([support.names[i] for i in rows], [classes[i] for i in rows])


def _find_images(support: SupportSet) -> Callable[[Sequence[int]], list[Finding]]:
    assert support.images is not None
    classes = _class_names(support)
    thumbnails = Thumbnails(
        names=tuple(f"{label}/{name}" for label, name in zip(classes, support.names, strict=True)),
        classes=tuple(classes),
        splits=("train",) * len(support),
        pixels=torch.cat([_reduced(images) for images in support.images.split(IMAGES_PER_BATCH)]),
        is_blank=torch.cat([are_blank(images) for images in support.images.split(IMAGES_PER_BATCH)]),
        digests=tuple(hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in support.images),
        errors=(),
        total=len(support),
    )
    return lambda rows: image_findings(thumbnails.select(rows))


def _class_names(support: SupportSet) -> list[str]:
    return [support.classes[i] for i in support.labels.tolist()]


def _reduced(images: Tensor) -> Tensor:
    """Images uint8 (N, C, side, side) -> color thumbnails uint8 (N, 3, SIDE, SIDE)"""
    colors = images.expand(-1, 3, -1, -1).float()
    return F.interpolate(colors, (SIDE, SIDE), mode="area").round().to(torch.uint8)
