"""The Lightweight Cosine Transformer: few-shot classification by attention over a support set.

Support images attend to the support set, queries to the support set and to themselves. A readout then computes the
logits: by default the cosine similarity of the query and the mean of the class, divided by a learned temperature. Every
block is the identity at initialization, so the untrained model is a nearest-mean classifier by cosine similarity.

Shapes: E episodes, S support images, Q queries, T tokens per image, M embedding dimension, H heads, D head dimension.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import KeyValueCache
from ..attention.masks import Episode, Mask, Padding
from ..attention.scores import SCORES, CosineScore, Score, make_score
from ..config import Config, Fraction, MlpRatio, NonNegativeInt, PositiveInt, at_least, at_most, choice, rule
from ..errors import SightlineError, check, check_int
from ..layers import EncoderBlock
from ..layers.backbones import BACKBONES, Backbone
from . import readouts
from .drawings import normalize_drawings
from .normalization import EmbeddingNormalization
from .readouts import FitReadout, LinearReadout

Channels = Annotated[int, rule("1 or 3", lambda channels: channels in (1, 3))]
SUPPORT_TOKENS_PER_CHUNK = 4096
"""Support tokens that patch matching compares with the queries at a time, which bounds its memory."""
RIDGE_PENALTY = 0.3
"""Initial penalty of the ridge readout."""
LOGISTIC_SCALE = 10.0
"""Calibration scale of logistic regression on vectors of unit length: its penalty makes it underconfident."""
EMBEDDING_BATCH_SIZES = {"cpu": 64, "cuda": 1024}
"""Images per forward pass of the backbone; on a CPU, activations then stay in its cache."""


@dataclass(frozen=True, kw_only=True)
class FewShotConfig(Config):
    """Config of a few-shot model. Every component can be turned off for an ablation."""

    data_keys = ("image_size", "channels", "num_classes")

    image_size: Annotated[int, at_least(1), at_most("MAX_FEW_SHOT_IMAGE_SIZE")] | None = None
    """Side length of the input images; null for that of the data."""
    channels: Channels | None = None
    """1 for grayscale, 3 for color; null for those of the data."""
    normalize_drawings: bool = False
    """Whether images are drawings, which are converted to dark ink on white paper first."""
    backbone: Literal["conv4", "resnet12", "none"] = "conv4"
    """The image encoder; `none` if the inputs are embeddings."""
    backbone_channels: tuple[int, ...] | None = None
    """Channels of the blocks of the backbone; null for those of the literature."""
    embed_dim: PositiveInt | None = None
    """Dimension of the embeddings; required if `backbone` is none, and only then."""
    views: Annotated[int, rule("1, 2 or 7", lambda views: views in (1, 2, 7))] = 1
    """Views of an image whose embeddings by a fixed encoder are averaged: the whole image, its mirror image, and five
    crops."""
    pool: Literal["mean", "flat"] = "mean"
    """How the feature map becomes one vector: its mean, or all positions concatenated."""
    bottleneck_dim: PositiveInt | None = None
    """Dimension of the blocks; what they add is projected back and added to the embeddings. Null for no bottleneck."""
    num_classes: NonNegativeInt = 0
    """Classes of the auxiliary linear classifier used in training; 0 for none."""
    depth: NonNegativeInt = 1
    """Number of blocks. 0 gives a nearest-mean classifier, with `metric: euclidean` a prototypical network."""
    num_heads: PositiveInt = 8
    mlp_ratio: MlpRatio = 2.0
    """Hidden dimension of the feed-forward network, as a multiple of the dimension of the blocks."""
    score: Annotated[str, choice(SCORES)] = "cosine"
    """Attention score: a name in `sightline.attention.SCORES`."""
    temperature: float = 0.05
    """Initial temperature of cosine attention."""
    min_temperature: float = 0.01
    """Lower bound of all learned temperatures."""
    learn_temperature: bool = True
    metric: Literal["cosine", "euclidean"] = "cosine"
    """Similarity of a query and a class: cosine over a learned temperature, or the negative squared distance."""
    readout: Literal["prototypes", "ridge", "logistic"] = "prototypes"
    """How refined tokens become logits: similarity to the class means, ridge regression or logistic regression on the
    support images of the episode."""
    power: Annotated[float, rule("above 0 and at most 1", lambda power: 0 < power <= 1)] | None = None
    """Exponent of a power transform of the embeddings of a fixed encoder, which are then centered by the mean of the
    training images; null for embeddings as they are."""
    whitening_dim: PositiveInt | None = None
    """Directions of the embeddings that are whitened by the variance within training classes; requires `power`."""
    label_embeddings: bool = True
    """Whether a projection of the class mean is added to every support token."""
    tokens: Literal["pooled", "patches"] = "pooled"
    """Tokens of an image: one pooled vector, or one for each position of the feature map."""
    patch_matching: bool = False
    """Whether the similarity of the best matching tokens is added to the logits."""
    transductive: bool = False
    """Whether queries attend to each other. Predictions then depend on the other queries."""
    dropout: Fraction = 0.0
    """Dropout in the blocks."""
    backbone_dropout: Fraction = 0.0
    """Dropout of channels after each block of the backbone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        CosineScore(temperature=self.temperature, min_temperature=self.min_temperature)  # checks both values
        has_embeddings = self.backbone == "none"
        is_given, got = self.embed_dim is not None, f"got {self.embed_dim} with {self.backbone!r}"
        check(is_given == has_embeddings, f"embed_dim must be given if backbone is none, and only then, {got}")
        has_views = has_embeddings and self.tokens == "pooled"
        required = "views must be 1 for a model with a backbone or with tokens: patches"
        check(self.views == 1 or has_views, f"{required}, got {self.views}")
        is_normalized = self.power is not None or self.whitening_dim is not None
        required = "power and whitening_dim must be null for a model with a backbone"
        check(has_embeddings or not is_normalized, f"{required}, got {self.power} and {self.whitening_dim}")
        is_complete = self.whitening_dim is None or self.power is not None
        check(is_complete, f"power must be given if whitening_dim is, got null with {self.whitening_dim}; 1 is none")
        is_possible = (self.whitening_dim or 0) <= (self.embed_dim or 0)
        check(is_possible, f"whitening_dim must be at most embed_dim, {self.embed_dim}, got {self.whitening_dim}")
        is_cosine = self.readout == "prototypes" or self.metric == "cosine"
        check(is_cosine, f"readout must be prototypes if metric is euclidean, got {self.readout!r}")
        is_gray = self.channels in (None, 1) or not self.normalize_drawings
        check(is_gray, f"channels must be 1 if normalize_drawings is true, got {self.channels}")
        check(self.tokens == "pooled" or self.pool == "mean", "pool must be mean if tokens is patches, got 'flat'")


