"""Comparison of image classifiers on identical images."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ...comparison import Comparison, Table
from ...data.images.datasets import Images
from ...errors import SightlineError, check
from ...metrics import (
    classification_metrics,
    classification_sums,
    mcnemar_p_value,
    mean_interval,
    update_classification_sums,
    wilson_interval,
)
from ...names import printable
from ...predictor import SPLIT_NOTES, Progress
from .evaluate import logits_and_labels
from .predictor import ImageClassificationPredictor


@dataclass(frozen=True)
class ImageResult:
    """The metrics of one model, and its difference to the first model on the same images."""

    name: str
    accuracy: float
    interval: tuple[float, float]
    """95% Wilson interval of the accuracy."""
    loss: float
    calibration_error: float
    difference: float
    """Difference of the accuracies."""
    difference_interval: tuple[float, float]
    """95% interval of the paired difference."""
    only_right: int
    """Images that this model classifies correctly and the first one does not."""
    only_wrong: int
    """Images that the first model classifies correctly and this one does not."""
    p_value: float
    """Of McNemar's exact test."""


@dataclass(frozen=True)
class ImageComparison(Comparison):
    """Image classifiers on identical images."""

    split: str
    images: int
    results: tuple[ImageResult, ...]

    def title(self) -> str:
        note = SPLIT_NOTES.get(self.split, "")
        difference = "the paired difference to the first model in percentage points with its 95% interval"
        return (
            f"{self.split} set, the same {self.images:,} images for all models{note}; accuracy with its 95% interval, "
            f"{difference}, and the p-value of McNemar's test"
        )

    def table(self) -> Table:
        rows = [["", "accuracy", "95% interval", "loss", "calibration error", "difference", "95% interval", "p-value"]]
        for i, result in enumerate(self.results):
            (low, high), (lower, upper) = result.interval, result.difference_interval
            paired = [
                f"{100 * result.difference:+.2f}", f"{100 * lower:+.2f} to {100 * upper:+.2f}", f"{result.p_value:.2g}"
            ]  # fmt: skip
            metrics = [f"{result.accuracy:.2%}", f"{low:.2%} to {high:.2%}", f"{result.loss:.4f}"]
            metrics.append(f"{result.calibration_error:.4f}")
            rows.append([printable(result.name), *metrics, *(paired if i else [""] * 3)])
        return rows

    def to_records(self) -> list[dict[str, Any]]:
        """One record for each model. The reference has no difference."""
        paired = ("difference", "difference_interval", "only_right", "only_wrong", "p_value")
        records = []
        for i, result in enumerate(self.results):
            values = asdict(result)
            values |= {} if i else dict.fromkeys(paired)
            records.append({**values, "split": self.split, "images": self.images})
        return records


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
    reference = outputs[0][0].argmax(-1) == outputs[0][1]
    results = [_result(name, *output, reference) for name, output in zip(names, outputs, strict=True)]
    return ImageComparison(split=split, images=len(reference), results=tuple(results), seconds=seconds)


def _result(name: str, logits: Tensor, labels: Tensor, reference: Tensor) -> ImageResult:
    sums = classification_sums(logits.shape[1], torch.device("cpu"))
    correct = update_classification_sums(sums, logits, labels) > 0
    only_right, only_wrong = int((correct & ~reference).sum()), int((reference & ~correct).sum())
    difference, margin = mean_interval(correct.double() - reference.double())
    return ImageResult(
        name=name,
        interval=wilson_interval(int(correct.sum()), len(correct)),
        difference=difference,
        difference_interval=(difference - margin, difference + margin),
        only_right=only_right,
        only_wrong=only_wrong,
        p_value=mcnemar_p_value(only_right, only_wrong),
        **classification_metrics(sums),
    )


def _check_same_images(first: Sequence[Images], images: Sequence[Images], first_name: str, name: str) -> None:
    rule = "runs must be evaluated on the same images to be compared"
    if first[0].classes != images[0].classes:
        differing = sorted(set(first[0].classes) ^ set(images[0].classes))
        got = f"the class {differing[0]!r} in only one of {first_name} and {name}" if differing else "another order"
        raise SightlineError(f"{rule}, got {got}; pass --data PATH")
    labels = [[labels for part in sets for labels in part.labels.tolist()] for sets in (first, images)]
    check(labels[0] == labels[1], f"{rule}, got others for {name} than for {first_name}; pass --data PATH")
