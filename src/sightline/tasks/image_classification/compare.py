"""Comparison of image classifiers on identical images."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...data.images.datasets import Images
from ...errors import SightlineError, check
from ...predictor import Progress
from ..classification import ClassifierComparison, classifier_results
from .evaluate import logits_and_labels
from .predictor import ImageClassificationPredictor


@dataclass(frozen=True, kw_only=True)
class ImageComparison(ClassifierComparison):
    """Image classifiers on identical images."""

    noun = "images"
    images: int


def compare(
    predictors: Sequence[ImageClassificationPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> ImageComparison:
    """Evaluate image classifiers on the test images of their data, or of `data`."""
    outputs, seconds, split = list[tuple[Tensor, Tensor]](), dict[str, float](), ""
    first: list[Images] = []
    for i, (name, predictor) in enumerate(zip(names, predictors, strict=True)):
        start = time.perf_counter()
        sets, own_split = predictor.evaluation_split(data)
        if not first:
            first, split = sets, own_split
        _check_same_images(first, sets, names[0], name)
        options: dict[str, Any] = {"device": predictor.device, **predictor.config.evaluation_options()}
        with torch.inference_mode():
            parts = [logits_and_labels(predictor.model, images, **options) for images in sets]
        logits, labels = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
        outputs.append((logits, labels))
        seconds[name] = time.perf_counter() - start
        if progress is not None:
            progress(i + 1, len(predictors))
    results = classifier_results(names, outputs)
    return ImageComparison(split=split, images=len(outputs[0][1]), results=results, seconds=seconds)


def _check_same_images(first: Sequence[Images], images: Sequence[Images], first_name: str, name: str) -> None:
    rule = "runs must be evaluated on the same images to be compared"
    if first[0].classes != images[0].classes:
        differing = sorted(set(first[0].classes) ^ set(images[0].classes))
        got = f"the class {differing[0]!r} in only one of {first_name} and {name}" if differing else "another order"
        raise SightlineError(f"{rule}, got {got}; pass --data PATH")
    labels = [[labels for part in sets for labels in part.labels.tolist()] for sets in (first, images)]
    check(labels[0] == labels[1], f"{rule}, got others for {name} than for {first_name}; pass --data PATH")
