"""The Lightweight Cosine Transformer: a class from a handful of examples.

One layer of cosine attention lets support images know each other and their classes, and queries know the support; then
a query is answered by its angle to each class. As it starts, before anything is learnt, it is a prototype classifier by
angle; all that training adds is on top of that.

Legend for all shapes: E episodes, N way, K support images, Q queries, P tokens of an image, M model width.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.masks import Episode, Mask, Padding
from ..attention.scores import CosineScore, DotScore, Score
from ..checks import check_share, check_whole
from ..layers import EncoderBlock


@dataclass(frozen=True, kw_only=True)
class FewShotConfig:
    """Every choice of the head is a switch, so that it can be left out and missed."""

    depth: int = 1
    """Blocks; 0 is a prototype classifier by angle."""
    heads: int = 8
    expansion: float = 2.0
    """Width of the feed-forward's middle, as a multiple of the embedding's."""
    score: Literal["cosine", "dot"] = "cosine"
    temperature: float = 0.05
    """What the temperature of attention starts from."""
    floor: float = 0.01
    """What neither temperature falls below."""
    learn_temperature: bool = True
    labels: bool = True
    """Whether support tokens know their class."""
    tokens: Literal["vector", "patches"] = "vector"
    """What an image is to attention: one vector, or a token for each place of the backbone's grid."""
    transductive: bool = False
    """Whether queries see each other; answers then depend on who else is asked, and are no longer comparable."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_whole(0, depth=self.depth)
        check_whole(1, heads=self.heads)
        check_share(dropout=self.dropout)
        if not 0 < self.expansion < float("inf"):
            raise ValueError(f"expansion must be above 0 and finite, got {self.expansion}")
        CosineScore(temperature=self.temperature, floor=self.floor)  # refuses what it cannot be


class FewShotHead(nn.Module):
    """Embeddings of labelled examples and of queries in, a logit for each query and class out."""

    def __init__(self, width: int, config: FewShotConfig):
        super().__init__()
        check_whole(1, width=width)
        if width % config.heads:
            raise ValueError(f"heads must divide the embedding's width {width}, got {config.heads}")
        c = self.config = config
        blocks = [
            EncoderBlock(
                width,
                c.heads,
                round(width * c.expansion),
                norm="pre",
                activation="gelu",
                dropout=c.dropout,
                bias=False,
                score=self._score(),
            )
            for _ in range(c.depth)
        ]
        for block in blocks:  # at first a block adds nothing
            nn.init.zeros_(block.attention.out.weight)
            nn.init.zeros_(block.feed_forward.narrow.weight)
        self.blocks = nn.ModuleList(blocks)
        self.label = nn.Linear(width, width, bias=False) if c.labels and c.depth else None
        self.role = nn.Parameter(torch.zeros(2, width)) if c.labels and c.depth else None
        if self.label is not None:
            nn.init.zeros_(self.label.weight)
        self.answer = CosineScore(temperature=0.1, floor=c.floor, learn=True)

    def _score(self) -> Score:
        c = self.config
        if c.score == "dot":
            return DotScore()
        return CosineScore(temperature=c.temperature, floor=c.floor, heads=c.heads, learn=c.learn_temperature)

    def forward(self, support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
        """support (E, K, P, M), labels (E, K), query (E, Q, P, M) -> logits (E, Q, N)

        Labels are 0 to way - 1; -1 marks a place that is empty, so that episodes of unequal classes go together.
        """
        members = members_of(labels, way).to(support.dtype)
        support, query = self.refine(support, members, query)
        classes = _means(members, support.mean(2))
        return self.answer(query.mean(2)[:, None], classes[:, None])[:, 0]

    def refine(self, support: Tensor, members: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings after every support token has seen the support, and every query the support and itself."""
        images, places = support.shape[1:3]
        if self.label is not None and self.role is not None:
            own = members.mT @ _means(members, support.mean(2))  # of each support image the mean of its class
            support = support + (self.label(own) + self.role[0]).unsqueeze(2)
            query = query + self.role[1]
        if not self.blocks:
            return support, query
        x = torch.cat((support, query), 1).flatten(1, 2)
        mask: Mask | None = None if self.config.transductive else Episode(images * places, size=places)
        there = members.any(1)
        if not bool(there.all()):
            real = F.pad(there.repeat_interleave(places, 1), (0, query.shape[1] * places), value=True)
            mask = Padding(real) if mask is None else mask & Padding(real)
        for block in self.blocks:
            x = block(x, mask=mask)
        x = x.unflatten(1, (-1, places))
        return x[:, :images], x[:, images:]


def members_of(labels: Tensor, way: int) -> Tensor:
    """Which support image is of which class: labels (E, K) -> bool (E, N, K)"""
    return labels[:, None] == torch.arange(way, device=labels.device)[:, None]


def _means(members: Tensor, x: Tensor) -> Tensor:
    """The mean of each class: members (E, N, K), x (E, K, M) -> (E, N, M)"""
    return members / members.sum(-1, keepdim=True).clamp_min(1) @ x
