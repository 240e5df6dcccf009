"""The head of a few-shot model: attention over a support set, then a readout that computes the logits.

Support images attend to the support set, queries to the support set and to themselves. By default the logits are the
cosine similarity of the query and the mean of the class, divided by a learned temperature.

Shapes: E episodes, S support images, Q queries, T tokens per image, M embedding dimension, H heads, D head dimension.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import KeyValueCache
from ..attention.masks import Episode, Mask, Padding
from ..attention.scores import CosineScore, Score, make_score
from ..errors import check, check_int
from ..layers import EncoderBlock
from . import readouts
from .few_shot_config import FewShotConfig
from .normalization import EmbeddingNormalization, SpatialNormalization, make_normalization
from .readouts import FitReadout
from .support_state import SupportState, class_means, class_membership

SUPPORT_TOKENS_PER_CHUNK = 4096
"""Support tokens that patch matching compares with the queries at a time, which bounds its memory."""
RIDGE_PENALTY = 0.3
"""Initial penalty of the ridge readout."""
LOGISTIC_SCALE = 10.0
"""Calibration scale of logistic regression on vectors of unit length: its penalty makes it underconfident."""


class NegativeSquaredDistance(nn.Module):
    """Minus the squared Euclidean distance. It has no parameters."""

    def temperature(self) -> Tensor:
        """1: the distance is not scaled."""
        return torch.ones(())

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (..., Q, M), k (..., N, M) -> (..., Q, N)"""
        return 2 * q @ k.mT - q.square().sum(-1, keepdim=True) - k.square().sum(-1)[..., None, :]


