"""The Lightweight Cosine Transformer: a class from a handful of examples.

One layer of cosine attention lets support images know each other and their classes, and queries know the support; then
a query is answered by its angle to each class. As it starts, before anything is learned, it is a prototype classifier by
angle; all that training adds is on top of that.

Legend for all shapes: E episodes, N way, K support images, Q queries, P tokens of an image, M model width.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import limits
from ..attention import KeyValueCache
from ..attention.masks import Episode, Mask, Padding
from ..attention.scores import SCORES, CosineScore, Score, make_score
from ..errors import SightlineError, check_choice, check_fraction, check_int, check_max
from ..layers import EncoderBlock
from ..layers.backbones import BACKBONES, Backbone
from .drawings import dark_on_white
from .few_shot_answers import Distance, Known, PatchMatching, means, members_of


@dataclass(frozen=True, kw_only=True)
class FewShotConfig:
    """Every choice is a switch, so that it can be left out and missed."""

    image_size: int | None = None
    """Side of the square input; null for that of the data."""
    channels: int | None = None
    """1 for gray, 3 for color; null for those of the data."""
    normalize_drawings: bool = False
    """Whether images are drawings, to be brought to dark ink on white paper first."""
    backbone: Literal["conv4", "resnet12", "none"] = "conv4"
    """What makes an embedding of an image; `none` where embeddings themselves go in."""
    backbone_channels: tuple[int, ...] | None = None
    """Channels of the backbone's blocks; null for those of the papers."""
    embed_dim: int | None = None
    """Dimension of the embeddings where `backbone` is none."""
    pool: Literal["mean", "flat"] = "mean"
    """How the places of the backbone's grid become one vector: their mean, or all of them side by side."""
    bottleneck_dim: int | None = None
    """Width at which the blocks work; what they add there is added to the embeddings. Null for their own width."""
    num_classes: int = 0
    """Classes that a second, plain classifier tells apart while training; 0 for none."""
    depth: int = 1
    """Blocks; 0 is a prototype classifier by angle, and with `metric: euclidean` a prototypical network."""
    num_heads: int = 8
    mlp_ratio: float = 2.0
    """Width of the feed-forward's middle, as a multiple of that at which blocks work."""
    score: str = "cosine"
    """Attention score: a name in `sightline.attention.SCORES`."""
    temperature: float = 0.05
    """What the temperature of attention starts from."""
    min_temperature: float = 0.01
    """What neither temperature falls below."""
    learn_temperature: bool = True
    metric: Literal["cosine", "euclidean"] = "cosine"
    """How a query is held against a class: by their angle over a learned temperature, or by their squared distance."""
    label_embeddings: bool = True
    """Whether support tokens know their class."""
    tokens: Literal["pooled", "patches"] = "pooled"
    """What an image is to attention: one vector, or a token for each place of the backbone's grid."""
    patch_matching: bool = False
    """Whether each token of a query also looks for its like in each class, beside the angle of the whole."""
    transductive: bool = False
    """Whether queries see each other; answers then depend on who else is asked, and are no longer comparable."""
    dropout: float = 0.0
    """In the head's blocks."""
    backbone_dropout: float = 0.0
    """Share of channels left out after each block of the backbone while it learns."""

    def __post_init__(self) -> None:
        check_int(0, depth=self.depth, num_classes=self.num_classes)
        check_int(1, num_heads=self.num_heads)
        check_choice("score", self.score, SCORES)
        check_fraction(dropout=self.dropout, backbone_dropout=self.backbone_dropout)
        if not 0 < self.mlp_ratio < float("inf"):
            raise SightlineError(f"mlp_ratio must be above 0 and finite, got {self.mlp_ratio}")
        CosineScore(temperature=self.temperature, min_temperature=self.min_temperature)  # refuses what it cannot be
        for name in ("image_size", "channels", "embed_dim", "bottleneck_dim"):
            if getattr(self, name) is not None:
                check_int(1, **{name: getattr(self, name)})
        check_max(limits.MAX_FEW_SHOT_IMAGE_SIZE, image_size=self.image_size or 0)
        if (self.backbone == "none") != (self.embed_dim is not None):
            raise SightlineError(
                f"embed_dim must be given where backbone is none, and only there, got {self.embed_dim} with "
                f"{self.backbone!r}"
            )
        if self.normalize_drawings and self.channels not in (None, 1):
            raise SightlineError(f"channels must be 1 where images are drawings, got {self.channels}")
        if self.tokens == "patches" and self.pool == "flat":
            raise SightlineError("pool must be mean where tokens are patches, got 'flat'")