@dataclass(frozen=True, eq=False)
class SupportState:
    """An encoded support set: all that `FewShotHead.classify` needs of it."""

    class_means: Tensor
    """(E, way, M)"""
    image_means: Tensor
    """(E, S, M), the mean of the tokens of each support image."""
    tokens: Tensor | None = None
    """(E, S * T, M), all support tokens at unit length; None without patch matching."""
    token_labels: Tensor | None = None
    """(E, S * T), the class of each of these; None without patch matching."""
    keys_values: tuple[tuple[Tensor, ...], ...] = ()
    """Keys and values of every block, (E, H, S * T, D)."""
    num_tokens: int = 0
    """S * T."""
    readout: LinearReadout | None = None
    """The fitted readout; None for similarity to the class means."""
    fit_readout: FitReadout | None = None
    """Computes the readout of other support images."""

    @property
    def device(self) -> torch.device:
        """The device of the state."""
        return self.class_means.device

    def select(self, subsets: Tensor, labels: Tensor) -> "SupportState":
        """The states of subsets of the support images of one episode, without encoding them again.

        Each subset is an episode of the result: subsets (E, S) are indices of support images, labels are those of all.
        This is an approximation: the selected images have attended to the others.
        """
        images, steps = self.image_means[0, subsets], torch.arange(self.num_tokens // len(labels), device=self.device)
        tokens = (subsets[..., None] * len(steps) + steps).flatten(1)
        membership = class_membership(labels[subsets], self.class_means.shape[1]).to(images.dtype)
        readout = None if self.fit_readout is None else self.fit_readout(images, membership)
        return SupportState(
            class_means=class_means(membership, images),
            image_means=images,
            tokens=None if self.tokens is None else self.tokens[0, tokens],
            token_labels=None if self.token_labels is None else self.token_labels[0, tokens],
            keys_values=tuple(tuple(x[0][:, tokens].transpose(0, 1) for x in block) for block in self.keys_values),
            num_tokens=tokens.shape[1],
            readout=readout,
            fit_readout=self.fit_readout,
        )


def class_membership(labels: Tensor, way: int) -> Tensor:
    """Whether each support image is of each class: labels (E, S) -> bool (E, way, S)"""
    return labels[:, None] == torch.arange(way, device=labels.device)[:, None]


def class_means(membership: Tensor, x: Tensor) -> Tensor:
    """The mean of each class, 0 for an empty class: membership (E, way, S), x (E, S, M) -> (E, way, M)"""
    return membership / membership.sum(-1, keepdim=True).clamp_min(1) @ x


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
        self.normalization: EmbeddingNormalization | None = None
        if c.power is not None:
            self.normalization = EmbeddingNormalization(embed_dim, power=c.power, whitening_dim=c.whitening_dim or 0)
        self.log_penalty: nn.Parameter | None = None
        if c.readout == "ridge":
            self.log_penalty = nn.Parameter(torch.tensor(RIDGE_PENALTY).log())
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

    def without_blocks(self, readout: str) -> "FewShotHead":
        """A head with this readout on the same embeddings, without attention and patch matching.

        For logistic regression they are not whitened, so that methods differ more.
        """
        options: dict[str, Any] = {"readout": readout, "depth": 0, "patch_matching": False, "metric": "cosine"}
        head = FewShotHead(self.embed_dim, replace(self.config, **options, temperature=0.05, min_temperature=0.01))
        head.to(self.device).eval().requires_grad_(False).normalization = self.normalization
        if readout == "logistic":
            head.calibration_scale.fill_(LOGISTIC_SCALE)
            head.normalization = None if self.normalization is None else self.normalization.without_whitening()
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
        return SupportState(
            means, images, tokens, token_labels, keys_values, support.shape[1] * num_tokens, readout, fit_readout
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

        It is added to the logits of all classes, so it does not change probabilities. The largest logit then also tells
        known from unknown images, which a regression on the classes alone does not.
        """
        similarities = self.similarity(query.mean(2)[:, None], state.class_means[:, None])[:, 0]
        return similarities.gather(2, logits.argmax(-1, keepdim=True)) / self.calibration_scale

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


def nearest_mean_model(embed_dim: int) -> "FewShot":
    """A model without parameters: classification by cosine similarity to the class mean."""
    return FewShot(FewShotConfig(backbone="none", embed_dim=embed_dim, depth=0)).eval()


class FewShot(nn.Module):
    """A backbone and a few-shot head."""

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
                raise SightlineError("image_size and channels must be given to build a model, got null")
            options = {} if c.backbone_channels is None else {"channels": c.backbone_channels}
            self.backbone = BACKBONES[c.backbone](c.channels, dropout=c.backbone_dropout, **options)
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on all devices
            side = self.backbone.grid_size(c.image_size)
            self.embed_dim, self.grid = self.backbone.embed_dim * (side * side if c.pool == "flat" else 1), (side, side)
            self.register_buffer("mean", torch.zeros(c.channels, 1, 1))
            self.register_buffer("std", torch.ones(c.channels, 1, 1))
        self.head = FewShotHead(self.embed_dim, c)
        self.classifier = nn.Linear(self.embed_dim, c.num_classes) if c.num_classes else None

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """Set the mean and standard deviation of the channels, of pixel values from 0 to 1: (C,) each."""
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_(std.clamp_min(1e-3).view(-1, 1, 1))

    @torch.no_grad()
    def embed_pixels(self, pixels: Tensor, batch_size: int | None = None) -> Tensor:
        """pixels uint8 (N, C, image_size, image_size) -> float32 (N, T, M) on the device of the model, in batches"""
        device = self.head.device
        batches = pixels.split(batch_size or EMBEDDING_BATCH_SIZES[device.type])
        return torch.cat([self.embed(batch.to(device).float() / 255).float() for batch in batches])

    def embed(self, images: Tensor) -> Tensor:
        """images (B, C, image_size, image_size), from 0 to 1 -> (B, T, M)

        Without a backbone, embeddings (B, M) or (B, T, M) -> (B, T, M).
        """
        if self.backbone is None:
            return images if images.dim() == 3 else images[:, None]
        return self.pool(self.backbone(self.normalize(images)))

    def normalize(self, images: Tensor) -> Tensor:
        """Images as the backbone takes them: (B, C, image_size, image_size), from 0 to 1 -> the same shape"""
        images = normalize_drawings(images) if self.config.normalize_drawings else images
        return (images - self.mean) / self.std

    def pool(self, features: Tensor) -> Tensor:
        """The feature map of the backbone (B, T, M) -> the tokens of the head: all positions, or one vector"""
        if self.config.tokens == "patches":
            return features
        return features.flatten(1)[:, None] if self.config.pool == "flat" else features.mean(1, keepdim=True)

    def forward(
        self, images: Tensor, *, way: int, shot: int, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """images (E, way * shot + Q, C, image_size, image_size), support first -> logits (E, Q, way)

        The second output are the logits of the auxiliary classifier for all images, (E * (way * shot + Q),
        num_classes), or None. The support is ordered by class; `labels` (E, way * shot) are given if some support
        images are to be ignored: theirs are -1.
        """
        x = self.embed(images.flatten(0, 1))
        auxiliary = None if self.classifier is None else self.classifier(x.mean(1))
        x = x.unflatten(0, images.shape[:2])
        padded = labels is not None
        if labels is None:
            labels = torch.arange(way, device=x.device).repeat_interleave(shot).expand(x.shape[0], -1)
        return self.head(x[:, : way * shot], labels, x[:, way * shot :], way=way, padded=padded), auxiliary
