"""Calibration of confidence and of the threshold for unknown images, from the support images only.

Every support image is classified while it is held out. An image that is the only one of its class is replaced by
augmented copies. These logits are those of known images. Every support image is also classified while its whole class
is held out. These logits are those of unknown images.

Shapes: E episodes, S support images, Q queries, T tokens per image, M embedding dimension.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import Config, Positive, rule
from ..data.images import augmentation
from ..data.images.augmentation import AugmentConfig
from ..errors import check
from ..metrics import auroc, fit_calibration_scale, wilson_interval
from ..models.embedders import ImageEmbedder
from ..models.few_shot_head import FewShotHead
from .methods import Method, State
from .span import in_span
from .support import SupportSet

Finite = Annotated[float, rule("finite", math.isfinite)]
Rate = Annotated[float, rule("0 to 1", lambda rate: 0 <= rate <= 1)]
HeldOut = tuple[Tensor, Tensor, Tensor]
"""Logits (Q, way), labels (Q,) and indices (Q,) of images that are classified while they are held out."""

MANY_TOKENS = 1000
"""Support tokens above which fewer folds are used."""
MAX_REENCODED_TOKENS = 10_000
"""Support tokens above which the rest of the support set is not encoded again for each fold. One image among that many
has next to no influence on the encoding of the others."""
MAX_FOLDS, MAX_FOLDS_MANY = 10, 5
"""Folds of held-out images, and those above `MANY_TOKENS`."""
MAX_CLASS_FOLDS, MAX_CLASS_FOLDS_MANY = 10, 3
"""Folds of held-out classes, and those above `MANY_TOKENS`."""
MAX_HELD_OUT = 1000
"""Images that are classified while they are held out, over all folds."""
MAX_COPIED = 50
"""Images that are the only one of their class and are copied."""
MAX_QUERIES_PER_BATCH, MAX_TOKENS_PER_BATCH = 256, 512
"""Queries, and their tokens, per forward pass of the head, which bounds the attention matrix for 1,000 classes."""
PRIOR_STD = {True: 0.5, False: 1.5}
"""Standard deviation of the log calibration scale expected for a trained head, and for one without parameters.

Selected on held-out alphabets of Omniglot's background set. A regression has that of a trained head.
"""
THRESHOLD_FRACTION = 0.36
"""The known threshold, as a fraction of the distance from the mean logit of known images to that of unknown ones.

Selected on held-out alphabets of Omniglot's background set, for 2 to 20 classes of 1 to 10 images. The spread of so few
logits is too uncertain to derive the threshold from alone.
"""
SINGLE_THRESHOLD_FRACTION = 0.6
"""The same if all known images are copies of images that are the only ones of their class.

On Omniglot copies are about as similar as characters of two writers, on printed characters and icons they are more
similar than two typefaces or drawings. Selected on all three.
"""
MAX_REJECTED = 0.1
"""The fraction of held-out images of known classes that are rejected by default, at most about this.

With one image of each class, that of the expected distribution for a regression; other heads have no such limit.
"""
EXPECTED_KNOWN = (0.14, 0.175)
"""With one image per class, the mean and standard deviation of the largest logit of known images, from that of unknown
ones at 0 to that of the support images themselves at 1: medians over thirteen image sets, when they were chosen."""
EXPECTED_SCALE = (1.26, 2.36, 0.29)
"""With one image per class, the log calibration scale for five classes without similarity, its decrease with their
cosine similarity, and its increase with the logarithm of their number (benchmarks/domain_constants.py)."""
LOGISTIC_FACTOR = 1.6
"""With one image per class, the calibration scale of logistic regression relative to that of ridge regression
(benchmarks/domain_constants.py)."""
BACKGROUND_LOGIT = (0.12, 0.045)
"""With one image per class, the 90% quantile of the largest logit of images of other sets, as a fraction of that of the
support images themselves: for five classes, and its increase with the logarithm of their number
(benchmarks/domain_constants.py). The default threshold is not lower if embeddings are centered by the mean of other
images, so that their similarities to the support images are about 0."""
NORMAL_WEIGHT = 20
"""The number of held-out images for which the normal distribution counts as much as they do in the quantile."""
MIN_ESTIMATE_IMAGES = 20
"""Held-out images from which on the AUROC and the rates of rejection are reported."""
MIN_THRESHOLD_DISTANCE = 1e-3
"""Distance of the threshold from the mean logit of known images if all logits are equal."""
INTERPOLATION = 0.47
"""How far an embedding without an image is moved towards the nearest one of another class, in place of augmentation.

