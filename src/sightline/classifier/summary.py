"""What is known about a fitted model before it is used: a summary, plain values, and a check of its accuracy.

`noun` is what one example is, image or text.
"""

from collections.abc import Sequence
from math import fsum
from typing import Any

from .. import config
from ..errors import check
from ..names import shortened
from .calibration import MIN_ESTIMATE_IMAGES
from .fitted import Fitted
from .predictions import Estimate

MAX_LISTED_CLASSES = 3
CHANCE_ERRORS = 2.0
"""Standard errors above chance from which on an accuracy is better than by chance."""


def summarize(fitted: Fitted, estimate: Estimate | None, noun: str, model: Any = None) -> str:
    """A few lines: the classes, the expected accuracy and the calibration.

    `estimate` is None if at most one class has several examples. `model` is the choice of the model, if there was one.
    """
    calibration, counts = fitted.calibration, fitted.support.counts
    low, high = int(counts.min()), int(counts.max())
    per_class = f"{low}" if low == high else f"{low} to {high}"
    lines = [f"{len(counts):,} classes, {len(fitted.support):,} examples ({per_class} per class)"]
    lines += [f"model       {model}"] if model is not None else []
    lines.append(f"method      {fitted.choice.describe(fitted.support, noun, fitted.method)}")
    if estimate is None:
        reason = f"one {noun} per class" if high == 1 else f"only one class has several {noun}s"
        lines.append(f"estimated   accuracy unknown: {reason}; add a second {noun} of other classes")
    else:
        lone = [name for name, count in zip(fitted.support.classes, counts, strict=True) if count == 1]
        lines.append(f"estimated   {estimate.describe(noun)}")
        lines += [f"            not estimated for classes of one {noun}: {_listed(lone)}"] if lone else []
        worst = [f"{name} {accuracy:.0%}" for name, accuracy in estimate.per_class.items() if accuracy < 1]
        lines += [f"lowest      {_listed(worst)}"] if worst else []
    copies = f"augmented copies of the {noun}s"
    single = f"{'data' if noun == 'text' else 'image'} sets of many kinds" if fitted.head.has_regression else copies
    source = single if estimate is None else f"held-out {noun}s"
    lines.append(f"confidence  logits scaled by {calibration.scale:.2f}, calibrated on {source}")
    unknowns = f"against unknowns: {len(fitted.support):,} examples, each class left out in turn"
    has_enough = fitted.num_held_out >= MIN_ESTIMATE_IMAGES
    area = f"AUROC {calibration.auroc:.3f} {unknowns}" if has_enough else f"too few {noun}s to estimate the AUROC"
    lines.append(f"unknown     {area}")
    if calibration.rejected_known is not None:  # None in files of earlier versions
        lines.append(f"rejection   {calibration.rejection(fitted.num_held_out, noun)}")
    return "\n".join(lines)


def plain_calibration(fitted: Fitted) -> dict[str, Any]:
    """The calibration as plain values.

    Rates that are estimated on fewer than `MIN_ESTIMATE_IMAGES` held-out examples are None.
    """
    values = config.plain(fitted.calibration) | {"held_out_examples": fitted.num_held_out}
    if fitted.num_held_out < MIN_ESTIMATE_IMAGES:
        values |= dict.fromkeys(("auroc", "rejected_known", "accepted_unknown"))
    return values


def check_above_chance(estimate: Estimate, num_classes: int, noun: str, fix: str) -> None:
    """Raise SightlineError if held-out examples are not classified better than by chance.

    The mean accuracy of the classes, which can differ in size, must be two standard errors above it.
    """
    chance, counts = 1 / num_classes, estimate.counts
    accuracy = fsum(estimate.per_class.values()) / len(counts)
    error = (chance * (1 - chance) * fsum(1 / count for count in counts.values())) ** 0.5 / len(counts)
    source = "labels" if noun == "text" else "folders"
    minimum = min(chance + CHANCE_ERRORS * error, 1.0)
    above = f"at least {minimum:.1%}, {CHANCE_ERRORS:.0f} standard errors above chance ({chance:.1%})"
    rule = f"the accuracy on held-out {noun}s, averaged over classes, must be {above}"
    fix = f"check the {source}, add {noun}s of each class, {fix}"
    check(accuracy >= minimum, f"{rule}, got {accuracy:.1%} on {estimate.images:,} {noun}s; {fix}")


def _listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - MAX_LISTED_CLASSES
    listed = ", ".join(shortened(name, 40) for name in names[:MAX_LISTED_CLASSES])
    return listed + (f" and {more} more" if more > 0 else "")
