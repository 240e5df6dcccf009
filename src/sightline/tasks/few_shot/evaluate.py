"""Evaluation of few-shot classifiers on episodes.

Every image is embedded once; thousands of episodes are then drawn from the embeddings.

Shapes: N images, E episodes, S support images, Q queries, T tokens per image, M embedding dimension.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...attention import record_attention
from ...attention.scores import CosineScore
from ...data.episodes import ClassIndex, Episodes, sample_episodes
from ...data.images.class_splits import class_groups
from ...data.images.datasets import ImageSet
from ...errors import SightlineError
from ...metrics import (
    auroc,
    classification_metrics,
    classification_sums,
    mean_interval,
    update_classification_sums,
    wilson_interval,
)
from ...models.few_shot_head import FewShotHead
from ...names import printable
from ...predictor import SPLIT_NOTES
from ...training.task import BatchSlice
from .config import EvaluationConfig, Setting

EPISODES_PER_DRAW = 250
"""Episodes drawn together. They do not depend on the number that is computed together."""
MAX_VALUES_PER_BATCH = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Numbers in the embeddings of the episodes that are computed together."""
MAX_UNKNOWN_CLASSES = 5
"""Classes outside an episode whose images are queried as unknowns."""
SEED = 0
"""Seed of all evaluation episodes, so that all models are evaluated on the same ones."""
RECORDED_EPISODES = 8
"""Episodes whose attention entropy is logged."""
MAX_LISTED_CLASSES = 10

Classifier = Callable[..., Tensor]
"""A few-shot head or a baseline: support (E, S, T, M), labels (E, S), query (E, Q, T, M), way -> logits (E, Q, way)"""


@dataclass
class EpisodeResults:
    """Results over a number of episodes."""

    sums: dict[str, Tensor]
    """Sums of `metrics.classification_sums` over the known queries."""
    accuracies: list[Tensor] = field(default_factory=list)
    """The accuracy of each episode."""
    known: list[Tensor] = field(default_factory=list)
    """The largest logit of each query of a class of its episode."""
    unknown: list[Tensor] = field(default_factory=list)
    """The largest logit of each query of another class."""

    def update(self, episodes: Episodes, logits: Tensor) -> None:
        """Add the logits of the queries of some episodes; those of unknown classes come last."""
        labels = episodes.query_labels
        known, unknown = logits[:, : labels.shape[1]], logits[:, labels.shape[1] :]
        classes = episodes.classes.gather(1, labels).flatten()
        correct = update_classification_sums(self.sums, known.flatten(0, 1), labels.flatten(), classes=classes)
        self.accuracies.append(correct.view(labels.shape).mean(1).cpu())
        self.known.append(known.amax(-1).flatten().cpu())
        self.unknown.append(unknown.amax(-1).flatten().cpu())

    def interval(self) -> tuple[float, float]:
        """The mean accuracy over episodes and half the width of its 95% interval."""
        return mean_interval(torch.cat(self.accuracies))

    def auroc(self) -> float | None:
        """AUROC of the largest logit for known against unknown queries; None without unknown queries."""
        known, unknown = torch.cat(self.known).double(), torch.cat(self.unknown).double()
        return auroc(known, unknown) if len(unknown) else None


@dataclass(frozen=True)
class SettingMetrics:
    """Metrics of one setting."""

    accuracy: float
    margin: float
    """Half the width of the 95% interval of the accuracy over episodes."""
    loss: float
    calibration_error: float
    auroc: float | None
    """AUROC of known against unknown queries; None if there are no classes outside an episode."""

    @classmethod
    def from_results(cls, results: EpisodeResults) -> "SettingMetrics":
        """Metrics from the results of `evaluate_episodes`."""
        metrics, (accuracy, margin) = classification_metrics(results.sums), results.interval()
        return cls(accuracy, margin, metrics["loss"], metrics["calibration_error"], results.auroc())


