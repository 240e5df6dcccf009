"""The choice of a method by the user's own examples.

Every method classifies the support images while each is held out. The method with the largest log-likelihood is chosen,
where a prior counts in favor of methods that were best on average over data sets of many kinds. With one image per
class nothing can be held out, so the prior decides alone.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from ..config import Config, Positive, choice, rule
from ..metrics import fit_calibration_scale
from ..models.few_shot import FewShotHead
from .calibration import PRIOR_STD, HeldOut, encode, held_out_logits
from .methods import METHODS, available_methods, blend_members, blended, make_method
from .support import SupportSet

AUTO = "auto"
LOG_PRIOR = {"head": 0.0, "ridge": 0.0, "blend": 1.0, "logistic": -1.0, "prototypes": -2.0}
"""Log prior of each method, in units of the log-likelihood of all held-out images.

Selected on ten image sets of different kinds, each left out in turn.
"""
MAX_CHOICE_EXAMPLES = 2000
"""Examples up to which methods are compared; for more, and for more classes than `MAX_CHOICE_CLASSES`, the head."""
MAX_CHOICE_CLASSES = 200
MIN_TARGET = 1e-3
"""Weight of the uniform distribution in the probabilities, so that one image cannot decide."""

Method = Annotated[str, choice(METHODS)]


@dataclass(frozen=True)
class Choice(Config):
    """A method, and why it is used."""

    method: Method
    is_automatic: bool = True
    """Whether it was chosen by the examples, so that it is chosen again when they change."""
    scales: tuple[Positive, ...] = ()
    """The calibration scale of each member of a blend."""
    images: Annotated[int, rule("at least 0", lambda count: count >= 0)] = 0
    """Images that were held out for the choice; 0 if the prior decided."""
    accuracies: tuple[tuple[str, float], ...] = ()
    """The accuracy of each method on them."""

    def __str__(self) -> str:
        if not self.is_automatic:
            return f"{self.method}, as requested"
        if not self.accuracies:
            return f"{self.method}, the default; add a second image of each class for a choice by the images"
        others = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in self.accuracies if name != self.method)
        own = dict(self.accuracies)[self.method]
        return f"{self.method}, accuracy {own:.1%} on {self.images:,} held-out images ({others})"


@torch.no_grad()
def choose(head: FewShotHead, support: SupportSet, method: str = AUTO) -> tuple[Choice, list[HeldOut] | None]:
    """The choice for a support set, and the held-out logits of the chosen method if they were computed."""
    methods = available_methods(head)
    default = "blend" if "blend" in methods else methods[0]
    is_automatic = method == AUTO
    if is_automatic and (len(support) > MAX_CHOICE_EXAMPLES or len(support.classes) > MAX_CHOICE_CLASSES):
        method = methods[0]
    if method not in (AUTO, "blend"):
        return Choice(method if method in methods else methods[0], is_automatic), None
    members = blend_members(head)
    names = [name for name in methods if name != "blend"] if method == AUTO else list(members)
    held_out = {name: _held_out(head, name, support) for name in names}
    scales = {name: _scale(values, head) for name, values in held_out.items()}
    own_scales = tuple(scales[name] for name in members)
    if not held_out[names[0]]:
        chosen = default if method == AUTO else method
        return Choice(chosen, is_automatic, own_scales if chosen == "blend" else ()), None
    held_out["blend"] = [
        (blended([held_out[name][i][0] for name in members], own_scales), labels, indices)
        for i, (_, labels, indices) in enumerate(held_out[members[0]])
    ]
    if method == AUTO:
        scales["blend"] = _scale(held_out["blend"], head)
        evidence = {name: LOG_PRIOR[name] + _log_likelihood(held_out[name], scales[name]) for name in held_out}
        method = max(evidence, key=lambda name: evidence[name])
    accuracies = tuple((name, _accuracy(values)) for name, values in held_out.items())
    count = sum(len(labels) for _, labels, _ in held_out[method])
    chosen_scales = own_scales if method == "blend" else ()
    return Choice(method, is_automatic, chosen_scales, count, accuracies), held_out[method]


def _held_out(head: FewShotHead, name: str, support: SupportSet) -> list[HeldOut]:
    method = make_method(head, name)
    return list(held_out_logits(method, support, encode(method, support)))


def _scale(held_out: list[HeldOut], head: FewShotHead) -> float:
    batches = [(logits, labels) for logits, labels, _ in held_out]
    return fit_calibration_scale(batches, prior_std=PRIOR_STD[head.is_trained])


def _log_likelihood(held_out: list[HeldOut], scale: float) -> float:
    """The log-likelihood of the labels, with a lower bound for each image."""
    total = 0.0
    for logits, labels, _ in held_out:
        probabilities = (scale * logits.double()).softmax(-1).gather(1, labels[:, None])
        total += float(((1 - MIN_TARGET) * probabilities + MIN_TARGET / logits.shape[1]).log().sum())
    return total


def _accuracy(held_out: list[HeldOut]) -> float:
    correct = sum(int((logits.argmax(-1) == labels).sum()) for logits, labels, _ in held_out)
    total = sum(len(labels) for _, labels, _ in held_out)
    return correct / total if total else math.nan
