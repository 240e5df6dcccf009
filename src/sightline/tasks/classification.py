"""What classifiers share, whatever they classify: predictions, and their evaluation and comparison on labeled data."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..comparison import PairedComparison, PairedResult
from ..errors import check
from ..metrics import (
    classification_metrics,
    classification_sums,
    mcnemar_p_value,
    mean_interval,
    per_class_accuracy,
    update_classification_sums,
    wilson_interval,
)
from ..names import printable
from ..predictor import SPLIT_NOTES, Progress

DEFAULT_TOP = 3
"""Classes in the summary of a prediction."""
MAX_LISTED_CLASSES = 20
MAX_ACCURACY_DIFFERENCE = 0.005
"""Largest difference that `compare_precision` accepts."""


@dataclass(frozen=True)
class ClassPrediction:
    """The classes predicted for one input."""

    label: str
    confidence: float
    scores: dict[str, float]
    """The probability of each class, the most likely first."""

    @classmethod
    def from_probabilities(cls, classes: Sequence[str], probabilities: Tensor, **fields: Any) -> Self:
        """From the probability of each class, (C,), and the values of further fields."""
        order = probabilities.argsort(descending=True, stable=True).tolist()
        scores = {classes[i]: float(probabilities[i]) for i in order}
        label = classes[order[0]]
        return cls(label, scores[label], scores, **fields)

    def summary(self, top: int | None = None) -> str:
        best = list(self.scores.items())[: top or DEFAULT_TOP]
        return ", ".join(f"{printable(name)} {score:.1%}" for name, score in best)

    def __str__(self) -> str:
        return f"{printable(self.label)} ({self.confidence:.1%})"


@dataclass(frozen=True, kw_only=True)
class ClassifierEvaluation:
    """Metrics of a classifier on a labeled set. A subclass has a field named `noun`, the number of examples."""

    noun: ClassVar[str]
    """What is classified, in the plural."""

    split: str
    accuracy: float
    interval: tuple[float, float]
    """95% Wilson interval of the accuracy."""
    loss: float
    calibration_error: float
    per_class: dict[str, float]

    @classmethod
    def from_sums(cls, split: str, sums: dict[str, Tensor], classes: tuple[str, ...]) -> Self:
        """Metrics from `classification_sums`."""
        correct, total = float(sums["correct"].sum()), float(sums["total"].sum())
        values: dict[str, Any] = {"split": split, cls.noun: int(total), "interval": wilson_interval(correct, total)}
        values |= {"per_class": per_class_accuracy(sums, classes), **classification_metrics(sums)}
        return cls(**values)

    @property
    def examples(self) -> int:
        """The number of examples."""
        return int(getattr(self, self.noun))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        low, high = self.interval
        return (
            f"On the {self.split} set ({self.examples:,} {self.noun}{SPLIT_NOTES.get(self.split, '')}): "
            f"accuracy {self.accuracy:.2%} "
            f"(95% interval {low:.2%} to {high:.2%}), calibration error {self.calibration_error:.4f}."
        )

    def __str__(self) -> str:
        low, high = self.interval
        worst = sorted(self.per_class.items(), key=lambda pair: pair[1])[:MAX_LISTED_CLASSES]
        lines = [
            f"{self.split} set, {self.examples:,} {self.noun}{SPLIT_NOTES.get(self.split, '')}",
            f"accuracy           {self.accuracy:.2%}  (95% interval {low:.2%} to {high:.2%})",
            f"loss               {self.loss:.4f}",
            f"calibration error  {self.calibration_error:.4f}",
            "lowest accuracy by class",
            *(f"  {accuracy:7.2%}  {printable(name)}" for name, accuracy in worst),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class ClassifierResult(PairedResult):
    """The metrics of one classifier, and its difference of accuracy to the first one on the same examples."""

    accuracy: float
    interval: tuple[float, float]
    """95% Wilson interval of the accuracy."""
    loss: float
    calibration_error: float
    only_right: int
    """Examples that this model classifies correctly and the first one does not."""
    only_wrong: int
    """Examples that the first model classifies correctly and this one does not."""
    p_value: float
    """Of McNemar's exact test."""


@dataclass(frozen=True, kw_only=True)
class ClassifierComparison(PairedComparison):
    """Classifiers on identical examples. A subclass has a field named `noun`, the number of examples."""

    description = (
        "accuracy with its 95% interval, the paired difference to the first model in percentage points with its 95% "
        "interval, and the p-value of McNemar's test"
    )
    columns = ("accuracy", "95% interval", "loss", "calibration error")
    paired = ("difference", "difference_interval", "only_right", "only_wrong", "p_value")
    factor = 100.0
    split_notes = SPLIT_NOTES

    results: tuple[ClassifierResult, ...]

    def metrics(self, result: ClassifierResult) -> list[str]:
        low, high = result.interval
        values = [f"{result.accuracy:.2%}", f"{low:.2%} to {high:.2%}", f"{result.loss:.4f}"]
        return [*values, f"{result.calibration_error:.4f}"]


def classifier_results(names: Sequence[str], outputs: Sequence[tuple[Tensor, Tensor]]) -> tuple[ClassifierResult, ...]:
    """Results from the logits (N, C) and labels (N,) of each model on the same examples."""
    reference = outputs[0][0].argmax(-1) == outputs[0][1]
    return tuple(_result(name, *output, reference) for name, output in zip(names, outputs, strict=True))


def _result(name: str, logits: Tensor, labels: Tensor, reference: Tensor) -> ClassifierResult:
    sums = classification_sums(logits.shape[1], torch.device("cpu"))
    correct = update_classification_sums(sums, logits, labels) > 0
    only_right, only_wrong = int((correct & ~reference).sum()), int((reference & ~correct).sum())
    difference, margin = mean_interval(correct.double() - reference.double())
    return ClassifierResult(
        name=name,
        interval=wilson_interval(int(correct.sum()), len(correct)),
        difference=difference,
        difference_interval=(difference - margin, difference + margin),
        only_right=only_right,
        only_wrong=only_wrong,
        p_value=mcnemar_p_value(only_right, only_wrong),
        **classification_metrics(sums),
    )


def compare_precision(before: Any, after: Any, data: Any, progress: Progress | None = None) -> str:
    """Compare the accuracy before and after a conversion to half precision; raises SightlineError if it differs too
    much.
    """
    old, new = (predictor.evaluate(data, progress=progress) for predictor in (before, after))
    rule = f"accuracy in half precision must differ by at most {MAX_ACCURACY_DIFFERENCE}"
    got = f"{old.accuracy:.4f} before and {new.accuracy:.4f} after"
    check(abs(new.accuracy - old.accuracy) <= MAX_ACCURACY_DIFFERENCE, f"{rule}, got {got}")
    return f"accuracy {got}, over {old.examples:,} {old.noun} of the {old.split} set"