class PatchMatching(nn.Module):
    """The mean over the tokens of a query of their soft maximum cosine similarity to the tokens of each class.

    It is multiplied by a learned weight, which is 0 at initialization.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.score = CosineScore(temperature=0.1, min_temperature=0.05)  # exp(-2 / 0.05) does not underflow

    def forward(self, query: Tensor, state: SupportState) -> Tensor:
        """query (E, Q, T, M) -> (E, Q, way)"""
        assert state.tokens is not None
        assert state.token_labels is not None
        q, way = F.normalize(query.flatten(1, 2), dim=-1), state.class_means.shape[1]
        if torch.compiler.is_exporting() or state.tokens.shape[1] <= SUPPORT_TOKENS_PER_CHUNK:
            classes = torch.arange(way, device=q.device)
            total, weight = self._sums(q, state.tokens, state.token_labels, classes)
        else:
            total, weight = (q.new_zeros(*q.shape[:2], way) for _ in range(2))
            chunks = (x.split(SUPPORT_TOKENS_PER_CHUNK, 1) for x in (state.tokens, state.token_labels))
            for tokens, labels in zip(*chunks, strict=True):
                classes = labels.unique()
                classes = classes[classes >= 0]  # a chunk has tokens of few classes
                chunk_total, chunk_weight = self._sums(q, tokens, labels, classes)
                total, weight = total.index_add(2, classes, chunk_total), weight.index_add(2, classes, chunk_weight)
        return self.weight * (total / weight.clamp_min(1e-30)).unflatten(1, query.shape[1:3]).mean(2)

    def _sums(self, q: Tensor, tokens: Tensor, labels: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """For each of C classes, the sum of weight times cosine and the sum of weights: (E, Q * T, C) each"""
        cosines = q @ tokens.mT
        weights = ((cosines - 1) / self.score.temperature()).exp()  # bounded, so no maximum is subtracted
        membership = (labels[..., None] == classes).to(cosines.dtype)
        return (weights * cosines) @ membership, weights @ membership


class FewShotHead(nn.Module):
    """Classifies query embeddings from labeled support embeddings."""

    calibration_scale: Tensor

    def __init__(self, embed_dim: int, config: FewShotConfig):
        super().__init__()
        check_int(1, embed_dim=embed_dim)
        c, self.embed_dim = config, embed_dim
        self.config = config
        self.normalization: nn.Module | None = make_normalization(c)
        self.log_penalty: nn.Parameter | None = None
        if c.readout == "ridge":
            self.log_penalty = nn.Parameter(torch.tensor(math.log(RIDGE_PENALTY)))  # torch would import its compiler
        self.bottleneck: nn.Linear | None = None
        if c.depth and c.bottleneck_dim is not None:
            message = f"bottleneck_dim must be below the embedding dimension {embed_dim}, got {c.bottleneck_dim}"
            check(c.bottleneck_dim < embed_dim, message)
            self.bottleneck = nn.Linear(embed_dim, c.bottleneck_dim, bias=False)
            nn.init.orthogonal_(self.bottleneck.weight)
            embed_dim = c.bottleneck_dim
        is_divisible = not c.depth or embed_dim % c.num_heads == 0
        check(is_divisible, f"num_heads must divide the dimension {embed_dim} of the blocks, got {c.num_heads}")
        options: dict[str, Any] = {"norm": "pre", "activation": "gelu", "dropout": c.dropout, "bias": False}
        self.blocks = nn.ModuleList()
        for _ in range(c.depth):
            hidden_dim, score = round(embed_dim * c.mlp_ratio), self._score(embed_dim)
            block = EncoderBlock(embed_dim, c.num_heads, hidden_dim, score=score, **options)
            nn.init.zeros_(block.attention.out_proj.weight)  # a block is the identity at initialization
            nn.init.zeros_(block.mlp.fc2.weight)
            self.blocks.append(block)
        self.label_proj: nn.Linear | None = None
        self.role_embedding: nn.Parameter | None = None
        if c.label_embeddings and c.depth:
            self.label_proj = nn.Linear(embed_dim, embed_dim, bias=False)
            self.role_embedding = nn.Parameter(torch.zeros(2, embed_dim))
            nn.init.zeros_(self.label_proj.weight)
        self.similarity: CosineScore | NegativeSquaredDistance = NegativeSquaredDistance()
        if c.metric == "cosine":
            self.similarity = CosineScore(temperature=0.1, min_temperature=c.min_temperature)
        self.patch_matching = PatchMatching() if c.patch_matching else None
        self.register_buffer("calibration_scale", torch.ones(()))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.calibration_scale.device

    @property
    def is_trained(self) -> bool:
        """Whether it has blocks, which are useful after training only."""
        return self.config.depth > 0

    @property
    def has_regression(self) -> bool:
        """Whether the readout is a regression on the support images."""
        return self.config.readout != "prototypes"

    @property
    def has_statistics(self) -> bool:
        """Whether embeddings are normalized by statistics of other images of the same encoder."""
        return self.normalization is not None

    def class_similarity(self, state: SupportState) -> Tensor:
        """The mean over classes of the largest cosine similarity of the class mean to that of another class: (E,)"""
        means = F.normalize(state.class_means, dim=-1)
        cosines = means @ means.mT - 2 * torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
        return cosines.amax(-1).mean(-1)

    @property
    def is_readout(self) -> bool:
        """Whether it is a readout alone: logits depend on the inner products of the means over tokens."""
        return not self.blocks and self.patch_matching is None

    def for_normalized(self, normalization: nn.Module) -> "FewShotHead":
        """The same readout with another normalization, for embeddings that are normalized already."""
        assert self.is_readout
        options: dict[str, Any] = {"power": None, "whitening_dim": None}
        options |= {"feature_map_size": None, "feature_map_channels": None}
        head = FewShotHead(self.embed_dim, replace(self.config, **options))
        own = {key: x for key, x in self.state_dict().items() if not key.startswith("normalization.")}
        head.load_state_dict(own)
        head.to(self.device).eval().requires_grad_(False).normalization = normalization
        return head

    def with_map_weight(self, weight: float) -> "FewShotHead":
        """The same readout on the same embeddings with another weight of their feature map."""
        assert isinstance(self.normalization, SpatialNormalization)
        return self.for_normalized(self.normalization.with_weight(weight))

    def without_blocks(self, readout: str) -> "FewShotHead":
        """A head with this readout on the same embeddings, without attention and patch matching.

        For logistic regression they are not whitened, and their feature map is left out, so that methods differ more.
        """
        options: dict[str, Any] = {"readout": readout, "depth": 0, "patch_matching": False, "metric": "cosine"}
        head = FewShotHead(self.embed_dim, replace(self.config, **options, temperature=0.05, min_temperature=0.01))
        head.to(self.device).eval().requires_grad_(False).normalization = self.normalization
        if readout == "logistic":
            head.calibration_scale.fill_(LOGISTIC_SCALE)
            if isinstance(self.normalization, EmbeddingNormalization | SpatialNormalization):
                head.normalization = self.normalization.without_whitening()
        return head

    def _score(self, embed_dim: int) -> Score:
        c = self.config
        if c.score != "cosine":
            return make_score(c.score, head_dim=embed_dim // c.num_heads, num_heads=c.num_heads)
        temperatures = {"temperature": c.temperature, "min_temperature": c.min_temperature}
        return CosineScore(num_heads=c.num_heads, learnable=c.learn_temperature, **temperatures)

    def forward(self, support: Tensor, labels: Tensor, query: Tensor, *, way: int, padded: bool = False) -> Tensor:
        """support (E, S, T, M), labels (E, S), query (E, Q, T, M) -> logits (E, Q, way)

        Labels are 0 to way - 1. With `padded`, support images of label -1 are ignored, so episodes with different
        numbers of support images can share a batch.
        """
        support, query = self.normalize(support), self.normalize(query)
        membership = class_membership(labels, way).to(support.dtype)
        support, query = self.refine(support, membership, query, padded=padded)
        with torch.autocast(query.device.type, enabled=False):  # logits in at least float32
            support, query = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (support, query))
            return self._logits(query, self._state(support, labels, membership.to(support.dtype)))

    def normalize(self, x: Tensor) -> Tensor:
        """Embeddings (..., M) as the blocks take them."""
        return x if self.normalization is None else self.normalization(x)

    def refine(
        self, support: Tensor, membership: Tensor, query: Tensor, *, padded: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The normalized support and query tokens after all blocks: (E, S, T, M) and (E, Q, T, M)"""
        num_images, num_tokens = support.shape[1:3]
        if not self.blocks:
            return support, query
        embeddings = torch.cat((support, query), 1).flatten(1, 2)
        x = torch.cat((self._support_tokens(support, membership), self._query_tokens(query)), 1).flatten(1, 2)
        mask: Mask | None = None
        if not self.config.transductive:
            mask = Episode(num_images * num_tokens, query_size=num_tokens)
        if padded:
            is_support = membership.any(1).repeat_interleave(num_tokens, 1)
            padding = Padding(F.pad(is_support, (0, query.shape[1] * num_tokens), value=True))
            mask = padding if mask is None else mask & padding
        for block in self.blocks:
            x = block(x, mask=mask)
        x = self._expand(x, embeddings).unflatten(1, (-1, num_tokens))
        return x[:, :num_images], x[:, num_images:]

    def encode_support(self, support: Tensor, labels: Tensor, *, way: int) -> SupportState:
        """Encode a support set once, to classify any number of queries: support (E, S, T, M), labels (E, S).

        A class without images has its mean at the origin. Its logits are 0 by cosine, and minus the squared length of
        the query by distance.
        """
        support, membership = self.normalize(support), class_membership(labels, way).to(support.dtype)
        x = self._support_tokens(support, membership).flatten(1, 2)
        caches = [KeyValueCache() for _ in self.blocks]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache=cache)
        x = self._expand(x, support.flatten(1, 2)).unflatten(1, support.shape[1:3])
        return self._state(x.double(), labels, membership.double(), tuple(tuple(cache.tensors) for cache in caches))

    def classify(self, state: SupportState, query: Tensor) -> Tensor:
        """query (E, Q, T, M) -> logits float64 (E, Q, way)

        Queries do not attend to each other, in a transductive head neither. Similarities are computed in float64:
        divided by a low temperature, the rounding errors of float32 would depend visibly on the number of queries.
        """
        query, num_tokens = self.normalize(query), query.shape[2]
        x = self._query_tokens(query).flatten(1, 2)
        for block, tensors in zip(self.blocks, state.keys_values, strict=True):
            mask = Episode(state.num_tokens, query_size=num_tokens)
            x = block(x, mask=mask, cache=KeyValueCache(*tensors))
        x = self._expand(x, query.flatten(1, 2)).unflatten(1, (-1, num_tokens))
        return self._logits(x.double(), state)

    def _state(
        self, support: Tensor, labels: Tensor, membership: Tensor, keys_values: tuple[tuple[Tensor, ...], ...] = ()
    ) -> SupportState:
        """The state of refined support tokens (E, S, T, M) with labels (E, S) and membership (E, way, S)."""
        images, num_tokens = support.mean(2), support.shape[2]
        tokens = token_labels = None
        if self.patch_matching is not None:
            tokens = F.normalize(support.flatten(1, 2), dim=-1)
            token_labels = labels.repeat_interleave(num_tokens, 1)
        means, fit_readout = class_means(membership, images), self._fit_readout()
        readout = None if fit_readout is None else fit_readout(images, membership)
        has_images = membership.any(-1)
        return SupportState(
            means,
            has_images,
            images,
            tokens,
            token_labels,
            keys_values,
            support.shape[1] * num_tokens,
            readout,
            fit_readout,
        )

    def _fit_readout(self) -> FitReadout | None:
        if self.log_penalty is not None:
            return partial(readouts.ridge, penalty=self.log_penalty.exp())
        return readouts.logistic if self.config.readout == "logistic" else None

    def _logits(self, query: Tensor, state: SupportState) -> Tensor:
        """Refined query tokens (E, Q, T, M) -> logits (E, Q, way)"""
        if state.readout is None:
            logits = self.similarity(query.mean(2)[:, None], state.class_means[:, None])[:, 0]
        else:
            logits = state.readout(query.mean(2))
            if self.config.readout == "ridge":
                logits = logits / self.similarity.temperature()
            logits = logits + self._similarity_to_predicted(query, logits, state)
        if self.patch_matching is not None:
            logits = logits + self.patch_matching(query, state) / self.similarity.temperature()
        return self.calibration_scale * logits

    def _similarity_to_predicted(self, query: Tensor, logits: Tensor, state: SupportState) -> Tensor:
        """The similarity of queries (E, Q, T, M) to the mean of the class with their largest logit: (E, Q, 1)

        Classes without images are left out.

        It is added to the logits of all classes, so it does not change probabilities. The largest logit then also tells
        known from unknown images, which a regression on the classes alone does not.
        """
        similarities = self.similarity(query.mean(2)[:, None], state.class_means[:, None])[:, 0]
        predicted = logits.masked_fill(~state.has_images[:, None], float("-inf")).argmax(-1, keepdim=True)
        return similarities.gather(2, predicted) / self.calibration_scale

    def _support_tokens(self, support: Tensor, membership: Tensor) -> Tensor:
        """Support tokens in the dimension of the blocks, with label and role embeddings."""
        support = support if self.bottleneck is None else self.bottleneck(support)
        if self.label_proj is None or self.role_embedding is None:
            return support
        label_means = membership.mT @ class_means(membership, support.mean(2))
        return support + (self.label_proj(label_means) + self.role_embedding[0]).unsqueeze(2)

    def _query_tokens(self, query: Tensor) -> Tensor:
        """Query tokens in the dimension of the blocks, with a role embedding."""
        query = query if self.bottleneck is None else self.bottleneck(query)
        return query if self.role_embedding is None else query + self.role_embedding[1]

    def _expand(self, x: Tensor, embeddings: Tensor) -> Tensor:
        """Add what the blocks added in the bottleneck to the embeddings before it."""
        if self.bottleneck is None:
            return x
        return embeddings + (x - self.bottleneck(embeddings)) @ self.bottleneck.weight
