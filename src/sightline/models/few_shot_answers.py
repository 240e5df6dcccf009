"""How a query is held against the classes of an episode: as a whole, by distance, and part by part.

Legend for all shapes: E episodes, N way, K support images, Q queries, P tokens of an image, M model width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.scores import CosineScore

PARTS_AT_ONCE = 4096
"""Support tokens that a query's are held against together, so that memory does not grow with their number."""


@dataclass(frozen=True, eq=False)
class Known:
    """What a query is held against."""

    classes: Tensor
    """(E, N, M), where each class is."""
    images: Tensor
    """(E, K, M), where each support image is."""
    parts: Tensor | None = None
    """(E, K * P, M), the direction of every support token, where parts count."""
    owners: Tensor | None = None
    """(E, K * P), the class of each."""


class Distance(nn.Module):
    """Minus the squared distance, with nothing to learn."""

    def temperature(self) -> Tensor:
        """It is taken as it is."""
        return torch.ones(())

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (..., Q, M), k (..., N, M) -> (..., Q, N)"""
        return 2 * q @ k.mT - q.square().sum(-1, keepdim=True) - k.square().sum(-1)[..., None, :]


class PatchMatching(nn.Module):
    """How well each part of a query is found again in a class: the mean over its tokens of their softly best cosine.

    It enters with a weight that starts at 0, so that training decides what parts are worth beside the whole.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.score = CosineScore(temperature=0.1, min_temperature=0.05)  # e to the power of -2 / 0.05 is still a number

    def forward(self, query: Tensor, known: Known) -> Tensor:
        """query (E, Q, P, M) -> (E, Q, N)"""
        assert known.parts is not None
        assert known.owners is not None
        asked, way = F.normalize(query.flatten(1, 2), dim=-1), known.classes.shape[1]
        if known.parts.shape[1] <= PARTS_AT_ONCE:
            found, weight = self._sums(asked, known.parts, known.owners, torch.arange(way, device=asked.device))
        else:
            found, weight = (asked.new_zeros(*asked.shape[:2], way) for _ in range(2))
            pieces = (x.split(PARTS_AT_ONCE, 1) for x in (known.parts, known.owners))
            for parts, owners in zip(*pieces, strict=True):
                here = owners.unique()
                here = here[here >= 0]  # of many classes, few have a token among these
                near_found, near_weight = self._sums(asked, parts, owners, here)
                found, weight = found.index_add(2, here, near_found), weight.index_add(2, here, near_weight)
        return self.weight * (found / weight.clamp_min(1e-30)).unflatten(1, query.shape[1:3]).mean(2)

    def _sums(self, asked: Tensor, parts: Tensor, owners: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Of each of these classes (n,) the sum of nearness times cosine, and of nearness: (E, Q * P, n) each"""
        cosines = asked @ parts.mT
        near = ((cosines - 1) / self.score.temperature()).exp()  # cosines are bounded, so no largest is sought
        members = (owners[..., None] == classes).to(cosines.dtype)
        return (near * cosines) @ members, near @ members


def members_of(labels: Tensor, way: int) -> Tensor:
    """Which support image is of which class: labels (E, K) -> bool (E, N, K)"""
    return labels[:, None] == torch.arange(way, device=labels.device)[:, None]


def means(members: Tensor, x: Tensor) -> Tensor:
    """The mean of each class: members (E, N, K), x (E, K, M) -> (E, N, M)"""
    return members / members.sum(-1, keepdim=True).clamp_min(1) @ x
