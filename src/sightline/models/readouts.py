"""Readouts of a few-shot head: a linear classifier of queries, computed from the support vectors of an episode.

Shapes: E episodes, S support images, Q queries, M embedding dimension. `membership` (E, way, S) is 1 where a support
image is of a class and 0 elsewhere; an image of no class is ignored.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_STEPS = 2000
"""Steps after which logistic regression stops if it has not converged."""
CHECK_EVERY = 10
"""Steps between two convergence checks."""
TOLERANCE = 1e-5
"""Largest gradient at which logistic regression has converged."""
EMPTY_CLASS_LOGIT = -60.0
"""Logit of a class without images while logistic regression is fitted: it then has no probability."""
C = 1.0
"""Weight of the loss of logistic regression relative to the L2 penalty, as in scikit-learn."""


@dataclass(frozen=True, eq=False)
class LinearReadout:
    """Logits that are linear in the direction of a query from a center."""

    center: Tensor
    """(E, 1, M)"""
    weights: Tensor
    """(E, M, way)"""
    bias: Tensor
    """(E, 1, way)"""

    def __call__(self, query: Tensor) -> Tensor:
        """query (E, Q, M) -> logits (E, Q, way)"""
        return F.normalize(query - self.center, dim=-1) @ self.weights + self.bias


class FitReadout(Protocol):
    """Computes a readout from support vectors (E, S, M) and their membership (E, way, S)."""

    def __call__(self, x: Tensor, membership: Tensor) -> LinearReadout: ...


def ridge(x: Tensor, membership: Tensor, penalty: Tensor | float) -> LinearReadout:
    """Ridge regression of the labels on the directions of the support vectors from the mean of all classes.

    The penalty is relative to a squared length of 1. The smaller of two systems of equations is solved: one of S
    unknowns or one of M. An exported model has the first.
    """
    way, is_used = membership.shape[1], membership.sum(1)[..., None]
    center = class_center(x, membership)
    x = F.normalize(x - center, dim=-1) * is_used
    targets = (membership.mT - 1 / way) * is_used
    if torch.compiler.is_exporting() or x.shape[1] <= x.shape[2]:
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        weights = x.mT @ torch.linalg.solve(x @ x.mT + penalty * identity, targets)
    else:
        identity = torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
        weights = torch.linalg.solve(x.mT @ x + penalty * identity, x.mT @ targets)
    return LinearReadout(center, weights, torch.zeros_like(weights[:, :1]))


def logistic(x: Tensor, membership: Tensor) -> LinearReadout:
    """Multinomial logistic regression with an L2 penalty, on vectors of unit length.

    The logit of a class without images is 0, the mean of those of the others; minus infinity would fit best.

    The weights are a linear combination of the support vectors, whose coefficients (E, S, way) are optimized. The
    vectors are centered: this does not change the solution, because the intercept is not penalized, and it decouples
    the intercept from the weights. The optimizer is accelerated gradient descent with restarts.
    """
    is_used, is_empty = membership.sum(1)[..., None], (membership.sum(-1) == 0)[:, None]
    x = F.normalize(x, dim=-1) * is_used
    count = is_used.sum(1, keepdim=True).clamp_min(1)
    center = x.sum(1, keepdim=True) / count
    x = (x - center) * is_used
    is_wide = torch.compiler.is_exporting() or x.shape[1] <= x.shape[2]
    gram, targets = x @ x.mT if is_wide else x.mT @ x, membership.mT  # both have the same eigenvalues but 0
    lipschitz = 1 + C / 2 * (gram @ gram).flatten(1).norm(dim=1).sqrt()[:, None, None]  # an upper bound
    coefficients, intercept = torch.zeros_like(targets), torch.zeros_like(targets[:, :1])
    lookahead, intercept_lookahead, age = coefficients, intercept, torch.ones_like(lipschitz)
    products = products_lookahead = coefficients  # x @ x.mT @ coefficients, updated by one product in each step
    for step in range(1, MAX_STEPS + 1):
        logits = (products_lookahead + intercept_lookahead).masked_fill(is_empty, EMPTY_CLASS_LOGIT)
        residual = C * (logits.softmax(-1) - targets) * is_used
        gradient, intercept_gradient = residual + lookahead, residual.sum(1, keepdim=True)
        previous, previous_intercept = coefficients, intercept
        coefficients = lookahead - gradient / lipschitz
        intercept = intercept_lookahead - intercept_gradient * 2 / (C * count)
        change, intercept_change = coefficients - previous, intercept - previous_intercept
        product = gram @ change if is_wide else x @ (x.mT @ change)
        slope = (gradient * product).sum((1, 2), True)
        slope = slope + (intercept_gradient * intercept_change).sum((1, 2), True)
        age = torch.where(slope > 0, torch.ones_like(age), age + 1)  # restart the momentum of episodes that overshot
        momentum = (age - 1) / (age + 2)
        products = products + product
        lookahead, products_lookahead = coefficients + momentum * change, products + momentum * product
        intercept_lookahead = intercept + momentum * intercept_change
        if step % CHECK_EVERY == 0:
            largest = max((x.mT @ gradient).abs().max(), intercept_gradient.abs().max())
            if largest < TOLERANCE:
                break
    weights = x.mT @ coefficients
    return LinearReadout(torch.zeros_like(center), weights, intercept - center @ weights)


def class_center(x: Tensor, membership: Tensor) -> Tensor:
    """The mean of the means of all classes that have images: (E, 1, M)"""
    counts = membership.sum(-1, keepdim=True)
    means = membership @ x / counts.clamp_min(1)
    return means.sum(1, keepdim=True) / (counts > 0).sum(1, keepdim=True).clamp_min(1)
