"""Metrics of classifiers: intervals, AUROC, calibration error and the scale that calibrates confidence.

Shapes: B batch, C classes.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

CONFIDENCE_BINS = 15
"""Bins of the expected calibration error."""
MAX_CALIBRATION_SCALE = 20.0
"""Calibration scales lie between its reciprocal and this value."""
Z95 = 1.96
"""Standard deviations of a 95% interval."""


def wilson_interval(correct: float, total: float) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion."""
    proportion, spread = correct / total, Z95 * Z95 / total
    center = (proportion + spread / 2) / (1 + spread)
    half = Z95 * (proportion * (1 - proportion) / total + spread / (4 * total)) ** 0.5 / (1 + spread)
    return max(0.0, center - half), min(1.0, center + half)


def mean_interval(values: Tensor) -> tuple[float, float]:
    """The mean of values (N,) and half the width of its 95% interval; the latter is NaN for one value."""
    std = float(values.double().std()) if len(values) > 1 else math.nan
    return float(values.double().mean()), Z95 * std / math.sqrt(len(values))


def auroc(positive: Tensor, negative: Tensor) -> float:
    """The probability that one of positive (N,) exceeds one of negative (M,); a tie counts one half."""
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False).double()
    equal = torch.searchsorted(ordered, positive, right=True).double() - below
    return float(((below + equal / 2) / len(negative)).mean())


def mcnemar_p_value(first: int, second: int) -> float:
    """The two-sided p-value of McNemar's exact test: `first` pairs differ in one direction, `second` in the other."""
    total, smaller = first + second, min(first, second)
    log_terms = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) - total * math.log(2)
        for k in range(smaller + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, log_terms)))


def classification_sums(num_classes: int, device: torch.device) -> dict[str, Tensor]:
    """Empty sums for `update_classification_sums`; sums of several batches or processes are added."""
    sizes: dict[str, tuple[int, ...]] = {
        "loss": (),
        "correct": (num_classes,),
        "total": (num_classes,),
        "confidence": (CONFIDENCE_BINS,),
        "confident_correct": (CONFIDENCE_BINS,),
    }
    return {name: torch.zeros(size, dtype=torch.float64, device=device) for name, size in sizes.items()}


def update_classification_sums(
    sums: dict[str, Tensor], logits: Tensor, labels: Tensor, classes: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Add predictions to the sums and return whether each is correct (B,), as float64.

    logits (B, C), labels (B,). `classes` (B,) are the indices to count under where they differ from the labels, as in
    an episode. `mask` (B,) selects the rows that count.
    """
    classes = labels if classes is None else classes
    counted = torch.ones(len(labels), dtype=torch.float64, device=logits.device) if mask is None else mask.double()
    confidence, predicted = logits.softmax(-1).double().max(-1)
    correct = (predicted == labels) * counted
    bins = (confidence * CONFIDENCE_BINS).long().clamp_max(CONFIDENCE_BINS - 1)
    sums["loss"] += (F.cross_entropy(logits, labels, reduction="none").double() * counted).sum()
    sums["correct"].index_add_(0, classes, correct)
    sums["total"].index_add_(0, classes, counted)
    sums["confidence"].index_add_(0, bins, confidence * counted)
    sums["confident_correct"].index_add_(0, bins, correct)
    return correct


def classification_metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """Accuracy, mean loss and expected calibration error."""
    total = float(sums["total"].sum())
    return {
        "accuracy": float(sums["correct"].sum()) / total,
        "loss": float(sums["loss"]) / total,
        "calibration_error": float((sums["confidence"] - sums["confident_correct"]).abs().sum()) / total,
    }


def per_class_accuracy(sums: dict[str, Tensor], classes: Sequence[str]) -> dict[str, float]:
    """The accuracy of every class that has examples."""
    correct, total = sums["correct"].cpu(), sums["total"].cpu()
    return {name: float(correct[i] / total[i]) for i, name in enumerate(classes) if total[i] > 0}


def fit_calibration_scale(batches: Sequence[tuple[Tensor, Tensor]], *, prior_std: float | None = None) -> float:
    """The scale of the logits that minimizes the cross entropy: the reciprocal of a fitted temperature.

    `batches` are pairs of logits (B, C) and labels (B,). Without a prior, the targets of each batch are smoothed as if
    one more example with a uniform label had been observed, so that perfect accuracy does not ask for an infinite
    scale. With `prior_std`, the logarithm of the scale has a normal prior with mean 0 and this standard deviation.
    """
    targets = []
    for logits, labels in batches:
        one_hot = F.one_hot(labels, logits.shape[1]).double()
        count, num_classes = one_hot.shape
        smoothed = one_hot if prior_std is not None else (count * one_hot + 1 / num_classes) / (count + 1)
        targets.append((logits.double(), smoothed))

    def loss(log_scale: float) -> float:
        scale = math.exp(log_scale)
        total = sum(-float((target * (scale * logits).log_softmax(-1)).sum()) for logits, target in targets)
        return total if prior_std is None else total + (log_scale / prior_std) ** 2 / 2

    return math.exp(_ternary_search(loss, -math.log(MAX_CALIBRATION_SCALE), math.log(MAX_CALIBRATION_SCALE)))


def _ternary_search(loss: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a convex function."""
    for _ in range(60):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) < loss(high - third) else (low + third, high)
    return (low + high) / 2
