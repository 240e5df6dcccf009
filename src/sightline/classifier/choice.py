"""The choice of a method by the user's own examples.

Every method classifies the support images while each is held out. The log-likelihoods, plus a prior in favor of methods
that were best on average over data sets of many kinds, give the probability of each method. The most probable one is
used; the default method and logistic regression are blended with their probabilities as weights, unless one of them is
next to certain. If at most one class has several images, held-out images show nothing, and `single_example_method` is
used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..config import Config, Positive, choice, rule
from ..errors import check
from ..models.few_shot_head import FewShotHead
from .calibration import HeldOut, encode, held_out_logits
from .methods import (
    METHODS,
    available_methods,
    blend_members,
    blended,
    default_method,
    has_prior,
    make_method,
    single_example_method,
)
from .support import SupportSet

AUTO = "auto"
LOG_PRIOR = {"ridge": 0.0, "spatial": 0.0, "logistic": -4.0, "prototypes": -4.0}
"""Log prior of each method against the default one: a trained head, or one with normalization statistics, is the best
single method on most image sets (benchmarks/domains.py). If the model has neither, as for embeddings of any encoder,
logistic regression is as likely as the default method. `spatial` is as likely as `ridge`
(benchmarks/domain_constants.py)."""
EVIDENCE_WEIGHT = 0.5
"""Factor of the log-likelihood of the held-out images beside the prior. It is below 1 because these images share their
training images, so that their errors are not independent."""
MIN_WEIGHT = 0.05
"""A member of a blend with a lower weight is left out."""
MAX_CHOICE_EXAMPLES, MAX_CHOICE_COST = 2000, 50_000_000
"""Examples, and examples squared times classes, up to which methods are compared: logistic regression takes longer for
more, and the default method is used."""
UNIFORM_WEIGHT = 0.01
"""Weight of the uniform distribution in the probabilities of a method."""
SCALES = torch.logspace(-1.2, 1.2, 33, dtype=torch.float64)
"""Calibration scales that are compared."""
SCALE_PRIOR_STD = 1.0
"""Standard deviation of the log calibration scale."""

Method = Annotated[str, choice(METHODS)]
Accuracy = Annotated[float, rule("from 0 to 1", lambda accuracy: 0 <= accuracy <= 1)]


@dataclass(frozen=True)
class Choice(Config):
    """A method, and why it is used."""

    method: Method
    is_automatic: bool = True
    """Whether it was chosen by the examples, so that it is chosen again when they change."""
    scales: tuple[Positive, ...] = ()
    """The factor of the logits of each member of a blend."""
    images: Annotated[int, rule("at least 0", lambda count: count >= 0)] = 0
    """Images that were held out for the choice; 0 if the prior decided."""
    accuracies: tuple[tuple[str, Accuracy], ...] = ()
    """The accuracy of each method on them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        expected, names = 2 if self.method == "blend" else 0, [name for name, _ in self.accuracies]
        check(len(self.scales) == expected, f"scales must be {expected} for {self.method}, got {len(self.scales)}")
        is_valid = not names or (self.method in names and {*names} <= {*METHODS})
        check(is_valid, f"accuracies must be those of methods, {self.method} among them, got {names!r:.200}")

    def describe(self, support: SupportSet, noun: str = "image", requested: str | None = None) -> str:
        """The choice for a support set on one line; `noun` is what one example is, `requested` the method in `fit`."""
        if not self.is_automatic:
            is_other = requested is not None and requested != self.method
            return f"{self.method}, as requested" + (f": it is what the {requested} consists of" if is_other else "")
        if not self.accuracies:
            reason = ""
            if _is_large(support):
                reason = f": too many {noun}s to compare methods, {len(support):,} of {len(support.classes):,} classes"
            elif not support.has_estimate:
                reason = f": comparing methods needs two {noun}s of two classes or more"
            return f"{self.method}, the default{reason}"
        reason = compared_accuracies(dict(self.accuracies), self.method, f"{self.images:,} held-out {noun}s")
        return f"{self.method}, {reason}"


def compared_accuracies(accuracies: Mapping[str, float], chosen: str, examples: str) -> str:
    """The accuracy of the chosen one beside those of the others, and by what it is chosen if another one is higher."""
    others = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in accuracies.items() if name != chosen)
    text = f"accuracy {accuracies[chosen]:.1%} on {examples}" + (f" ({others})" if others else "")
    is_highest = accuracies[chosen] == max(accuracies.values())
    return text if is_highest else f"{text}; chosen by likelihood and a prior, not by accuracy alone"


