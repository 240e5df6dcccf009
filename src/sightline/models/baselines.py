"""What is done with embeddings where nothing more is learned: six ways to tell classes apart by a few examples.

Each is called like a head: support (E, K, P, M), labels (E, K), query (E, Q, P, M) -> logits (E, Q, N). The places of
an image are averaged. All episodes are worked on together.

Legend for all shapes: E episodes, N way, K support images, Q queries, P tokens of an image, M model width, R pairs of
classes, S images of the largest class.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .few_shot_answers import members_of

MOST_STEPS = 2000
"""Where neither learner comes to rest before."""
LOOK_EVERY = 10
"""Steps between two looks at whether it has."""
RESTS = {"logistic": 1e-5, "svm": 1e-4}
"""How steep the way may still be there."""
COST = 1.0
"""Of a support image on the wrong side, beside half the squared length of the weights."""


def protonet(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """Prototypical networks: minus the squared distance to the mean of each class."""
    x, q = _vectors(support), _vectors(query)
    members = members_of(labels, way).to(x.dtype)
    means = members / members.sum(-1, keepdim=True).clamp_min(1) @ x
    return 2 * q @ means.mT - means.square().sum(-1)[:, None] - q.square().sum(-1, keepdim=True)


def matching(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """Matching networks: attention over the support by cosine; the log of what each class gets of it."""
    weights = _cosines(query, support).softmax(-1)
    return (weights @ members_of(labels, way).mT.to(weights.dtype)).log()


def nearest(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """The nearest neighbor: the largest cosine to an image of each class."""
    cosines = _cosines(query, support)
    best = cosines.new_full((*cosines.shape[:2], way), -torch.inf)
    return best.scatter_reduce(2, labels[:, None].expand_as(cosines), cosines, "amax")


def logistic(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """Logistic regression over all classes at once, weights held small, on embeddings of length 1.

    The weights are sums of support vectors, so what is learned is each vector's share in them, (E, K, N). With vectors
    centerd, an intercept that costs nothing changes no solution and does not get in the way of the weights.
    """
    x, q = (F.normalize(_vectors(y), dim=-1) for y in (support, query))
    middle = x.mean(1, keepdim=True)
    x, q = x - middle, q - middle
    alike = x @ x.mT
    targets = members_of(labels, way).mT.to(x.dtype)
    steepest = 1 + COST / 2 * (alike @ alike).flatten(1).norm(dim=1).sqrt()[:, None, None]  # at least the true one
    shares, level = torch.zeros_like(targets), torch.zeros_like(targets[:, :1])
    ahead, level_ahead, age = shares, level, torch.ones_like(steepest)
    for step in range(1, MOST_STEPS + 1):
        excess = COST * ((alike @ ahead + level_ahead).softmax(-1) - targets)
        slope, tilt = excess + ahead, excess.sum(1, keepdim=True)
        old, old_level = shares, level
        shares, level = ahead - slope / steepest, level_ahead - tilt * 2 / (COST * x.shape[1])
        moved, moved_level = shares - old, level - old_level
        uphill = (slope * (alike @ moved)).sum((1, 2), True) + (tilt * moved_level).sum((1, 2), True) > 0
        age = torch.where(uphill, torch.ones_like(age), age + 1)  # one that overshot gathers speed anew
        ahead, level_ahead = (now + (age - 1) / (age + 2) * by for now, by in ((shares, moved), (level, moved_level)))
        if step % LOOK_EVERY == 0 and max((x.mT @ slope).abs().max(), tilt.abs().max()) < RESTS["logistic"]:
            break
    return q @ (x.mT @ shares) + level


def svm(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """A linear support vector machine for each pair of classes, on embeddings of length 1; every pair votes."""
    x, q = (F.normalize(_vectors(y), dim=-1) for y in (support, query))
    return _votes(x @ x.mT, q @ x.mT, labels, way)


def rbf_svm(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
    """The same with a bell around each support image, on embeddings that are standardized by the support.

    This is what AutoGluon's few-shot learner does.
    """
    x, q = _vectors(support), _vectors(query)
    spread, middle = torch.std_mean(x, 1, keepdim=True, correction=0)
    x, q = ((y - middle) / torch.where(spread > 0, spread, 1) for y in (x, q))
    near = [(-torch.cdist(y, x).square() / x.shape[-1]).exp() for y in (x, q)]
    return _votes(near[0], near[1], labels, way)


def _votes(alike: Tensor, asked: Tensor, labels: Tensor, way: int) -> Tensor:
    """A machine for each pair of classes, and what each class gets: alike (E, K, K), asked (E, Q, K) -> (E, Q, N)

    Votes are integers; classes of equally many are told apart by how sure their pairs are.
    """
    slots = _slots(labels, way)
    first, second = torch.triu_indices(way, way, 1, device=alike.device)
    places = torch.cat((slots[:, first], slots[:, second]), 2)  # (E, R, 2S)
    sides = alike.new_tensor([1.0, -1.0]).repeat_interleave(slots.shape[2])
    signs, places = sides * (places >= 0), places.clamp_min(0)
    episode = torch.arange(len(alike), device=alike.device)[:, None, None, None]
    shares, level = _machines(alike[episode, places[..., None], places[:, :, None]], signs)
    weights = alike.new_zeros(*places.shape[:2], alike.shape[1]).scatter_add(2, places, signs * shares)
    margins = asked @ weights.mT + level[:, None]  # (E, Q, R), above 0 for the first of a pair
    one, other = (F.one_hot(side, way).to(alike.dtype) for side in (first, second))
    won = (margins > 0).to(alike.dtype)
    sure = margins @ (one - other)
    return won @ one + (1 - won) @ other + sure / (3 * (sure.abs() + 1))


def _machines(alike: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Many machines of two classes at once: alike (…, S, S), signs (…, S) -> shares (…, S) and level (…)

    The shares of two images at a time are moved, those that break the rules of the solution most. A sign of 0 is no
    image.
    """
    shares, slope = torch.zeros_like(signs), signs.clone()  # which way each image pulls
    for _ in range(MOST_STEPS):
        rising = ((signs > 0) & (shares < COST)) | ((signs < 0) & (shares > 0))
        falling = ((signs > 0) & (shares > 0)) | ((signs < 0) & (shares < COST))
        top, up = slope.masked_fill(~rising, -torch.inf).max(-1, keepdim=True)
        bottom, down = slope.masked_fill(~falling, torch.inf).min(-1, keepdim=True)
        if float((top - bottom).max()) < RESTS["svm"]:
            break
        rows = [alike.take_along_dim(side[..., None], -2)[..., 0, :] for side in (up, down)]
        bend = (rows[0].gather(-1, up) - 2 * rows[0].gather(-1, down) + rows[1].gather(-1, down)).clamp_min(1e-9)
        room = [
            torch.where(signs.gather(-1, up) > 0, COST - shares.gather(-1, up), shares.gather(-1, up)),
            torch.where(signs.gather(-1, down) > 0, shares.gather(-1, down), COST - shares.gather(-1, down)),
        ]
        move = torch.minimum((top - bottom) / bend, torch.minimum(*room)).clamp_min(0)
        shares = shares.scatter_add(-1, up, signs.gather(-1, up) * move)
        shares = shares.scatter_add(-1, down, -signs.gather(-1, down) * move).clamp(0, COST)
        slope = slope - move * (rows[0] - rows[1])
    return shares, (top + bottom)[..., 0] / 2


def _slots(labels: Tensor, way: int) -> Tensor:
    """Where the images of each class are: labels (E, K) -> (E, N, S), -1 beyond a class's own"""
    members = members_of(labels, way)
    most = int(members.sum(-1).max())
    first = members.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :most]
    return first.masked_fill(~members.gather(-1, first), -1)


def _vectors(x: Tensor) -> Tensor:
    """One vector for each image, as fine as its numbers allow: (E, K, P, M) -> (E, K, M)"""
    return x.to(torch.promote_types(x.dtype, torch.float32)).mean(2)


def _cosines(query: Tensor, support: Tensor) -> Tensor:
    """(E, Q, K)"""
    return F.normalize(_vectors(query), dim=-1) @ F.normalize(_vectors(support), dim=-1).mT


BASELINES: dict[str, Callable[..., Tensor]] = {
    "protonet": protonet,
    "matching": matching,
    "nearest": nearest,
    "logistic": logistic,
    "svm": svm,
    "rbf_svm": rbf_svm,
}
"""By name."""
