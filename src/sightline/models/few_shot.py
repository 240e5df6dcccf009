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

from ..attention import Cache
from ..attention.masks import Episode, Mask, Padding
from ..attention.scores import CosineScore, DotScore, Score
from ..checks import check_most, check_share, check_whole
from ..layers import EncoderBlock
from ..layers.backbones import BACKBONES, Backbone
from .drawings import dark_on_white
from .few_shot_answers import Distance, Known, PartsScore, means, members_of

MOST_SIZE = 512
"""Images are at most so large."""


@dataclass(frozen=True, kw_only=True)
class FewShotConfig:
    """Every choice is a switch, so that it can be left out and missed."""

    image_size: int | None = None
    """Side of the square input; null for that of the data."""
    channels: int | None = None
    """1 for grey, 3 for colour; null for those of the data."""
    drawings: bool = False
    """Whether images are drawings, to be brought to dark ink on white paper first."""
    backbone: Literal["conv4", "resnet12", "none"] = "conv4"
    """What makes an embedding of an image; `none` where embeddings themselves go in."""
    widths: tuple[int, ...] | None = None
    """Channels of the backbone's blocks, or the width of the embeddings; null for those of the papers."""
    pool: Literal["mean", "flat"] = "mean"
    """How the places of the backbone's grid become one vector: their mean, or all of them side by side."""
    narrow: int | None = None
    """Width at which the blocks work; what they add there is added to the embeddings. Null for their own width."""
    classes: int = 0
    """Classes that a second, plain classifier tells apart while training; 0 for none."""
    depth: int = 1
    """Blocks; 0 is a prototype classifier by angle, and with `answer: distance` a prototypical network."""
    heads: int = 8
    expansion: float = 2.0
    """Width of the feed-forward's middle, as a multiple of that at which blocks work."""
    score: Literal["cosine", "dot"] = "cosine"
    temperature: float = 0.05
    """What the temperature of attention starts from."""
    floor: float = 0.01
    """What neither temperature falls below."""
    learn_temperature: bool = True
    answer: Literal["cosine", "distance"] = "cosine"
    """How a query is held against a class: by their angle over a learnt temperature, or by their squared distance."""
    labels: bool = True
    """Whether support tokens know their class."""
    tokens: Literal["vector", "patches"] = "vector"
    """What an image is to attention: one vector, or a token for each place of the backbone's grid."""
    parts: bool = False
    """Whether each token of a query also looks for its like in each class, beside the angle of the whole."""
    transductive: bool = False
    """Whether queries see each other; answers then depend on who else is asked, and are no longer comparable."""
    dropout: float = 0.0
    """In the head's blocks."""
    backbone_dropout: float = 0.0
    """Share of channels left out after each block of the backbone while it learns."""

    def __post_init__(self) -> None:
        check_whole(0, depth=self.depth, classes=self.classes)
        check_whole(1, heads=self.heads)
        check_share(dropout=self.dropout, backbone_dropout=self.backbone_dropout)
        if not 0 < self.expansion < float("inf"):
            raise ValueError(f"expansion must be above 0 and finite, got {self.expansion}")
        CosineScore(temperature=self.temperature, floor=self.floor)  # refuses what it cannot be
        for name in ("image_size", "channels", "narrow"):
            if getattr(self, name) is not None:
                check_whole(1, **{name: getattr(self, name)})
        check_most(MOST_SIZE, image_size=self.image_size or 0)
        if self.backbone == "none" and (self.widths is None or len(self.widths) != 1):
            raise ValueError(
                f"widths must be the one width of the embeddings where backbone is none, got {self.widths}"
            )
        if self.drawings and self.channels not in (None, 1):
            raise ValueError(f"channels must be 1 where images are drawings, got {self.channels}")
        if self.tokens == "patches" and self.pool == "flat":
            raise ValueError("pool must be mean where tokens are patches, got 'flat'")


