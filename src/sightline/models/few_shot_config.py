"""Config of few-shot models."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ..attention.scores import SCORES, CosineScore
from ..config import Config, Fraction, MlpRatio, NonNegativeInt, PositiveInt, at_least, at_most, choice, rule
from ..errors import check

Channels = Annotated[int, rule("1 or 3", lambda channels: channels in (1, 3))]


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
    views: PositiveInt = 1
    """Views of an image whose embeddings are averaged outside of training: the whole image, its mirror image and, for a
    fixed encoder, five crops. With `normalize_drawings`, 3: the drawing, and rotated by 8 degrees to either side."""
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
    feature_map_size: PositiveInt | None = None
    """Rows and columns of the feature map that the embeddings of an encoder such as `efficientnet_lite0_spatial` end
    with; null for none. Requires `power`."""
    feature_map_channels: PositiveInt | None = None
    """Channels of that feature map."""
    feature_map_weight: Annotated[float, rule("above 0 and below 1", lambda weight: 0 < weight < 1)] = 0.15
    """Weight of the feature map in the similarity of two images; that of the pooled features is 1 minus it."""
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
        kind, more = self._views()
        allowed = f"one of {', '.join(str(count) for count in (1, *more))}" if more else "1"
        check(self.views in (1, *more), f"views must be {allowed} for {kind}, got {self.views}")
        is_normalized = self.power is not None or self.whitening_dim is not None
        required = "power and whitening_dim must be null for a model with a backbone"
        check(has_embeddings or not is_normalized, f"{required}, got {self.power} and {self.whitening_dim}")
        is_complete = self.whitening_dim is None or self.power is not None
        check(is_complete, f"power must be given if whitening_dim is, got null with {self.whitening_dim}; 1 is none")
        self._check_feature_map()
        is_possible = (self.whitening_dim or 0) <= self.pooled_dim
        check(is_possible, f"whitening_dim must be at most {self.pooled_dim}, got {self.whitening_dim}")
        is_cosine = self.readout == "prototypes" or self.metric == "cosine"
        check(is_cosine, f"readout must be prototypes if metric is euclidean, got {self.readout!r}")
        is_gray = self.channels in (None, 1) or not self.normalize_drawings
        check(is_gray, f"channels must be 1 if normalize_drawings is true, got {self.channels}")
        check(self.tokens == "pooled" or self.pool == "mean", "pool must be mean if tokens is patches, got 'flat'")

    @property
    def pooled_dim(self) -> int:
        """Dimensions of the embeddings before those of the feature map; 0 with a backbone."""
        return (self.embed_dim or 0) - (self.feature_map_size or 0) ** 2 * (self.feature_map_channels or 0)

    def _check_feature_map(self) -> None:
        size, channels = self.feature_map_size, self.feature_map_channels
        rule = "feature_map_size and feature_map_channels must be given together, and with power"
        is_complete = (size is None) == (channels is None) and (size is None or self.power is not None)
        check(is_complete, f"{rule}, got {size}, {channels} and {self.power}")
        if size is not None:
            rule = f"embed_dim must be larger than {size} x {size} x {channels}, the feature map"
            check(self.pooled_dim > 0, f"{rule}, got {self.embed_dim}")
            check(self.tokens == "pooled", f"tokens must be pooled with a feature map, got {self.tokens!r}")

    def _views(self) -> tuple[str, tuple[int, ...]]:
        """The kind of model, and the numbers of views above 1 that it can have."""
        if self.backbone == "none":
            return ("pooled embeddings", (2, 7)) if self.tokens == "pooled" else ("patches of a fixed encoder", ())
        if self.pool == "flat":
            return "pool: flat", ()
        if self.normalize_drawings:
            return "a backbone for drawings (normalize_drawings)", (3,)
        return "a backbone", (2,)
