"""Warnings about examples that are added to a classifier and repeat others."""

import hashlib
import warnings

import torch
import torch.nn.functional as F

from ..data.images.checks import MAX_COMPARED, MAX_LISTED, SIDE, Finding, Thumbnails, image_findings
from ..errors import SightlineWarning
from .support import SupportSet
from .texts import duplicate_findings


def warn_repeated(before: SupportSet, after: SupportSet, *, are_texts: bool) -> None:
    """Warn of duplicates, and of blank images, that a support set has after a change and did not have before."""
    known = frozenset(_findings(before, are_texts))
    found = [finding for finding in _findings(after, are_texts) if finding not in known]
    more = [f"{len(found) - MAX_LISTED:,} more duplicates"] if len(found) > MAX_LISTED else []
    for text in [*(f"{finding.kind}: {finding.text}" for finding in found[:MAX_LISTED]), *more]:
        warnings.warn(text, SightlineWarning, stacklevel=3)


def _findings(support: SupportSet, are_texts: bool) -> list[Finding]:
    """Findings about texts, or about at most `MAX_COMPARED` images; none about embeddings."""
    classes = [support.classes[i] for i in support.labels.tolist()]
    if are_texts:
        return duplicate_findings(support.names, classes)
    if support.images is None or len(support) > MAX_COMPARED:
        return []
    thumbnails = F.interpolate(support.images.float().mean(1, keepdim=True), (SIDE, SIDE), mode="area")[:, 0]
    return image_findings(
        Thumbnails(
            names=tuple(f"{label}/{name}" for label, name in zip(classes, support.names, strict=True)),
            classes=tuple(classes),
            splits=("train",) * len(support),
            pixels=thumbnails.round().to(torch.uint8),
            digests=tuple(hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in support.images),
            errors=(),
            total=len(support),
        )
    )