class FewShotHead(nn.Module):
    """Embeddings of labelled examples and of queries in, a logit for each query and class out."""

    sharpness: Tensor

    def __init__(self, width: int, config: FewShotConfig):
        super().__init__()
        check_whole(1, width=width)
        c = self.config = config
        self.narrow: nn.Linear | None = None
        if c.narrow is not None and c.depth:
            if c.narrow >= width:
                raise ValueError(f"narrow must be below the embedding's width {width}, got {c.narrow}")
            self.narrow = nn.Linear(width, c.narrow, bias=False)
            nn.init.orthogonal_(self.narrow.weight)
            width = c.narrow
        if width % config.heads:
            raise ValueError(f"heads must divide the width {width} at which blocks work, got {config.heads}")
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
        self.answer = CosineScore(temperature=0.1, floor=c.floor, learn=True) if c.answer == "cosine" else Distance()
        self.parts = PartsScore() if c.parts else None
        self.register_buffer("sharpness", torch.ones(()))  # set by what was not learnt from, so that confidence is true

    def _score(self) -> Score:
        c = self.config
        if c.score == "dot":
            return DotScore()
        return CosineScore(temperature=c.temperature, floor=c.floor, heads=c.heads, learn=c.learn_temperature)

    def forward(self, support: Tensor, labels: Tensor, query: Tensor, *, way: int, gaps: bool = False) -> Tensor:
        """support (E, K, P, M), labels (E, K), query (E, Q, P, M) -> logits (E, Q, N)

        Labels are 0 to way - 1. With `gaps`, -1 marks a place that is empty, so that episodes of unequal classes go
        together.
        """
        members = members_of(labels, way).to(support.dtype)
        support, query = self.refine(support, members, query, gaps=gaps)
        with torch.autocast(query.device.type, enabled=False):  # an answer is as fine as its numbers
            support, query = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (support, query))
            return self._answer(query, self._known(support, labels, members.to(support.dtype)))

    def _known(self, support: Tensor, labels: Tensor, members: Tensor) -> Known:
        """Refined support tokens (E, K, P, M), labels (E, K), members (E, N, K)"""
        images = support.mean(2)
        classes = means(members, images)
        if self.parts is None:
            return Known(classes, images)
        owners = labels.repeat_interleave(support.shape[2], 1)
        return Known(classes, images, F.normalize(support.flatten(1, 2), dim=-1), owners)

    def _answer(self, query: Tensor, known: Known) -> Tensor:
        """Refined query tokens (E, Q, P, M) -> logits (E, Q, N)"""
        logits = self.answer(query.mean(2)[:, None], known.classes[:, None])[:, 0]
        if self.parts is not None:
            logits = logits + self.parts(query, known) / self.answer.temperature()
        return self.sharpness * logits

    def refine(self, support: Tensor, members: Tensor, query: Tensor, *, gaps: bool = False) -> tuple[Tensor, Tensor]:
        """The embeddings after every support token has seen the support, and every query the support and itself."""
        images, places = support.shape[1:3]
        if not self.blocks:
            return support, query
        given = torch.cat((support, query), 1).flatten(1, 2)
        x = torch.cat((self._support(support, members), self._query(query)), 1).flatten(1, 2)
        mask: Mask | None = None if self.config.transductive else Episode(images * places, size=places)
        if gaps:
            there = members.any(1)
            real = F.pad(there.repeat_interleave(places, 1), (0, query.shape[1] * places), value=True)
            mask = Padding(real) if mask is None else mask & Padding(real)
        for block in self.blocks:
            x = block(x, mask=mask)
        x = self._widened(x, given).unflatten(1, (-1, places))
        return x[:, :images], x[:, images:]

    def remember(self, support: Tensor, labels: Tensor, *, way: int) -> "Memory":
        """Learn from labelled examples once, to be asked any number of times.

        support (E, K, P, M), labels (E, K), 0 to way - 1; a class without an image is at the origin: by angle its
        logits are 0, by distance minus the square of the query's length.
        """
        members = members_of(labels, way).to(support.dtype)
        x = self._support(support, members).flatten(1, 2)
        caches = [Cache() for _ in self.blocks]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache=cache)
        x = self._widened(x, support.flatten(1, 2)).unflatten(1, support.shape[1:3])
        known = self._known(x.double(), labels, members.double())
        return Memory(tuple(tuple(cache.parts) for cache in caches), known, support.shape[1] * support.shape[2])

    def ask(self, memory: "Memory", query: Tensor) -> Tensor:
        """query (E, Q, P, M) -> logits float64 (E, Q, N)

        Each query sees the support and itself, in a transductive head too. Angles are taken in float64: over a low
        temperature, how many are asked together would show in float32.
        """
        places = query.shape[2]
        x = self._query(query).flatten(1, 2)
        for block, seen in zip(self.blocks, memory.seen, strict=True):
            cache = Cache()
            cache.parts = list(seen)
            x = block(x, mask=Episode(memory.tokens, size=places), cache=cache)
        x = self._widened(x, query.flatten(1, 2)).unflatten(1, (-1, places))
        return self._answer(x.double(), memory.known)

    def _support(self, support: Tensor, members: Tensor) -> Tensor:
        """Support tokens that know their class and their role."""
        support = support if self.narrow is None else self.narrow(support)
        if self.label is None or self.role is None:
            return support
        own = members.mT @ means(members, support.mean(2))  # of each support image the mean of its class
        return support + (self.label(own) + self.role[0]).unsqueeze(2)

    def _widened(self, x: Tensor, given: Tensor) -> Tensor:
        """Tokens x as the blocks left them, at the width they were given in: what was added to them, added to those."""
        return x if self.narrow is None else given + (x - self.narrow(given)) @ self.narrow.weight

    def _query(self, query: Tensor) -> Tensor:
        """Query tokens that know their role."""
        query = query if self.narrow is None else self.narrow(query)
        return query if self.role is None else query + self.role[1]


