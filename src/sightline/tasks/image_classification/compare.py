"""Comparison of image classifiers on identical images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...comparison import check_same_data, evaluate_each
from ...data.images.datasets import Images
from ...errors import SightlineError
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
    first, splits = list[Images](), list[str]()

    def outputs_of(name: str, predictor: ImageClassificationPredictor) -> tuple[Tensor, Tensor]:
        sets, split = predictor.evaluation_split(data)
        splits.append(split)
        first.extend([] if first else sets)
        _check_same_images(first, sets, names[0], name)
        options: dict[str, Any] = {"device": predictor.device, **predictor.config.evaluation_options()}
        with torch.inference_mode():
            parts = [logits_and_labels(predictor.model, images, **options) for images in sets]
        logits, labels = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
        return logits, labels

    outputs, seconds = evaluate_each(predictors, names, outputs_of, progress)
    results = classifier_results(names, outputs)
    return ImageComparison(split=splits[0], images=len(outputs[0][1]), results=results, seconds=seconds)


def _check_same_images(first: Sequence[Images], images: Sequence[Images], first_name: str, name: str) -> None:
    if first[0].classes != images[0].classes:
        differing = sorted(set(first[0].classes) ^ set(images[0].classes))
        got = f"the class {differing[0]!r} in only one of {first_name} and {name}" if differing else "another order"
        raise SightlineError(f"runs must be evaluated on the same images to be compared, got {got}; pass --data PATH")
    labels = [[labels for part in sets for labels in part.labels.tolist()] for sets in (first, images)]
    check_same_data(labels[0] == labels[1], "images", name, first_name)