@dataclass(frozen=True)
class FewShotEvaluation:
    """Metrics of a few-shot model on classes it was not trained on."""

    split: str
    classes: int
    episodes: int
    """Episodes per setting."""
    settings: dict[str, SettingMetrics]
    per_class: dict[str, float]
    """Accuracy of each class in the first setting."""
    one_shot_runs: tuple[int, int] | None = None
    """Correct predictions and total of Omniglot's official one-shot runs."""
    query: int | None = None
    """Query images per class, if fewer than in the config."""
    skipped_settings: tuple[str, ...] = ()
    """Settings for which the data has too few classes or images, or no groups."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        accuracies = ", ".join(f"{name} {m.accuracy:.2%} ± {m.margin:.2%}" for name, m in self.settings.items())
        runs = f"; official one-shot runs {self._one_shot_runs()}" if self.one_shot_runs else ""
        data = f"{self.split} set ({self.classes:,} classes, {self.episodes:,} episodes per setting)"
        return f"On the {data}: {accuracies}{runs}."

    def __str__(self) -> str:
        notes = settings_notes(self.query, self.skipped_settings) + SPLIT_NOTES.get(self.split, "")
        lines = [f"{self.split} set, {self.classes:,} classes, {self.episodes:,} episodes per setting{notes}"]
        lines.append("setting  accuracy            calibration error  AUROC known/unknown")
        for name, m in self.settings.items():
            accuracy, area = f"{m.accuracy:7.2%} ± {m.margin:.2%}", "-" if m.auroc is None else f"{m.auroc:.4f}"
            lines.append(f"{name:7}  {accuracy}    {m.calibration_error:.4f}             {area}")
        if self.one_shot_runs:
            lines.append(f"official one-shot runs: {self._one_shot_runs()}")
        if self.per_class:
            lines.append(f"lowest accuracy by class, {next(iter(self.settings))}")
        worst = sorted(self.per_class.items(), key=lambda pair: pair[1])[:MAX_LISTED_CLASSES]
        return "\n".join([*lines, *(f"  {accuracy:7.2%}  {printable(name)}" for name, accuracy in worst)])

    def _one_shot_runs(self) -> str:
        correct, total = self.one_shot_runs or (0, 1)
        low, high = wilson_interval(correct, total)
        return f"{correct / total:.2%} ({correct} of {total}; 95% interval {low:.2%} to {high:.2%})"


def episode_classes(images: ImageSet) -> ClassIndex:
    """The classes of a data set, with their groups, to draw episodes from."""
    return ClassIndex.from_labels(images.labels, images.classes, class_groups(images.classes))


@torch.no_grad()
def evaluate_episodes(
    classifier: Classifier,
    embeddings: Tensor,
    classes: ClassIndex,
    setting: Setting,
    *,
    query: int,
    episodes: int,
    with_unknown: bool = True,
    batch_slice: BatchSlice | None = None,
    progress: Callable[[int], None] | None = None,
) -> EpisodeResults:
    """Results of a classifier on seeded episodes: embeddings (N, T, M).

    The episodes depend on the classes and the options only. They are the same with and without unknown queries.
    `progress` is called with the number of newly finished episodes.
    """
    device, way = embeddings.device, setting.way
    results = EpisodeResults(classification_sums(len(classes.names), device))
    num_unknown = min(MAX_UNKNOWN_CLASSES, way, len(classes.names) - way)
    images_per_episode = way * (setting.shot + query) + num_unknown * query
    values_per_episode = images_per_episode * embeddings.shape[1] * embeddings.shape[2]
    size = max(1, MAX_VALUES_PER_BATCH[device.type] // values_per_episode)
    for drawn, unknown in _draw_episodes(classes, setting, num_unknown, query, episodes, batch_slice or BatchSlice()):
        for start in range(0, len(drawn.classes), size):
            rows = slice(start, start + size)
            batch = Episodes(*(x[rows].to(device) for x in (drawn.classes, drawn.support, drawn.query)))
            queries = torch.cat((batch.query, unknown[rows].to(device)), 1) if with_unknown else batch.query
            logits = classifier(embeddings[batch.support], batch.support_labels, embeddings[queries], way=way)
            results.update(batch, logits.float())
            if progress is not None:
                progress(len(batch.classes))
    return results


def _draw_episodes(
    classes: ClassIndex, setting: Setting, num_unknown: int, query: int, episodes: int, batch_slice: BatchSlice
) -> Iterator[tuple[Episodes, Tensor]]:
    """Episodes, and indices of images of other classes for each (E, Q). They are drawn on the CPU on every device."""
    way, shot, within_group = setting
    for step, start in enumerate(range(0, episodes, EPISODES_PER_DRAW)):
        if step % batch_slice.world_size != batch_slice.rank:
            continue
        count, fraction = min(EPISODES_PER_DRAW, episodes - start), float(within_group)
        sizes = {"episodes": count, "way": way + num_unknown, "shot": shot, "query": query}
        drawn = sample_episodes(classes, **sizes, seed=SEED, step=step, within_group=fraction)
        drawn.check()
        num_support, num_query = way * shot, way * query
        known = Episodes(drawn.classes[:, :way], drawn.support[:, :num_support], drawn.query[:, :num_query])
        yield known, drawn.query[:, num_query:]


def select_settings(
    config: EvaluationConfig, classes: ClassIndex, *, skip_infeasible: bool, can_lower_way: bool = False
) -> tuple[list[str], int]:
    """The settings to evaluate, and the queries per class, after a check that these classes have enough images.

    With `skip_infeasible`, settings that the classes do not allow are left out, and fewer queries are used if a class
    has too few images. If no setting is left, `can_lower_way` replaces the way of all by the number of classes.
    Otherwise SightlineError is raised.
    """
    if not skip_infeasible:
        for name in config.settings:
            Setting.parse(name).check(classes, config.query)
        return list(config.settings), config.query
    feasible, errors = _feasible_settings(config.settings, classes)
    if not feasible and can_lower_way:
        shots = dict.fromkeys(Setting.parse(name).shot for name in config.settings)
        feasible, _ = _feasible_settings([f"{len(classes.names)}w{shot}s" for shot in shots], classes)
    if not feasible:
        raise SightlineError(errors[0])
    shot = max(Setting.parse(name).shot for name in feasible)
    return feasible, min(config.query, int(classes.counts.min()) - shot)


def _feasible_settings(names: Iterable[str], classes: ClassIndex) -> tuple[list[str], list[str]]:
    """The settings that the classes allow with one query per class, and why they do not allow the others."""
    feasible, errors = [], []
    for name in names:
        try:
            Setting.parse(name).check(classes, 1)
            feasible.append(name)
        except SightlineError as error:
            errors.append(f"{name}: {error}; choose other settings with --settings")
    return feasible, errors


@torch.no_grad()
def attention_statistics(
    head: FewShotHead, embeddings: Tensor, classes: ClassIndex, setting: Setting
) -> dict[str, Tensor]:
    """The temperature of every attention head, and the entropy of its attention in bits over a few episodes."""
    if not head.blocks:
        return {}
    way, shot, _ = setting
    episodes = sample_episodes(classes, episodes=RECORDED_EPISODES, way=way, shot=shot, query=1, seed=SEED, step=0)
    device = embeddings.device
    support, query, labels = (x.to(device) for x in (episodes.support, episodes.query, episodes.support_labels))
    with record_attention(head) as record:
        head(embeddings[support], labels, embeddings[query], way=way)
    statistics = {}
    for number, (block, attention_map) in enumerate(zip(head.blocks, record, strict=True), start=1):
        score = block.attention.score  # type: ignore[union-attr]
        weights = attention_map.weights.double()
        entropy = -(weights * weights.clamp_min(1e-12).log2()).sum(-1).mean((0, 2))
        for i in range(weights.shape[1]):
            statistics[f"entropy/block {number} head {i + 1}"] = entropy[i]
            if isinstance(score, CosineScore):
                statistics[f"temperature/block {number} head {i + 1}"] = score.temperature().flatten()[i]
    statistics["temperature/similarity"] = head.similarity.temperature().flatten()[0].to(device)
    return statistics


def settings_notes(query: int | None, skipped_settings: Sequence[str]) -> str:
    """What differs from the settings of the config, for the title of a report."""
    fewer = "" if query is None else f", {query} query images per class"
    return fewer + (f", too few classes or images for {', '.join(skipped_settings)}" if skipped_settings else "")