@torch.no_grad()
def choose(head: FewShotHead, support: SupportSet, method: str = AUTO) -> tuple[Choice, list[HeldOut] | None]:
    """The choice for a support set, and the held-out logits of the chosen method if they were computed."""
    methods, members, is_automatic = available_methods(head), blend_members(head), method == AUTO
    if is_automatic and (_is_large(support) or head.config.transductive):
        method = default_method(head)
    if method == "head" and method not in methods:  # a head without more than a readout is called by its name
        method = head.config.readout
    if method not in (AUTO, "blend"):
        return Choice(method, is_automatic), None
    names = [name for name in methods if name != "blend"] if method == AUTO else list(members)
    if not support.has_estimate:
        chosen = single_example_method(head) if method == AUTO else method
        return Choice(chosen, is_automatic, (1.0,) * len(members) if chosen == "blend" else ()), None
    held_out = {name: _held_out(head, name, support) for name in names}
    logits = {name: torch.cat([values for values, _, _ in folds])[None] for name, folds in held_out.items()}
    labels = torch.cat([labels for _, labels, _ in held_out[names[0]]])[None]
    if method == AUTO:
        weights = method_weights(logits, labels, members, has_prior(head))
    else:
        weights = {name: torch.full((1,), 1 / len(members)) for name in members}
    used, factors = [name for name, weight in weights.items() if weight > 0], tuple[float, ...]()
    method = used[0]
    if len(used) > 1:
        method = "blend"
        factors = tuple(float(len(used) * weights[name] * fit_scales(logits[name], labels)) for name in members)
        logits[method] = blended([logits[name] for name in members], factors)
    accuracies = tuple((name, float((x.argmax(-1) == labels).double().mean())) for name, x in logits.items())
    sizes = [len(indices) for _, _, indices in held_out[names[0]]]
    folds = zip(logits[method][0].split(sizes), held_out[names[0]], strict=True)
    own_logits = [(x, own_labels, indices) for x, (_, own_labels, indices) in folds]
    return Choice(method, is_automatic, factors, labels.shape[1], accuracies), own_logits


def method_weights(
    logits: Mapping[str, Tensor], labels: Tensor, members: Sequence[str], has_prior: bool
) -> dict[str, Tensor]:
    """The weight of each method for support sets, by its probability given their held-out images: (E,) each

    logits (E, N, way) by method, labels (E, N). If the most probable method is one of `members`, these share the
    weight, and the first is the default method. Otherwise all weight is on the most probable one. The prior of logistic
    regression counts if `has_prior`.
    """
    prior = {name: 0.0 if name == members[0] else LOG_PRIOR[name] for name in logits}
    prior["logistic"] *= has_prior
    evidence = {
        name: prior[name] + EVIDENCE_WEIGHT * log_likelihood(x, labels, fit_scales(x, labels))
        for name, x in logits.items()
    }
    names = list(evidence)
    best = torch.stack(list(evidence.values())).argmax(0)
    shared = torch.stack([evidence[name] for name in members]).softmax(0)
    shared = torch.where(shared.amin(0) < MIN_WEIGHT, shared.round(), shared)
    is_member = torch.isin(best, torch.tensor([names.index(name) for name in members]))
    weights = {name: (best == i).double() for i, name in enumerate(names)}
    return weights | {name: shared[i] * is_member for i, name in enumerate(members)}


def fit_scales(logits: Tensor, labels: Tensor) -> Tensor:
    """The calibration scale of each support set, from `SCALES`: logits (E, N, way), labels (E, N) -> (E,)"""
    penalty = (SCALES.log() / SCALE_PRIOR_STD).square() / 2
    values = [log_likelihood(logits, labels, scale.expand(len(logits))) for scale in SCALES]
    return SCALES[(torch.stack(values, 1) - penalty).argmax(1)]


def log_likelihood(logits: Tensor, labels: Tensor, scales: Tensor) -> Tensor:
    """The log-likelihood of labels (E, N) by logits (E, N, way) times scales (E,): (E,)

    A little of the uniform distribution is mixed in, so that one image cannot decide.
    """
    scaled = scales.double()[:, None, None] * logits.double()
    probabilities = scaled.softmax(-1).gather(2, labels[..., None])[..., 0]
    return ((1 - UNIFORM_WEIGHT) * probabilities + UNIFORM_WEIGHT / logits.shape[-1]).log().sum(1)


def _is_large(support: SupportSet) -> bool:
    """Whether there are too many examples to compare methods."""
    cost = len(support) ** 2 * len(support.classes)
    return len(support) > MAX_CHOICE_EXAMPLES or cost > MAX_CHOICE_COST


def _held_out(head: FewShotHead, name: str, support: SupportSet) -> list[HeldOut]:
    method = make_method(head, name)
    return list(held_out_logits(method, support, encode(method, support)))