@dataclass(frozen=True, eq=False)
class Memory:
    """What a head keeps of labelled examples: all that a query looks at."""

    seen: tuple[tuple[Tensor, ...], ...]
    """Keys and values of every block, (E, 2 * H, K * P, D)."""
    known: Known
    tokens: int
    """K * P."""

    def only(self, kept: Tensor, labels: Tensor) -> "Memory":
        """Of some examples alone, at next to no cost: those that stay have still seen the others. kept, labels (K,)"""
        known, images = self.known, self.known.images[:, kept]
        tokens = kept.repeat_interleave(self.tokens // len(kept))
        members = members_of(labels[kept][None], known.classes.shape[1]).to(images.dtype)
        parts = None if known.parts is None else known.parts[:, tokens]
        owners = None if known.owners is None else known.owners[:, tokens]
        seen = tuple(tuple(part[:, :, tokens] for part in block) for block in self.seen)
        return Memory(seen, Known(means(members, images), images, parts, owners), int(tokens.sum()))


class FewShot(nn.Module):
    """Images of labelled examples and of queries in, a logit for each query and class out: a backbone and the head."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: FewShotConfig):
        super().__init__()
        c = self.config = config
        self.backbone: Backbone | None = None
        if c.backbone == "none":
            assert c.widths is not None
            self.width, self.grid = c.widths[0], (1, 1)
        else:
            if c.image_size is None or c.channels is None:
                raise ValueError("image_size and channels must be given to make a model, got null")
            make = BACKBONES[c.backbone]
            widths = {} if c.widths is None else {"widths": c.widths}
            self.backbone = make(c.channels, dropout=c.backbone_dropout, **widths)
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster everywhere
            side = self.backbone.side(c.image_size)
            self.width, self.grid = self.backbone.width * (side * side if c.pool == "flat" else 1), (side, side)
            self.register_buffer("mean", torch.zeros(c.channels, 1, 1))
            self.register_buffer("std", torch.ones(c.channels, 1, 1))
        self.head = FewShotHead(self.width, c)
        self.classifier = nn.Linear(self.width, c.classes) if c.classes else None

    def set_normalisation(self, mean: Tensor, std: Tensor) -> None:
        """What to take off each channel and divide it by, in shares of white: (C,) each."""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    def embed(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> (B, P, M); embeddings (B, M) or (B, P, M) likewise"""
        if self.backbone is None:
            return images if images.dim() == 3 else images[:, None]
        images = dark_on_white(images) if self.config.drawings else images
        places: Tensor = self.backbone((images - self.mean) / self.std)
        if self.config.tokens == "patches":
            return places
        return places.flatten(1)[:, None] if self.config.pool == "flat" else places.mean(1, keepdim=True)

    def forward(
        self, images: Tensor, *, way: int, shot: int, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """images (E, K + Q, C, size, size), support first, class by class -> logits (E, Q, N)

        Beside them those of the plain classifier for all images, (E * (K + Q), classes), if there is one. Labels (E, K)
        are given where some of the support is to be passed over: they are -1 there.
        """
        x = self.embed(images.flatten(0, 1))
        plain = None if self.classifier is None else self.classifier(x.mean(1))
        x = x.unflatten(0, images.shape[:2])
        gaps = labels is not None
        if labels is None:
            labels = torch.arange(way, device=x.device).repeat_interleave(shot).expand(len(x), -1)
        return self.head(x[:, : way * shot], labels, x[:, way * shot :], way=way, gaps=gaps), plain