class FewShotHead(nn.Module):
    """Embeddings of labelled examples and of queries in, a logit for each query and class out."""

    calibration_scale: Tensor

    def __init__(self, embed_dim: int, config: FewShotConfig):
        super().__init__()
        check_int(1, embed_dim=embed_dim)
        c = self.config = config
        self.bottleneck: nn.Linear | None = None
        if c.depth and c.bottleneck_dim is not None:
            if c.bottleneck_dim >= embed_dim:
                raise SightlineError(
                    f"bottleneck_dim must be below the embedding dimension {embed_dim}, got {c.bottleneck_dim}"
                )
            self.bottleneck = nn.Linear(embed_dim, c.bottleneck_dim, bias=False)
            nn.init.orthogonal_(self.bottleneck.weight)
            embed_dim = c.bottleneck_dim
        if c.depth and embed_dim % c.num_heads:
            raise SightlineError(f"num_heads must divide the dimension {embed_dim} of the blocks, got {c.num_heads}")
        options: dict[str, Any] = {"norm": "pre", "activation": "gelu", "dropout": c.dropout, "bias": False}
        blocks = [
            EncoderBlock(
                embed_dim, c.num_heads, round(embed_dim * c.mlp_ratio), score=self._score(embed_dim), **options
            )
            for _ in range(c.depth)
        ]
        for block in blocks:  # a block starts as the identity
            nn.init.zeros_(block.attention.out_proj.weight)
            nn.init.zeros_(block.mlp.fc2.weight)
        self.blocks = nn.ModuleList(blocks)
        labelled = c.label_embeddings and c.depth
        self.label_proj = nn.Linear(embed_dim, embed_dim, bias=False) if labelled else None
        self.role_embedding = nn.Parameter(torch.zeros(2, embed_dim)) if labelled else None
        if self.label_proj is not None:
            nn.init.zeros_(self.label_proj.weight)
        self.similarity: CosineScore | Distance = Distance()
        if c.metric == "cosine":
            self.similarity = CosineScore(temperature=0.1, min_temperature=c.min_temperature)
        self.patch_matching = PatchMatching() if c.patch_matching else None
        self.register_buffer("calibration_scale", torch.ones(()))

    def _score(self, embed_dim: int) -> Score:
        c = self.config
        if c.score != "cosine":
            return make_score(c.score, head_dim=embed_dim // c.num_heads, num_heads=c.num_heads)
        return CosineScore(
            temperature=c.temperature,
            min_temperature=c.min_temperature,
            num_heads=c.num_heads,
            learnable=c.learn_temperature,
        )

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
        if self.patch_matching is None:
            return Known(classes, images)
        owners = labels.repeat_interleave(support.shape[2], 1)
        return Known(classes, images, F.normalize(support.flatten(1, 2), dim=-1), owners)

    def _answer(self, query: Tensor, known: Known) -> Tensor:
        """Refined query tokens (E, Q, P, M) -> logits (E, Q, N)"""
        logits = self.similarity(query.mean(2)[:, None], known.classes[:, None])[:, 0]
        if self.patch_matching is not None:
            logits = logits + self.patch_matching(query, known) / self.similarity.temperature()
        return self.calibration_scale * logits

    def refine(self, support: Tensor, members: Tensor, query: Tensor, *, gaps: bool = False) -> tuple[Tensor, Tensor]:
        """The embeddings after every support token has seen the support, and every query the support and itself."""
        images, places = support.shape[1:3]
        if not self.blocks:
            return support, query
        given = torch.cat((support, query), 1).flatten(1, 2)
        x = torch.cat((self._support(support, members), self._query(query)), 1).flatten(1, 2)
        mask: Mask | None = None if self.config.transductive else Episode(images * places, query_size=places)
        if gaps:
            there = members.any(1)
            attention_mask = F.pad(there.repeat_interleave(places, 1), (0, query.shape[1] * places), value=True)
            mask = Padding(attention_mask) if mask is None else mask & Padding(attention_mask)
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
        caches = [KeyValueCache() for _ in self.blocks]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache=cache)
        x = self._widened(x, support.flatten(1, 2)).unflatten(1, support.shape[1:3])
        known = self._known(x.double(), labels, members.double())
        return Memory(tuple(tuple(cache.tensors) for cache in caches), known, support.shape[1] * support.shape[2])

    def ask(self, memory: "Memory", query: Tensor) -> Tensor:
        """query (E, Q, P, M) -> logits float64 (E, Q, N)

        Each query sees the support and itself, in a transductive head too. Angles are taken in float64: over a low
        temperature, how many are asked together would show in float32.
        """
        places = query.shape[2]
        x = self._query(query).flatten(1, 2)
        for block, seen in zip(self.blocks, memory.seen, strict=True):
            cache = KeyValueCache()
            cache.tensors = list(seen)
            x = block(x, mask=Episode(memory.tokens, query_size=places), cache=cache)
        x = self._widened(x, query.flatten(1, 2)).unflatten(1, (-1, places))
        return self._answer(x.double(), memory.known)

    def _support(self, support: Tensor, members: Tensor) -> Tensor:
        """Support tokens that know their class and their role."""
        support = support if self.bottleneck is None else self.bottleneck(support)
        if self.label_proj is None or self.role_embedding is None:
            return support
        own = members.mT @ means(members, support.mean(2))  # of each support image the mean of its class
        return support + (self.label_proj(own) + self.role_embedding[0]).unsqueeze(2)

    def _widened(self, x: Tensor, given: Tensor) -> Tensor:
        """Tokens x as the blocks left them, at the width they were given in: what was added to them, added to those."""
        return x if self.bottleneck is None else given + (x - self.bottleneck(given)) @ self.bottleneck.weight

    def _query(self, query: Tensor) -> Tensor:
        """Query tokens that know their role."""
        query = query if self.bottleneck is None else self.bottleneck(query)
        return query if self.role_embedding is None else query + self.role_embedding[1]


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
            assert c.embed_dim is not None
            self.embed_dim, self.grid = c.embed_dim, (1, 1)
        else:
            if c.image_size is None or c.channels is None:
                raise SightlineError("image_size and channels must be given to make a model, got null")
            make = BACKBONES[c.backbone]
            widths = {} if c.backbone_channels is None else {"channels": c.backbone_channels}
            self.backbone = make(c.channels, dropout=c.backbone_dropout, **widths)
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster everywhere
            side = self.backbone.grid_size(c.image_size)
            self.embed_dim, self.grid = self.backbone.embed_dim * (side * side if c.pool == "flat" else 1), (side, side)
            self.register_buffer("mean", torch.zeros(c.channels, 1, 1))
            self.register_buffer("std", torch.ones(c.channels, 1, 1))
        self.head = FewShotHead(self.embed_dim, c)
        self.classifier = nn.Linear(self.embed_dim, c.num_classes) if c.num_classes else None

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """What to take off each channel and divide it by, in shares of white: (C,) each."""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    def embed(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> (B, P, M); embeddings (B, M) or (B, P, M) likewise"""
        if self.backbone is None:
            return images if images.dim() == 3 else images[:, None]
        images = dark_on_white(images) if self.config.normalize_drawings else images
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
