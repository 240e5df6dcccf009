"""Few-shot classification on image sets of many kinds, each left out of the statistics of the head in turn.

    python -m benchmarks.domains DATA [--cache FOLDER] [--episodes 2000] [--weights FILE] [--before FOLDER]

DATA has `domains/*.zip`, `cifar100`, `cub200`, `omniglot` and `splits`. Up to 25 classes of 20 images of each set are
embedded by EfficientNet-Lite0 in seven views, with a feature map of the whole image, and kept in the cache. The head of
a set has the normalization statistics of all other sets (training classes of CIFAR-FS and CUB; of the left-out set and
its training classes nothing). Every method sees the same episodes. `1 view`, `views` and `cheap` are baselines on
pooled features, `cheap` the recipe of seven views, square root, background mean, unit length and logistic regression.
`prototypes` and `logistic` take the embeddings of the head, `spatial` those with a larger weight of the feature map.
`fit` is the choice that `FewShotClassifier.fit` makes in each episode. `--before` is the folder of an earlier model,
without views.
`--write` writes the pretrained model `photos`.

Then: how often each method is chosen; calibration and rejection of fitted classifiers; and methods without statistics
on other embeddings. A cell is n/a where a set has too few classes or images. `benchmarks.domain_constants` chooses the
constants of the methods, `benchmarks.domain_models` the pretrained model.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import safetensors.torch
import torch
from torch import Tensor

import sightline
from sightline import config
from sightline.classifier import calibration
from sightline.classifier.choice import fit_scales, log_likelihood, method_weights
from sightline.classifier.fitted import Fitted
from sightline.classifier.methods import SPATIAL, SPATIAL_WEIGHT, available_methods, blend_members, make_method
from sightline.classifier.support import SupportSet
from sightline.data.episodes import ClassIndex, sample_episodes
from sightline.data.images.class_splits import load_classes
from sightline.data.images.datasets import ImageSet
from sightline.errors import check
from sightline.files import CONFIG, WEIGHTS, write_bytes
from sightline.metrics import (
    auroc,
    classification_metrics,
    classification_sums,
    mean_interval,
    update_classification_sums,
)
from sightline.models.baselines import BASELINES
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.few_shot_head import FewShotHead
from sightline.models.image_encoders import EfficientNetEmbedder
from sightline.models.normalization import SpatialNormalization, make_normalization
from sightline.models.preprocessing import image_views
from sightline.tasks.few_shot.config import FewShotTaskConfig, Setting
from sightline.tasks.few_shot.evaluate import evaluate_episodes
from sightline.weights import to_bytes

from .clock import machine

MAX_CLASSES, IMAGES_PER_CLASS, QUERY, VIEWS = 25, 20, 10, 7
SETTINGS = tuple(Setting(way, shot) for way in (5, 10) for shot in (1, 3, 5, 10))
CONFIDENCE_SETTINGS = tuple(Setting(way, shot) for way in (5, 20) for shot in (1, 5))
STAGES = {8: 80, 11: 112, 15: 192, 16: 320}
"""Channels after some blocks of EfficientNet-Lite0, whose means are other embeddings."""
PROJECTIONS = (384, 512, 768)
TRAINING_IMAGES = {"cifar_fs_train": 4, "cub_train": 5}
"""Images of each class of the sets that are not evaluated."""
TRAINING_CLASSES = {"cifar_fs": "cifar_fs_train", "cub": "cub_train"}
TEST_SETS = ("cifar_fs", "cub", "omniglot")
"""Sets of test classes, of which nothing is used for any other set."""
LOG_SCALES = torch.linspace(-2.5, 2.5, 101, dtype=torch.float64)
"""Log calibration scales that are compared."""
BEFORE_EPISODES = 100
"""Episodes of the earlier model, whose blocks take longer."""
UNKNOWN_CLASSES, REFUSED, ERROR = 5, 0.1, "calibration_error"
CONFIDENCE_COLUMNS = ("error", "refused", *("AUROC", "accepted", "accepted*") * 2)


@dataclass(frozen=True, eq=False)
class DomainSet:
    """The embeddings of an image set."""

    views: Tensor
    """float32 (VIEWS, N, M)"""
    stages: dict[str, Tensor]
    """Embeddings (N, M) of earlier stages, of the whole image."""
    classes: ClassIndex
    labels: Tensor
    feature_map: Tensor
    """float32 (N, F): positions of the last map of twice the resolution, of the whole image."""

    @property
    def single(self) -> Tensor:
        """Embeddings of the whole image: (N, 1, M)"""
        return self.views[0][:, None]

    def to(self, device: str) -> "DomainSet":
        """The same on another device."""
        stages = {key: x.to(device) for key, x in self.stages.items()}
        return DomainSet(self.views.to(device), stages, self.classes, self.labels, self.feature_map.to(device))

    @property
    def mean(self) -> Tensor:
        """Mean embeddings of all views: (N, 1, M)"""
        return self.views.mean(0)[:, None]

    @property
    def spatial(self) -> Tensor:
        """Embeddings as the model `photos` takes them, with the feature map: (N, 1, M + F)"""
        return torch.cat((self.mean, self.feature_map[:, None]), -1)


def image_sets(data: Path) -> dict[str, Callable[[], ImageSet]]:
    """A function for each image set that reads it; sets that end in _train are not evaluated."""

    def split(source: str, lists: str | None, part: str) -> ImageSet:
        splits = load_classes(data / source, split=None if lists is None else data / "splits" / lists, channels=3)
        return getattr(splits, part)  # type: ignore[no-any-return]

    sets = {
        path.stem: partial(split, f"domains/{path.name}", None, "train") for path in (data / "domains").glob("*.zip")
    }
    cifar, cub = ("cifar100", "cifar100/cifar-fs"), ("cub200/images_84px.zip", "cub")
    sets = dict(sorted(sets.items()))
    sets |= {"cifar_fs": partial(split, *cifar, "test"), "cub": partial(split, *cub, "test")}
    sets["omniglot"] = partial(split, "omniglot/omniglot_105_packed.npz", None, "test")
    return sets | {"cifar_fs_train": partial(split, *cifar, "train"), "cub_train": partial(split, *cub, "train")}


def selection(images: ImageSet, name: str) -> tuple[Tensor, list[int]]:
    """Indices of up to `IMAGES_PER_CLASS` random images of up to `MAX_CLASSES` random classes, and these classes."""
    classes = list(range(len(images.classes)))[:: 11 if name == "omniglot" else 1]  # of all alphabets
    random, indices = torch.Generator().manual_seed(0), {}
    for label in classes:
        own = (images.labels == label).nonzero().flatten()
        indices[label] = own[torch.randperm(len(own), generator=random)[: TRAINING_IMAGES.get(name, IMAGES_PER_CLASS)]]
    if name == "cub_train":
        classes = classes[::2]
    elif name not in TRAINING_IMAGES and len(classes) > MAX_CLASSES:
        order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
        classes = [classes[i] for i in sorted(order[:MAX_CLASSES].tolist())]
    return torch.cat([indices[label] for label in classes]), classes


@torch.no_grad()
def embed(images: ImageSet, name: str, embedder: EfficientNetEmbedder) -> dict[str, Tensor]:
    """Embeddings of all views and stages, and labels."""
    indices, classes = selection(images, name)
    new_labels = torch.full((len(images.classes),), -1)
    new_labels[classes] = torch.arange(len(classes))
    views: list[list[Tensor]] = [[] for _ in range(VIEWS)]
    stages: dict[str, list[Tensor]] = {f"stage of {channels}": [] for channels in STAGES.values()}
    maps: list[Tensor] = []
    for batch in images.pixels[indices].split(8):
        for number, view in enumerate(image_views(embedder.resize(batch), VIEWS)):
            x = embedder.normalize(view).contiguous(memory_format=torch.channels_last)
            if number == 0:
                maps.append(embedder.features(x)[1][:, -embedder.map_dim :].half())
            for i, block in enumerate(embedder.model.blocks):  # type: ignore[arg-type]
                x = block(x)
                if number == 0 and i in STAGES:
                    stages[f"stage of {STAGES[i]}"].append(x.mean((2, 3)))
            views[number].append(x.mean((2, 3)))
    tensors = {name: torch.cat(parts) for name, parts in stages.items()}
    return tensors | {
        "views": torch.stack([torch.cat(parts) for parts in views]),
        "map": torch.cat(maps),
        "labels": new_labels[images.labels[indices]],
    }


def load_sets(data: Path, cache: Path, weights: str | None) -> dict[str, DomainSet]:
    """All image sets, embedded or from the cache."""
    embedder, sets = None, {}
    cache.mkdir(parents=True, exist_ok=True)
    for name, read in image_sets(data).items():
        path = cache / f"{name}.safetensors"
        if not path.is_file():
            embedder = embedder or EfficientNetEmbedder(weights, is_spatial=True)
            tensors = embed(read(), name, embedder)
            safetensors.torch.save_file({key: x.contiguous() for key, x in tensors.items()}, path)
        tensors = safetensors.torch.load_file(path)
        check("map" in tensors, f"the cache must have feature maps, got {path} without; remove it")
        labels, feature_map = tensors.pop("labels"), tensors.pop("map").float()
        classes = ClassIndex.from_labels(labels, tuple(map(str, range(int(labels.max()) + 1))))
        stages = {key: x.float() for key, x in tensors.items() if key != "views"}
        sets[name] = DomainSet(tensors["views"].float(), stages, classes, labels, feature_map)
    return sets


def rotated(x: Tensor) -> Tensor:
    """Embeddings (N, 1, M) in the space that they span, of at most N dimensions: (N, 1, D)

    Lengths and angles do not change, so the results of all methods do not, and episodes are computed faster.
    """
    return (x[:, 0] @ torch.linalg.svd(x[:, 0], full_matrices=False).Vh.mT)[:, None]


def other_sets(sets: dict[str, DomainSet], name: str) -> dict[str, DomainSet]:
    """All sets but one, and but test classes."""
    left_out = {name, TRAINING_CLASSES.get(name), *TEST_SETS}
    return {key: other for key, other in sets.items() if key not in left_out}


def photos_config() -> FewShotConfig:
    """The config of the model `photos`."""
    task = config.build(FewShotTaskConfig, config.read(Path("configs/few-shot-photos.yaml")))
    return replace(task.model, image_size=task.data.image_size, channels=3)


def fitted_normalization(sets: dict[str, DomainSet]) -> SpatialNormalization:
    """The normalization of the model `photos` with the statistics of these sets."""
    normalization = make_normalization(photos_config())
    assert isinstance(normalization, SpatialNormalization)
    normalization.set_statistics([(data.spatial, data.labels) for data in sets.values()])
    return normalization.to(next(iter(sets.values())).views.device)


def head_for(x: Tensor, readout: str = "ridge", power: float | None = None) -> FewShotHead:
    """A head without blocks for embeddings (N, T, M); those that are normalized already have a power of 1."""
    options: dict[str, Any] = {"readout": readout, "power": power}
    config = FewShotConfig(backbone="none", embed_dim=x.shape[-1], depth=0, **options)
    return FewShot(config).to(x.device).eval().requires_grad_(False).head


def _on_part(
    method: Callable[..., Tensor], part: slice, support: Tensor, labels: Tensor, query: Tensor, *, way: int
) -> Tensor:
    """A method on some dimensions of the embeddings."""
    return method(support[..., part], labels, query[..., part], way=way)


class Chosen:
    """The method that `fit` chooses in each episode; all episodes of a batch are computed together."""

    def __init__(
        self,
        head: FewShotHead,
        parts: Mapping[str, int] | None = None,
        *,
        has_prior: bool = True,
        is_calibrated: bool = False,
        expected: Sequence[float] = calibration.EXPECTED_SCALE,
    ):
        """`parts` has the dimensions of further embeddings for some methods, which follow those for all others.

        `has_prior` is that of `methods.has_prior`. If `is_calibrated`, logits are multiplied by the calibration scale;
        with one image per class, it is that of the constants `expected`.
        """
        self.members, self.has_prior = blend_members(head), has_prior
        self.head, self.is_calibrated, self.expected = head, is_calibrated, expected
        names = [name for name in available_methods(head) if name != "blend"]
        self.heads: dict[str, Callable[..., Tensor]] = {name: make_method(head, name) for name in names}  # type: ignore[dict-item]
        parts = parts or {}
        if SPATIAL in parts:
            self.heads[SPATIAL] = head
        self.own, start = slice(0, -sum(parts.values()) or None), -sum(parts.values())
        slices = {}
        for name, size in parts.items():
            slices[name], start = slice(start, (start + size) or None), start + size
        self.heads = {name: partial(_on_part, f, slices.get(name, self.own)) for name, f in self.heads.items()}
        self.counts = Counter[str]()
        self.evidence: list[float] = []
        """The log-likelihood of the held-out images of each episode."""

    def __call__(self, support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
        """See `FewShotHead.forward`."""
        shot, default = labels.shape[1] // way, self.members[0] if self.has_prior else "logistic"
        if shot == 1:
            self.counts[default] += len(labels)
            logits = self.heads[default](support, labels, query, way=way)
            if not self.is_calibrated:
                return logits
            state = self.head.encode_support(support[..., self.own], labels, way=way)
            similarity = self.head.class_similarity(state)
            factor = 1.0 if self.has_prior else calibration.LOGISTIC_FACTOR
            return factor * calibration.expected_scale(similarity, way, self.expected).float()[:, None, None] * logits
        held_out, targets = self.held_out(support, labels, way, shot)
        weights = method_weights(held_out, targets, self.members, self.has_prior)
        factors = {name: (weights[name] * fit_scales(x, targets)).float() for name, x in held_out.items()}
        combined = self._combined(self.heads, factors, (support, labels, query), way)
        own = torch.stack([factors[name][:, None, None] * x for name, x in held_out.items()]).sum(0)
        self.evidence += log_likelihood(own, targets, fit_scales(own, targets)).tolist()
        if self.is_calibrated:
            combined = combined * calibration_scales(own, targets).to(combined)[:, None, None]
        for chosen in torch.stack(list(weights.values()), 1) > 0:
            names = [name for name, is_used in zip(weights, chosen.tolist(), strict=True) if is_used]
            self.counts["blend" if len(names) > 1 else names[0]] += 1
        return combined

    def held_out(self, support: Tensor, labels: Tensor, way: int, shot: int) -> tuple[dict[str, Tensor], Tensor]:
        """Logits of the support images by each method while each is held out, one image of each class at a time."""
        positions, parts, targets = torch.arange(way * shot) % shot, [], []
        for fold in range(shot):
            rest, own = positions != fold, positions == fold
            episode = (support[:, rest], labels[:, rest], support[:, own])
            parts.append({name: head(*episode, way=way).cpu() for name, head in self.heads.items()})
            targets.append(labels[:, own].cpu())
        return {name: torch.cat([part[name] for part in parts], 1) for name in self.heads}, torch.cat(targets, 1)

    @staticmethod
    def _combined(
        heads: dict[str, Callable[..., Tensor]], factors: dict[str, Tensor], episode: tuple[Tensor, ...], way: int
    ) -> Tensor:
        """The sum of the logits of all methods, multiplied by factors (E,); methods of factor 0 are skipped."""
        total = None
        for name, head in heads.items():
            used = (factors[name] > 0).nonzero().flatten().to(episode[0].device)
            if len(used):
                logits = head(*(x[used] for x in episode), way=way)
                if total is None:
                    total = logits.new_zeros(len(episode[0]), *logits.shape[1:])
                total[used] += factors[name].to(logits)[used][:, None, None] * logits
        assert total is not None
        return total


def calibration_scales(logits: Tensor, labels: Tensor, prior_std: float = calibration.PRIOR_STD[True]) -> Tensor:
    """`metrics.fit_calibration_scale` of many support sets, on a grid: logits (E, N, way), labels (E, N) -> (E,)"""
    targets, losses = labels[..., None], []
    for log_scale in LOG_SCALES:
        loss = -(log_scale.exp() * logits.double()).log_softmax(-1).gather(2, targets).sum((1, 2))
        losses.append(loss + (log_scale / prior_std) ** 2 / 2)
    return LOG_SCALES[torch.stack(losses).argmin(0)].exp()


class Features(NamedTuple):
    """The embeddings (N, 1, D) of a set for each method."""

    head: Tensor
    """Normalized, as the head of `photos` takes them."""
    spatial: Tensor
    """The same with a larger weight of the feature map."""
    plain: Tensor
    """Those of the cheap recipe: pooled features that are not whitened."""
    single: Tensor
    """Pooled features of one view."""
    mean: Tensor
    """Mean pooled features of all views."""

    @classmethod
    def of(cls, sets: dict[str, DomainSet], name: str) -> Self:
        """Those of a set, with the statistics of the others."""
        data, normalization = sets[name], fitted_normalization(other_sets(sets, name))
        larger = normalization.with_weight(SPATIAL_WEIGHT)
        normalized = (f(data.spatial) for f in (normalization, larger, normalization.without_whitening()))
        return cls(*(rotated(x) for x in (*normalized, data.single, data.mean)))

    @property
    def for_fit(self) -> Tensor:
        """Those of the methods that `fit` chooses from, see `Chosen`."""
        return torch.cat((self.head, self.spatial, self.plain), -1)

    @property
    def parts(self) -> dict[str, int]:
        """The parts of `for_fit` after the first, for `Chosen`."""
        return {SPATIAL: self.spatial.shape[-1], "logistic": self.plain.shape[-1]}


def accuracies(
    data: DomainSet,
    features: Features,
    setting: Setting,
    episodes: int,
    before: FewShotHead | None,
    counts: Counter[str],
) -> dict[str, Tensor] | None:
    """The accuracy of each method in each episode; None if the set has too few classes or images."""
    images = int(data.classes.counts.min())
    if setting.way > len(data.classes.names) or setting.shot >= images:
        return None
    x, _, plain, single, mean = features
    head = head_for(x)
    chosen = Chosen(head, features.parts)
    methods: dict[str, tuple[Any, Tensor]] = {
        **{f"1 view {key}": (BASELINES[key], single) for key in ("nearest", "protonet", "logistic")},
        **{f"views {key}": (BASELINES[key], mean) for key in ("protonet", "logistic")},
        "cheap": (BASELINES["logistic"], plain),
        "prototypes": (head.without_blocks("prototypes"), x),
        "logistic": (head.without_blocks("logistic"), x),
        "head": (head, x),
        SPATIAL: (head, features.spatial),
        "fit": (chosen, features.for_fit),
    }
    options = {"query": min(QUERY, images - setting.shot), "episodes": episodes, "with_unknown": False}
    results = {
        key: torch.cat(evaluate_episodes(method, x, data.classes, setting, **options).accuracies).double()
        for key, (method, x) in methods.items()
    }
    if before is not None:
        options["episodes"] = min(episodes, BEFORE_EPISODES)
        results["before"] = torch.cat(
            evaluate_episodes(before, data.single, data.classes, setting, **options).accuracies
        )
    counts.update(chosen.counts)
    return results


def print_accuracies(
    sets: dict[str, DomainSet],
    features: dict[str, Features],
    settings: list[Setting],
    episodes: int,
    before: FewShotHead | None,
) -> None:
    """A table for each setting, and the choices."""
    counts: dict[Setting, Counter[str]] = {}
    for setting in settings:
        counts[setting], rows = Counter(), {}
        for name in sets:
            if name not in TRAINING_IMAGES:
                rows[name] = accuracies(sets[name], features[name], setting, episodes, before, counts[setting])
        methods = list(next(row for row in rows.values() if row is not None))
        baselines = [key for key in methods if key.startswith(("1 view", "views"))] + [
            "prototypes",
            "logistic",
            "cheap",
        ]
        print(f"\n{setting.way}-way {setting.shot}-shot, accuracy in %", flush=True)
        print(f"{'':26}" + "".join(f"{key:>16}" for key in methods) + f"{'fit - best':>16}{'fit - cheap':>16}")
        means: dict[str, list[float]] = {}
        for name, row in rows.items():
            if row is None:
                print(f"{name:26}{'n/a':>16}")
                continue
            best = max(baselines, key=lambda key: float(row[key].mean()))
            differences = {"fit - best": row["fit"] - row[best], "fit - cheap": row["fit"] - row["cheap"]}
            for key, values in (row | differences).items():
                means.setdefault(key, []).append(float(values.mean()))
            cells = [f"{100 * float(row[key].mean()):.1f}" for key in methods]
            cells += ["{:+.2f} ± {:.2f}".format(*(100 * x for x in mean_interval(y))) for y in differences.values()]
            print(f"{name:26}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
        print(f"{'mean':26}" + "".join(f"{100 * sum(x) / len(x):>16.2f}" for x in means.values()), flush=True)
    print("\nchosen methods, % of episodes of all sets")
    for setting, chosen in counts.items():
        shares = ", ".join(f"{key} {100 * count / chosen.total():.0f}" for key, count in chosen.most_common())
        print(f"{setting.way}-way {setting.shot}-shot: {shares}")


def print_calibration(sets: dict[str, DomainSet], features: dict[str, Features], episodes: int) -> None:
    """Calibration errors of fitted classifiers; the constants for one image per class leave the set out, too."""
    print(f"\ncalibration error in %, {episodes} classifiers of 20 classes or {4 * episodes} of 5 classes of each set:")
    print("choice of `fit`; head alone, not calibrated")
    print(f"{'':26}" + "".join(f"{f'{way}-way {shot}-shot':>22}" for way, shot, _ in CONFIDENCE_SETTINGS))
    columns: dict[Setting, list[list[float]]] = {setting: [] for setting in CONFIDENCE_SETTINGS}
    for name in features:
        x, data, cells = features[name].head, sets[name], []
        head, expected = head_for(x), fit_expected_scale(sets, features, left_out=name)
        for setting in CONFIDENCE_SETTINGS:
            images = int(data.classes.counts.min())
            if setting.way > len(data.classes.names) or setting.shot >= images:
                cells.append("n/a")
                continue
            chosen = Chosen(head, features[name].parts, is_calibrated=True, expected=expected)
            query, count = min(QUERY, images - setting.shot), episodes * 20 // setting.way
            options = {"query": query, "episodes": count, "with_unknown": False}
            row = [
                100 * classification_metrics(evaluate_episodes(*method, data.classes, setting, **options).sums)[ERROR]
                for method in ((chosen, features[name].for_fit), (head, x))
            ]
            columns[setting].append(row)
            cells.append("{:.1f}; {:.1f}".format(*row))
        print(f"{name:26}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
    for label, function in (("mean", lambda x: x.mean(0)), ("largest", lambda x: x.amax(0))):
        rows = [function(torch.tensor(rows)).tolist() for rows in columns.values()]
        print(f"{label:26}" + "".join(f"{'{:.1f}; {:.1f}'.format(*row):>22}" for row in rows), flush=True)


def fit_expected_scale(
    sets: dict[str, DomainSet], features: dict[str, Features], left_out: str | None = None
) -> tuple[float, float, float]:
    """`calibration.EXPECTED_SCALE` that minimizes the cross entropy on all sets but one; test classes are not used."""
    batches = []
    for name in features:
        if name not in (left_out, *TEST_SETS):
            x, data = features[name].head, sets[name]
            batches += [_one_shot_logits(data, x, way) for way in (5, 10, 20) if way <= len(data.classes.names)]
    constants = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([constants], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = []
        for logits, labels, similarity in batches:
            scales = calibration.expected_scale(similarity, logits.shape[-1], constants)  # type: ignore[arg-type]
            scaled = scales.to(logits)[:, None, None] * logits
            losses.append(-scaled.log_softmax(-1).gather(2, labels[..., None]).mean())
        loss = torch.stack(losses).mean()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return tuple(constants.tolist())  # type: ignore[return-value]


_ONE_SHOT: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}


def _one_shot_logits(data: DomainSet, x: Tensor, way: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and labels of queries of episodes with one image per class, and the similarity of the classes."""
    key = (id(data), way)
    if key not in _ONE_SHOT:
        drawn = sample_episodes(data.classes, episodes=1000 // way, way=way, shot=1, query=3, seed=1, step=0)
        head, labels, queries = head_for(x), drawn.support_labels.to(x.device), drawn.query_labels.to(x.device)
        state = head.encode_support(x[drawn.support], labels, way=way)
        _ONE_SHOT[key] = (head.classify(state, x[drawn.query]).float(), queries, head.class_similarity(state))
    return _ONE_SHOT[key]


@torch.no_grad()
def confidence(
    data: DomainSet, model: FewShot, x: Tensor, others: Tensor, setting: Setting, classifiers: int, method: str
) -> list[float]:
    """The values of `CONFIDENCE_COLUMNS`; `others` are embeddings of images of other sets."""
    way, shot, _ = setting
    unknown_classes = min(UNKNOWN_CLASSES, len(data.classes.names) - way)
    query = min(QUERY, int(data.classes.counts.min()) - shot)
    drawn = sample_episodes(
        data.classes, episodes=classifiers, way=way + unknown_classes, shot=shot, query=query, seed=1, step=0
    )
    labels, names = torch.arange(way).repeat_interleave(shot), tuple(map(str, range(way * shot)))
    sums, targets = classification_sums(way, torch.device("cpu")), torch.arange(way).repeat_interleave(query)
    scores: tuple[list[Tensor], ...] = ([], [], [])
    for support, queries in zip(drawn.support[:, : way * shot], drawn.query, strict=True):
        fitted = Fitted(model, SupportSet(x[support], labels, names[:way], names), None, method)
        logits = calibration.classify(fitted.head, fitted.state, torch.cat((x[queries], others)))
        parts = logits.split([way * query, unknown_classes * query, len(others)])
        update_classification_sums(sums, fitted.calibration.scale * parts[0], targets)
        for part, values in zip(scores, parts, strict=True):
            part.append(fitted.calibration.known_score(values))
    known, *unknown = (torch.cat(part) for part in scores)
    row = [classification_metrics(sums)[ERROR], float((known < 0.5).double().mean())]
    for values in unknown:
        accepted = [float((values >= limit).double().mean()) for limit in (float(known.quantile(REFUSED)), 0.5)]
        row += [auroc(known, values), *accepted] if len(values) else [torch.nan] * 3
    return row


def photos_model(sets: dict[str, DomainSet]) -> FewShot:
    """The model `photos` with the statistics of these sets."""
    torch.manual_seed(0)
    model = FewShot(photos_config()).eval().requires_grad_(False)
    model.head.normalization = fitted_normalization(sets)
    return model.to(next(iter(sets.values())).views.device)


def spread_images(sets: dict[str, DomainSet], left_out: str, select: Callable[[DomainSet], Tensor]) -> Tensor:
    """20 embeddings of each evaluated set but one, from all of its classes."""
    chosen = [select(data) for name, data in sets.items() if name not in (left_out, *TRAINING_IMAGES)]
    return torch.cat([x[torch.linspace(0, len(x) - 1, 20).long()] for x in chosen])


def print_confidence(sets: dict[str, DomainSet], classifiers: int, before: FewShot | None) -> None:
    """Rejection and calibration of fitted classifiers."""
    print("\ncalibration error in %; % of known images refused at the default threshold; for unknown images of other")
    print("classes of the set, then for images of other sets: AUROC, % accepted if 10% of known ones are refused, and")
    print("% accepted* at the default threshold" + ("; then the same of the earlier model" if before else ""))
    for setting in CONFIDENCE_SETTINGS:
        print(f"\n{setting.way}-way {setting.shot}-shot, {classifiers} classifiers of each set")
        print(f"{'':26}" + "".join(f"{key:>11}" for key in CONFIDENCE_COLUMNS * (2 if before else 1)))
        rows = []
        for name, data in sets.items():
            if name in TRAINING_IMAGES:
                continue
            if setting.way > len(data.classes.names) or setting.shot >= int(data.classes.counts.min()):
                print(f"{name:26}{'n/a':>11}")
                continue
            model = photos_model(other_sets(sets, name))
            others = spread_images(sets, name, lambda other: other.spatial)
            row = confidence(data, model, data.spatial, others, setting, classifiers, "auto")
            if before is not None:
                single = spread_images(sets, name, lambda other: other.single)
                row += confidence(data, before, data.single, single, setting, classifiers, "head")
            rows.append(row)
            print(f"{name:26}" + _cells(row), flush=True)
        print(f"{'mean':26}" + _cells(torch.tensor(rows).nanmean(0).tolist()))


def _cells(row: list[float]) -> str:
    keys = CONFIDENCE_COLUMNS * (len(row) // len(CONFIDENCE_COLUMNS))
    return "".join(f"{x:>11.3f}" if key == "AUROC" else f"{100 * x:>11.1f}" for key, x in zip(keys, row, strict=True))


def print_other_embeddings(sets: dict[str, DomainSet], episodes: int) -> None:
    """The choice of `fit` without statistics against logistic regression, on other embeddings."""
    print("\nother embeddings, one view, without statistics: accuracy in % of `fit`, and its difference from logistic")
    print(f"regression; means over all sets, and the set with the least difference; {episodes} episodes of each set")
    evaluated = {name: data for name, data in sets.items() if name not in TRAINING_IMAGES}
    for kind, embeddings in other_embeddings(evaluated).items():
        compare_with_logistic(kind, sets, embeddings, episodes)


def other_embeddings(sets: dict[str, DomainSet]) -> dict[str, dict[str, Tensor]]:
    """Embeddings (N, M) of each set by kind: earlier stages of the encoder, and projections of its embeddings."""
    kinds = {
        kind: {name: data.stages[kind] for name, data in sets.items()} for kind in next(iter(sets.values())).stages
    }
    for size in PROJECTIONS:
        matrix = torch.randn(1280, size, generator=torch.Generator().manual_seed(size)) / size**0.5
        kinds[f"projection to {size}"] = {name: data.views[0] @ matrix.to(data.views) for name, data in sets.items()}
    return kinds


def compare_with_logistic(kind: str, sets: dict[str, DomainSet], embeddings: dict[str, Tensor], episodes: int) -> None:
    """Print the accuracy of `fit` and its difference from logistic regression on embeddings (N, M) of each set."""
    for setting in (Setting(5, 1), Setting(5, 5)):
        differences, values = {}, []
        for name, vectors in embeddings.items():
            x, classes = rotated(vectors[:, None]), sets[name].classes
            options = {"query": QUERY, "episodes": episodes, "with_unknown": False}
            fit, regression = (
                torch.cat(evaluate_episodes(method, x, classes, setting, **options).accuracies).double()
                for method in (Chosen(head_for(x), has_prior=False), BASELINES["logistic"])
            )
            differences[name] = tuple(100 * value for value in mean_interval(fit - regression))
            values.append(100 * float(fit.mean()))
        mean = sum(difference for difference, _ in differences.values()) / len(differences)
        worst = min(differences, key=lambda name: differences[name][0])
        least = "{} {:+.2f} ± {:.2f}".format(worst, *differences[worst])
        text = f"{sum(values) / len(values):6.1f} {mean:+6.2f}, {least}"
        print(f"{kind:20} {setting.way}-way {setting.shot}-shot {text}", flush=True)


def write_model(sets: dict[str, DomainSet], folder: Path) -> None:
    """Write the model of configs/few-shot-photos.yaml with the statistics of all sets, without training it."""
    task = config.build(FewShotTaskConfig, config.read(Path("configs/few-shot-photos.yaml")))
    task = replace(task, model=photos_config())
    model = photos_model({name: data for name, data in sets.items() if name not in TEST_SETS})
    state = {name: x.half() if x.dim() > 1 else x for name, x in model.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / CONFIG, config.dump(task).encode())
    write_bytes(folder / WEIGHTS, to_bytes(state))


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("domains-cache"), help="folder of embeddings")
    parser.add_argument("--weights", help="weight file of EfficientNet-Lite0, without the extra `photos`")
    parser.add_argument("--before", help="folder of an earlier few-shot model for EfficientNet-Lite0")
    parser.add_argument("--episodes", type=int, default=2000, help="per set and setting")
    parser.add_argument("--classifiers", type=int, default=100, help="per set and setting, for rejection")
    parser.add_argument("--parts", default="accuracy,calibration,confidence,embeddings")
    parser.add_argument("--device", default="cpu")
    names = ",".join(f"{way}w{shot}s" for way, shot, _ in SETTINGS)
    parser.add_argument("--settings", default=names, help="of the accuracies")
    parser.add_argument("--write", type=Path, help="folder to write the model with the statistics of all sets to")
    arguments = parser.parse_args()
    sets = load_sets(arguments.data, arguments.cache, arguments.weights)
    if arguments.write is not None:
        write_model(sets, arguments.write)
        return
    sets = {name: x.to(arguments.device) for name, x in sets.items()}
    before = sightline.load(arguments.before).model.eval().to(arguments.device) if arguments.before else None
    counts = ", ".join(
        f"{name} {len(x.classes.names)} classes of {int(x.classes.counts.min())}" for name, x in sets.items()
    )
    print(f"{machine(arguments.device)}; {arguments.episodes:,} episodes per set and setting\n{counts}")
    parts = arguments.parts.split(",")
    with torch.no_grad():
        evaluated = [name for name in sets if name not in TRAINING_IMAGES]
        features = {name: Features.of(sets, name) for name in evaluated}
        if "accuracy" in parts:
            settings = [Setting.parse(name) for name in arguments.settings.split(",")]
            print_accuracies(sets, features, settings, arguments.episodes, None if before is None else before.head)
        if "calibration" in parts:
            print_calibration(sets, features, max(1, arguments.episodes // 10))
        if "confidence" in parts:
            print_confidence(sets, arguments.classifiers, before)
        if "embeddings" in parts:
            print_other_embeddings(sets, max(1, arguments.episodes // 10))


if __name__ == "__main__":
    main()
