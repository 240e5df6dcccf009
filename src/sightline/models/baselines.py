"""Few-shot baselines on fixed embeddings.

Every baseline has the signature of a few-shot head: support (E, S, T, M), labels (E, S), query (E, Q, T, M) -> logits
(E, Q, way). The tokens of an image are averaged. All episodes are computed together.

Shapes: E episodes, S support images, Q queries, T tokens per image, M embedding dimension, R pairs of classes, L images
of the largest class.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import readouts
from .few_shot_head import NegativeSquaredDistance
from .support_state import class_means, class_membership

MAX_STEPS = 2000
"""Steps after which a support vector machine that has not converged stops."""
TOLERANCE = 1e-4
"""Largest gradient at which a support vector machine has converged."""
C = 1.0
"""Weight of the loss of a support vector machine relative to the L2 penalty, as in scikit-learn."""


def protonet(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """Prototypical networks: the negative squared distance to the class mean."""
    x, q = _pooled(support), _pooled(query)
    return NegativeSquaredDistance().forward(q, class_means(class_membership(labels, way).to(x.dtype), x))


def matching(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """Matching networks: the logarithm of the cosine attention that each class receives."""
    weights = _cosines(query, support).softmax(-1)
    return (weights @ class_membership(labels, way).mT.to(weights.dtype)).log()


def nearest(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """Nearest neighbor: the largest cosine similarity to an image of each class."""
    cosines = _cosines(query, support)
    best = cosines.new_full((*cosines.shape[:2], way), -torch.inf)
    return best.scatter_reduce(2, labels[:, None].expand_as(cosines), cosines, "amax")


def logistic(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """Multinomial logistic regression with an L2 penalty, on embeddings of unit length."""
    x = _pooled(support)
    return readouts.logistic(x, class_membership(labels, way).to(x.dtype))(_pooled(query))


def svm(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """One-versus-one linear support vector machines on embeddings of unit length."""
    x, q = (F.normalize(_pooled(y), dim=-1) for y in (support, query))
    return _one_versus_one(x @ x.mT, q @ x.mT, labels, way)


def rbf_svm(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """One-versus-one support vector machines with an RBF kernel, on embeddings standardized by the support set.

    AutoGluon's few-shot learner does the same.
    """
    x, q = _pooled(support), _pooled(query)
    std, mean = torch.std_mean(x, 1, keepdim=True, correction=0)
    x, q = ((y - mean) / torch.where(std > 0, std, 1) for y in (x, q))
    kernels = [(-torch.cdist(y, x).square() / x.shape[-1]).exp() for y in (x, q)]
    return _one_versus_one(kernels[0], kernels[1], labels, way)


def _one_versus_one(kernel: Tensor, query_kernel: Tensor, labels: Tensor, way: int) -> Tensor:
    """The votes of a binary machine for each pair of classes: (E, S, S), (E, Q, S) -> (E, Q, way)

    Votes are integers. Ties are broken by the sum of the margins, scaled to less than one half.
    """
    indices = _class_indices(labels, way)
    first, second = torch.triu_indices(way, way, 1, device=kernel.device)
    pairs = torch.cat((indices[:, first], indices[:, second]), 2)  # (E, R, 2L)
    sides = kernel.new_tensor([1.0, -1.0]).repeat_interleave(indices.shape[2])
    signs, pairs = sides * (pairs >= 0), pairs.clamp_min(0)
    episode = torch.arange(len(kernel), device=kernel.device)[:, None, None, None]
    alphas, intercept = _solve_svms(kernel[episode, pairs[..., None], pairs[:, :, None]], signs)
    weights = kernel.new_zeros(*pairs.shape[:2], kernel.shape[1]).scatter_add(2, pairs, signs * alphas)
    margins = query_kernel @ weights.mT + intercept[:, None]  # (E, Q, R), positive for the first class of a pair
    first_one_hot, second_one_hot = (F.one_hot(side, way).to(kernel.dtype) for side in (first, second))
    wins = (margins > 0).to(kernel.dtype)
    confidence = margins @ (first_one_hot - second_one_hot)
    return wins @ first_one_hot + (1 - wins) @ second_one_hot + confidence / (3 * (confidence.abs() + 1))


def _solve_svms(kernel: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Sequential minimal optimization of many binary machines: (…, 2L, 2L), (…, 2L) -> alphas (…, 2L), intercepts (…)

    Each step changes the two coefficients that violate the optimality conditions most. A sign of 0 is padding.
    """
    alphas, gradient = torch.zeros_like(signs), signs.clone()
    for _ in range(MAX_STEPS):
        can_increase = ((signs > 0) & (alphas < C)) | ((signs < 0) & (alphas > 0))
        can_decrease = ((signs > 0) & (alphas > 0)) | ((signs < 0) & (alphas < C))
        high, i = gradient.masked_fill(~can_increase, -torch.inf).max(-1, keepdim=True)
        low, j = gradient.masked_fill(~can_decrease, torch.inf).min(-1, keepdim=True)
        if float((high - low).max()) < TOLERANCE:
            break
        row_i, row_j = (kernel.take_along_dim(index[..., None], -2)[..., 0, :] for index in (i, j))
        curvature = (row_i.gather(-1, i) - 2 * row_i.gather(-1, j) + row_j.gather(-1, j)).clamp_min(1e-9)
        room_i = torch.where(signs.gather(-1, i) > 0, C - alphas.gather(-1, i), alphas.gather(-1, i))
        room_j = torch.where(signs.gather(-1, j) > 0, alphas.gather(-1, j), C - alphas.gather(-1, j))
        step = torch.minimum((high - low) / curvature, torch.minimum(room_i, room_j)).clamp_min(0)
        alphas = alphas.scatter_add(-1, i, signs.gather(-1, i) * step)
        alphas = alphas.scatter_add(-1, j, -signs.gather(-1, j) * step).clamp(0, C)
        gradient = gradient - step * (row_i - row_j)
    return alphas, (high + low)[..., 0] / 2


def _class_indices(labels: Tensor, way: int) -> Tensor:
    """Indices of the images of each class: labels (E, S) -> (E, way, L), padded with -1"""
    membership = class_membership(labels, way)
    largest = int(membership.sum(-1).max())
    indices = membership.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :largest]
    return indices.masked_fill(~membership.gather(-1, indices), -1)


def _pooled(x: Tensor) -> Tensor:
    """The mean of the tokens, in at least float32: (E, S, T, M) -> (E, S, M)"""
    return x.to(torch.promote_types(x.dtype, torch.float32)).mean(2)


def _cosines(query: Tensor, support: Tensor) -> Tensor:
    """Cosine similarities: (E, Q, S)"""
    return F.normalize(_pooled(query), dim=-1) @ F.normalize(_pooled(support), dim=-1).mT


BASELINES: dict[str, Callable[..., Tensor]] = {
    baseline.__name__: baseline for baseline in (protonet, matching, nearest, logistic, svm, rbf_svm)
}
"""Baselines by name."""