Selected like `THRESHOLD_FRACTION`. A lower value makes a trained head overconfident for 20 classes of one image.
"""
COPY_AUGMENTATION = AugmentConfig(rotate=30, scale=0.35, translate=0.15, shear=30)
"""Augmentation of the copies of an image that is the only one of its class.

Copies then have the same known score as the same character written by another person, on held-out alphabets of
Omniglot's background set. With half of it, the threshold is too high and new images are called unknown.
"""
COPIES_PER_IMAGE = 4


@dataclass(frozen=True)
class Calibration(Config):
    """Parameters that turn logits into confidence and known scores."""

    scale: Positive
    """Factor of the logits before the softmax."""
    threshold: Finite
    """The largest logit of an image from which on it is known."""
    threshold_scale: Positive
    """Distance of logits that changes the log odds of the known score by 1."""
    auroc: Finite
    """AUROC of the largest logit for held-out images of known classes against images of held-out classes."""
    rejected_known: Rate | None = None
    """Estimated fraction of the images of known classes that are rejected; None in files of earlier versions."""
    accepted_unknown: Rate | None = None
    """Estimated fraction of unknown images that are accepted."""
    reject: Annotated[float, rule("above 0 and below 1", lambda rate: 0 < rate < 1)] | None = None
    """The fraction of images of known classes to reject, as requested; None for the default."""

    def known_score(self, logits: Tensor) -> Tensor:
        """logits (Q, way) -> (Q,), from 0 to 1, 0.5 at the threshold"""
        return torch.sigmoid((logits.double().amax(-1) - self.threshold) / self.threshold_scale)

    def rejection(self, images: int, noun: str = "image") -> str:
        """The estimated rates of rejection on one line; `images` is the number of held-out examples behind them.

        `noun` is what one example is. The interval is that of the share below a quantile of as many examples.
        """
        requested = "" if self.reject is None else f"{100 * self.reject:g}%"
        if images < MIN_ESTIMATE_IMAGES or self.rejected_known is None or self.accepted_unknown is None:
            aim = f"set a rate of {requested} or estimate it" if requested else "estimate the rates"
            none = f"two classes or more need a second {noun}"
            reason = f"one of {images} held-out {noun}s is {1 / images:.0%}" if images else none
            return f"too few {noun}s to {aim}: {reason}"
        is_coarse = self.reject is not None and self.reject * images < 1
        source = f"{images:,} held-out {noun}s" + (f", too few for {requested}" if is_coarse else "")
        low, high = wilson_interval(self.rejected_known * images, images)
        interval = f"95% interval {low:.0%} to {high:.0%} on {source}"
        known = f"about {self.rejected_known:.0%} of known {noun}s are rejected ({interval})"
        return f"{known}, {self.accepted_unknown:.0%} of similar {noun}s of other classes accepted"


@torch.no_grad()
def calibrate(
    head: Method,
    support: SupportSet,
    state: State,
    embedder: ImageEmbedder | None,
    held_out: Iterable[HeldOut],
    reject: float | None = None,
) -> Calibration:
    """Calibrate a classifier on its support set; `state` is its encoding, `held_out` are the `held_out_logits`.

    `reject` is the fraction of images of known classes to reject. By default, the threshold is between known and
    unknown images, and at most about `MAX_REJECTED` of the held-out known ones are rejected.
    """
    known_batches = [(logits, labels) for logits, labels, _ in held_out]
    has_held_out = bool(known_batches)
    if head.has_regression and not support.has_estimate:
        return _expected_calibration(head, support, state, reject)
    if not head.has_regression:
        known_batches += _copy_logits(head, support, state, embedder)
    known = torch.cat([logits.amax(-1) for logits, _ in known_batches]).double()
    unknown = torch.cat(list(unknown_logits(head, support, state))).double()
    scale = fit_calibration_scale(known_batches, prior_std=PRIOR_STD[head.is_trained or head.has_regression])
    if reject is not None:
        threshold = _quantile(known, reject)
    elif has_held_out:
        threshold = min(_separating_threshold(known, unknown, THRESHOLD_FRACTION), _quantile(known, MAX_REJECTED))
    else:
        threshold = _separating_threshold(known, unknown, SINGLE_THRESHOLD_FRACTION)
    distance = max(abs(float(known.mean()) - threshold), MIN_THRESHOLD_DISTANCE)
    rates = (_smoothed_rate(known < threshold), _smoothed_rate(unknown >= threshold))
    return Calibration(scale, threshold, distance / 2, auroc(known, unknown), *rates, reject)


def _expected_calibration(head: Method, support: SupportSet, state: State, reject: float | None) -> Calibration:
    """The calibration of a regression without held-out images, from what is usual for image sets of many kinds."""
    way, unknown = len(support.classes), torch.cat(list(unknown_logits(head, support, state))).double()
    low, high = float(unknown.mean()), float(classify(head, state, support.embeddings).amax(-1).mean())
    gap = max(high - low, MIN_THRESHOLD_DISTANCE)
    known = NormalDist(low + EXPECTED_KNOWN[0] * gap, EXPECTED_KNOWN[1] * gap)
    threshold = known.inv_cdf(MAX_REJECTED if reject is None else reject)
    spread = math.hypot(known.stdev, float(unknown.std(correction=0)))
    if reject is None and head.has_statistics:
        threshold = max(threshold, (BACKGROUND_LOGIT[0] + BACKGROUND_LOGIT[1] * math.log(way / 5)) * high)
    distance = max(abs(known.mean - threshold), MIN_THRESHOLD_DISTANCE)
    area = NormalDist().cdf((known.mean - low) / spread)
    factor = LOGISTIC_FACTOR if isinstance(head, FewShotHead) and head.config.readout == "logistic" else 1.0
    scale = factor * float(expected_scale(head.class_similarity(state), way))
    rates = (known.cdf(threshold), _smoothed_rate(unknown >= threshold))
    return Calibration(scale, threshold, distance / 2, area, *rates, reject)


def expected_scale(similarity: Tensor, way: int, constants: Sequence[float] = EXPECTED_SCALE) -> Tensor:
    """The calibration scale of a regression on one image per class, by the similarity (E,) of the classes: (E,)"""
    offset, decrease, increase = constants
    return (offset - decrease * similarity + increase * math.log(way / 5)).exp()


def _separating_threshold(known: Tensor, unknown: Tensor, fraction: float) -> float:
    """A threshold between the largest logits of known and of unknown images, at this fraction of their distance."""
    high, low, spread = float(known.mean()), float(unknown.mean()), float(known.std(correction=0))
    # at least half a standard deviation: most known images stay known, even if unknown ones look the same
    return high - max(fraction * (high - low), spread / 2, MIN_THRESHOLD_DISTANCE)


def _quantile(values: Tensor, fraction: float) -> float:
    """A quantile of the distribution that values (N,) are drawn from.

    The more values there are, the closer it is to that of the values and the farther from that of a normal
    distribution with the same mean and variance.
    """
    count = len(values)
    spread = float(values.std()) if count > 1 else 0.0
    normal = float(values.mean()) + NormalDist().inv_cdf(fraction) * spread
    weight = count / (count + NORMAL_WEIGHT)
    return weight * float(values.quantile(fraction)) + (1 - weight) * normal


def _smoothed_rate(events: Tensor) -> float:
    """The fraction of events (N,) that are true, with one half of an event of each kind added."""
    return (float(events.sum()) + 0.5) / (len(events) + 1)


def held_out_logits(head: Method, support: SupportSet, state: State) -> Iterator[HeldOut]:
    """The images that are held out in each fold: all that are not the only one of their class."""
    counts, positions = support.counts, support.positions_in_class()
    folds = min(int(counts.max()), MAX_FOLDS_MANY if _has_many_tokens(support) else MAX_FOLDS)
    eligible = counts[support.labels] > 1
    chosen = _spread_subset(eligible, MAX_HELD_OUT)
    head, support = _in_span(head, support, state)
    for fold in range(folds if folds > 1 else 0):
        excluded = (positions % folds == fold) & eligible
        indices = (excluded & chosen).nonzero().flatten()
        if len(indices):
            rest = _encode_subset(head, support, state, ~excluded)
            yield classify(head, rest, support.embeddings[indices]), support.labels[indices], indices


def unknown_logits(head: Method, support: SupportSet, state: State) -> Iterator[Tensor]:
    """The largest logits (Q,) of images whose class is held out, for each fold."""
    way = len(support.classes)
    folds = min(way, MAX_CLASS_FOLDS_MANY if _has_many_tokens(support) else MAX_CLASS_FOLDS)
    chosen = _spread_subset(torch.ones(len(support), dtype=torch.bool), MAX_HELD_OUT)
    head, support = _in_span(head, support, state)
    for fold in range(folds):
        excluded = support.labels % folds == fold
        rest = _encode_subset(head, support, state, ~excluded)
        is_present = torch.arange(way) % folds != fold
        yield classify(head, rest, support.embeddings[excluded & chosen])[:, is_present].amax(-1)


def _in_span(head: Method, support: SupportSet, state: State) -> tuple[Method, SupportSet]:
    """The same in the subspace of the embeddings, unless the encoding of all images is used for each fold."""
    if state.num_tokens > MAX_REENCODED_TOKENS:
        return head, support
    head, embeddings = in_span(head, support.embeddings)
    return head, replace(support, embeddings=embeddings)


def encode(head: Method, support: SupportSet, mask: Tensor | None = None) -> State:
    """Encode a support set, or those of its images that a mask (S,) selects; all classes are kept."""
    tensors = (x if mask is None else x[mask] for x in (support.embeddings, support.labels))
    embeddings, labels = (x[None].to(head.device) for x in tensors)
    return head.encode_support(embeddings, labels, way=len(support.classes))


def classify(head: Method, state: State, query: Tensor) -> Tensor:
    """query (Q, T, M) -> logits (Q, way) on the CPU, computed in batches"""
    return classify_episodes(head, state, query[None])[0]


def classify_episodes(head: Method, state: State, query: Tensor) -> Tensor:
    """The same for several support sets: query (E, Q, T, M) -> logits (E, Q, way)"""
    episodes, _, tokens, _ = query.shape
    size = max(1, min(MAX_QUERIES_PER_BATCH, MAX_TOKENS_PER_BATCH // tokens) // episodes)
    logits = torch.cat([head.classify(state, batch.to(state.device)).cpu() for batch in query.split(size, 1)], 1)
    is_finite = logits.isfinite().all()
    check(is_finite, "logits must be finite, got NaN or infinity; the weights of the model may be damaged")
    return logits


def augmented_copies(embedder: ImageEmbedder | None, support: SupportSet, indices: Tensor) -> Tensor | None:
    """Embeddings of augmented copies of these images: (N, COPIES_PER_IMAGE, T, M); None without images at full size"""
    images = support.images
    if images is None or embedder is None or images.shape[-1] != embedder.image_size:
        return None
    pixels = images[indices].repeat_interleave(COPIES_PER_IMAGE, 0)
    params = augmentation.sample_params(COPY_AUGMENTATION, len(pixels), seed=0, step=0)
    copies = augmentation.augment_pixels(COPY_AUGMENTATION, pixels, params)
    return embedder.embed(copies).cpu().unflatten(0, (-1, COPIES_PER_IMAGE))


def _copy_logits(
    head: Method, support: SupportSet, state: State, embedder: ImageEmbedder | None
) -> list[tuple[Tensor, Tensor]]:
    """Logits and labels of copies of images that are the only one of their class; nothing is held out."""
    single = _spread_subset(support.counts[support.labels] == 1, MAX_COPIED).nonzero().flatten()
    if not len(single):
        return []
    copies = augmented_copies(embedder, support, single)
    if copies is None:
        copies = _interpolated(support, single)[:, None]
    labels = support.labels[single].repeat_interleave(copies.shape[1])
    return [(classify(head, state, copies.flatten(0, 1)), labels)]


def _interpolated(support: SupportSet, indices: Tensor) -> Tensor:
    """Embeddings moved towards the nearest one of another class: (N, T, M)"""
    vectors = F.normalize(support.embeddings.mean(1), dim=-1)
    cosines = vectors[indices] @ vectors.mT
    cosines[support.labels[indices][:, None] == support.labels] = -2
    return support.embeddings[indices].lerp(support.embeddings[cosines.argmax(1)], INTERPOLATION)


def _encode_subset(head: Method, support: SupportSet, state: State, mask: Tensor) -> State:
    """The encoding of the support images that a mask selects; `state` is that of all."""
    if state.num_tokens <= MAX_REENCODED_TOKENS:
        return encode(head, support, mask)
    device = state.device
    return state.select(mask.nonzero().mT.to(device), support.labels.to(device))


def _has_many_tokens(support: SupportSet) -> bool:
    return len(support) * support.embeddings.shape[1] > MANY_TOKENS


def _spread_subset(mask: Tensor, maximum: int) -> Tensor:
    """At most `maximum` of the entries that a mask selects, evenly spread."""
    indices = mask.nonzero().flatten()
    if len(indices) <= maximum:
        return mask
    subset = torch.zeros_like(mask)
    subset[indices[torch.linspace(0, len(indices) - 1, maximum).round().long()]] = True
    return subset
