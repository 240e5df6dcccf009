"""How good an image classifier is, and how sure it should be."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.images.datasets import at_once
from ...data.images.loading import Images, Progress
from ...data.images.streaming import stream
from ...training.task import Part

BINS = 15
"""Of confidence, for the calibration error."""
EVALUATED_AT_ONCE = 512
"""Images evaluate_on in one go, if they are small."""


def calibration_scale(
    model: nn.Module, images: Images, device: torch.device, workers: int = 2, most: int = EVALUATED_AT_ONCE
) -> float:
    """What to multiply the model's logits by so that it is as sure as it should be on these images."""
    logits, labels = [], []
    orders = torch.arange(len(images)).split(at_once(images, most))
    for pixels, own in stream(images, iter(orders), workers, device):
        logits.append(model(pixels.float() / 255).double())
        labels.append(own)
    return fit_calibration_scale([(torch.cat(logits), torch.cat(labels))])


def fit_calibration_scale(asked: Sequence[tuple[Tensor, Tensor]]) -> float:
    """What to multiply logits (N, classes) by for the likeliest labels (N,), over several such sets, 1/20 to 20.

    Labels are softened as if one more had been seen in each set, of no class in particular, so that a set on which all
    is right does not ask for certainty.
    """
    softened = []
    for logits, labels in asked:
        targets = F.one_hot(labels, logits.shape[1]).double()
        count, classes = targets.shape
        softened.append((logits, (count * targets + 1 / classes) / (count + 1)))

    def loss(x: float) -> float:
        return sum(-float((wanted * (math.exp(x) * logits).log_softmax(-1)).sum()) for logits, wanted in softened)

    return least(loss)


def least(loss: Callable[[float], float]) -> float:
    """Where a convex loss of the logarithm of a factor is least, 1/20 to 20."""
    low, high = math.log(1 / 20), math.log(20)
    for _ in range(60):  # a third can be left at every turn
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) < loss(high - third) else (low + third, high)
    return math.exp((low + high) / 2)


def tally(
    model: nn.Module,
    images: Images,
    part: Part,
    device: torch.device,
    workers: int = 2,
    most: int = EVALUATED_AT_ONCE,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """What there is to count over the part of a set that belongs here, at most so many images at a time.

    Every process makes the same number of calls, for a model that is shared out needs all of them at each; where the
    images do not divide evenly the last one is looked at again and not counted.
    """
    count = len(images)
    own = torch.arange(part.rank, -(-count // part.world) * part.world, part.world)
    real = (own < count).to(device)
    own = own.clamp_max(count - 1).to(images.labels.device)
    sums = {
        "loss": torch.zeros((), dtype=torch.float64, device=device),
        "right": torch.zeros(len(images.classes), dtype=torch.float64, device=device),
        "seen": torch.zeros(len(images.classes), dtype=torch.float64, device=device),
        "sure": torch.zeros(BINS, dtype=torch.float64, device=device),
        "sure_right": torch.zeros(BINS, dtype=torch.float64, device=device),
    }
    size, done = at_once(images, most), 0
    for (pixels, labels), counts in zip(
        stream(images, iter(own.split(size)), workers, device), real.split(size), strict=True
    ):
        logits = model(pixels.float() / 255).float()
        shares, answers = logits.softmax(-1).double().max(-1)
        counted, right = counts.double(), (answers == labels) * counts.double()
        sums["loss"] += (F.cross_entropy(logits, labels, reduction="none").double() * counted).sum()
        sums["right"].index_add_(0, labels, right)
        sums["seen"].index_add_(0, labels, counted)
        bins = (shares * BINS).long().clamp_max(BINS - 1)
        sums["sure"].index_add_(0, bins, shares * counted)
        sums["sure_right"].index_add_(0, bins, right)
        done += len(labels)
        if progress:
            progress(done, len(own))
    return sums


def metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """Accuracy, loss and how far confidence is from the truth, from what was counted."""
    seen = float(sums["seen"].sum())
    return {
        "accuracy": float(sums["right"].sum()) / seen,
        "loss": float(sums["loss"]) / seen,
        "calibration_error": float((sums["sure"] - sums["sure_right"]).abs().sum()) / seen,
    }
