"""Training of a few-shot classifier: its episodes, loss and validation metrics.

Shapes: E episodes, S support images, Q queries, C channels, T tokens per image, M embedding dimension.
"""

import itertools
from collections.abc import Generator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.episodes import EpisodeSource, change_labels, drop_support_labels, sample_from_sources, sample_way
from ...data.images import augmentation
from ...data.images.class_splits import ClassSplits
from ...data.images.datasets import ImageSet
from ...data.images.statistics import mean_and_std, sample_histogram
from ...files import digest
from ...metrics import classification_metrics, fit_calibration_scale
from ...models.few_shot import FewShot
from ...models.normalization import EmbeddingNormalization, SpatialNormalization
from ...predictor import Progress
from ...training.task import BatchSlice, Task
from .config import FewShotTaskConfig, Setting
from .embeddings import EmbeddedData
from .evaluate import Classifier, EpisodeResults, attention_statistics, episode_classes, evaluate_episodes


class EpisodeBatch(NamedTuple):
    """The episodes of a micro-batch."""

    images: Tensor
    """(E, S + Q, C, image_size, image_size), support first, ordered by class; or embeddings (E, S + Q, T, M)."""
    labels: Tensor
    """(E * (S + Q)), among all training classes."""
    query_labels: Tensor
    """(E, Q), among the classes of the episode."""
    support_labels: Tensor | None
    """(E, S), -1 for images to ignore; None if no image is ignored."""
    batch_size: int
    """Episodes of the whole batch."""


class FewShotTask(Task):
    """A few-shot classifier and the classes it is trained on."""

    monitor, higher_is_better, unit = "accuracy", True, "episodes"

    def __init__(self, config: FewShotTaskConfig, data: ClassSplits, progress: Progress | None = None):
        train = data.train
        self.train, self.validation = train, data.validation
        self.config = self.complete_config(config, data)
        self.sources = _sources(data)
        self.setting = Setting.parse(config.evaluation.selection_setting)
        if self.validation is not None:
            self.validation_classes = episode_classes(self.validation)
        self.model = FewShot(self.config.model)
        histogram = sample_histogram(train, config.seed)
        if self.model.backbone is not None:
            self.model.set_normalization(*mean_and_std(histogram))
        self.embedded = EmbeddedData.of(config, data, progress)
        normalization = self.model.head.normalization
        if self.embedded is not None and isinstance(normalization, EmbeddingNormalization | SpatialNormalization):
            normalization.set_statistics(self.embedded.by_source(self.sources))
        self.data_fingerprint = _data_fingerprint(data, histogram)
        self.device = torch.device("cpu")

    @staticmethod
    def load_data(config: FewShotTaskConfig, progress: Progress | None = None) -> ClassSplits:
        """Read the config's data sets."""
        return config.data.load(config.seed, progress)

    @staticmethod
    def complete_config(config: FewShotTaskConfig, data: ClassSplits) -> FewShotTaskConfig:
        train, episode, evaluation = data.train, config.episode, config.evaluation
        for source in _sources(data):
            way = min(episode.way, len(source.classes.names)) if episode.min_way is not None else episode.way
            source.classes.check(max(way, episode.min_way or 0), episode.shot + episode.query)
        if data.validation is not None:
            Setting.parse(evaluation.selection_setting).check(episode_classes(data.validation), evaluation.query)
        num_classes = len(train.classes) if config.auxiliary_loss_weight else 0
        model = replace(config.model, image_size=train.size, channels=train.channels, num_classes=num_classes)
        return replace(config, model=model)

    def new_parameters(self, predictor: Any) -> tuple[str, ...]:
        return ("classifier.",)  # of the training classes

    def steps_per_epoch(self, batch_size: int) -> int:
        episode = self.config.episode
        return max(1, len(self.train) // (batch_size * episode.way * (episode.shot + episode.query)))

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        if self.config.training.fsdp:  # FSDP shards contiguous tensors only
            self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.sources = [source._replace(classes=source.classes.to(device)) for source in self.sources]
        if self.embedded is not None:
            self.embedded = self.embedded.to(device)
            return
        self.train = self.train.to(device)
        self.validation = None if self.validation is None else self.validation.to(device)

    def batches(
        self, first_step: int, batch_size: int, batch_slice: BatchSlice
    ) -> Generator[list[EpisodeBatch], None, None]:
        episode, seed, slices = self.config.episode, self.config.seed, batch_slice.indices(batch_size)
        options: dict[str, Any] = {"shot": episode.shot, "query": episode.query, "seed": seed}
        options |= {"episodes": batch_size, "within_group": episode.within_group}
        for step in itertools.count(first_step):
            way, sources = episode.way, self.sources
            if episode.min_way is not None:
                way, sources = sample_way(sources, min_way=episode.min_way, way=way, seed=seed, step=step)
            drawn = sample_from_sources(sources, way=way, step=step, **options)
            if step == first_step:  # a check of every step would synchronize with the GPU
                drawn.check()
            labels, min_shot = None, episode.min_shot
            if min_shot is not None or episode.label_noise:
                labels = drawn.support_labels
            if labels is not None and episode.label_noise:
                labels = change_labels(labels, way=way, fraction=episode.label_noise, seed=seed, step=step)
            if labels is not None and min_shot is not None:
                labels = drop_support_labels(labels, way=way, min_shot=min_shot, seed=seed, step=step)
            images = self._images(torch.cat((drawn.support, drawn.query), 1), slices, step)
            yield [
                EpisodeBatch(*pair, drawn.query_labels[rows], None if labels is None else labels[rows], batch_size)
                for rows, pair in zip(slices, images, strict=True)
            ]

    def _images(self, indices: Tensor, slices: list[slice], step: int) -> list[tuple[Tensor, Tensor]]:
        """Augmented images and labels, or embeddings, of the images (E, S + Q) of a step, for each slice."""
        seed, config, train = self.config.seed, self.config.augment, self.train
        if self.embedded is not None:
            return self.embedded.select(indices, slices, seed=seed, step=step)
        num_classes, per_episode, device = len(train.classes), indices.shape[1], train.pixels.device
        params = augmentation.sample_params(config, indices.numel(), seed=seed, step=step)
        result = []
        for rows in slices:
            flat = indices[rows].flatten()
            drawn = params.take(slice(rows.start * per_episode, rows.stop * per_episode)).to(device)
            images, labels = augmentation.apply(config, train.pixels[flat], train.labels[flat], num_classes, drawn)
            result.append((images.unflatten(0, (-1, per_episode)), labels))
        return result

    def loss(self, model: nn.Module, batch: EpisodeBatch) -> Tensor:
        episode, config = self.config.episode, self.config
        way = batch.query_labels.shape[1] // episode.query
        logits, auxiliary = model(batch.images, way=way, shot=episode.shot, labels=batch.support_labels)
        fraction, labels = len(batch.images) / batch.batch_size, batch.query_labels.flatten()
        loss = fraction * F.cross_entropy(logits.flatten(0, 1).float(), labels, label_smoothing=config.label_smoothing)
        if auxiliary is not None:
            auxiliary_loss = F.cross_entropy(auxiliary.float(), batch.labels, label_smoothing=0.1)
            loss = loss + fraction * config.auxiliary_loss_weight * auxiliary_loss
        return loss

    def evaluate(self, model: nn.Module, batch_slice: BatchSlice) -> dict[str, Tensor]:
        if self.validation is None:
            return {}
        assert isinstance(model, FewShot)
        embeddings = self.validation_embeddings(model)
        sums = self._evaluate(model.head, embeddings, self.setting, batch_slice).sums
        statistics = attention_statistics(model.head, embeddings, self.validation_classes, self.setting)
        return {**sums, **statistics, "processes": torch.ones((), dtype=torch.float64, device=self.device)}

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Classification metrics, and the attention statistics averaged over processes."""
        if not sums:
            return {}
        statistics = {name: float(value / sums["processes"]) for name, value in sums.items() if "/" in name}
        return classification_metrics(sums) | statistics

    @torch.no_grad()
    def finish(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Calibrate the confidence on the validation classes."""
        if self.validation is None or not self.can_calibrate(len(self.validation)):
            return weights, {}
        model = FewShot(self.config.model).to(self.device).eval()
        model.load_state_dict(weights)
        config, classes = self.config.evaluation, self.validation_classes
        embeddings = self.validation_embeddings(model)
        batches: list[tuple[Tensor, Tensor]] = []

        def collect(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
            logits: Tensor = model.head(support, labels, query, way=way)
            query_labels = torch.arange(way).repeat_interleave(config.query).repeat(len(logits))
            batches.append((logits.flatten(0, 1).double().cpu(), query_labels))
            return logits

        for name in dict.fromkeys((*config.settings, config.selection_setting)):
            setting = Setting.parse(name)
            if setting.way <= len(classes.names) and setting.shot + config.query <= int(classes.counts.min()):
                self._evaluate(collect, embeddings, setting)
        model.head.calibration_scale.fill_(fit_calibration_scale(batches))
        metrics = classification_metrics(self._evaluate(model.head, embeddings, self.setting).sums)
        return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, metrics

    def validation_embeddings(self, model: FewShot) -> Tensor:
        """Embeddings of the validation images: (N, T, M)"""
        if self.embedded is not None:
            return self.embedded.validation
        assert self.validation is not None
        return model.embed_pixels(self.validation.pixels)

    def _evaluate(
        self, classifier: Classifier, embeddings: Tensor, setting: Setting, batch_slice: BatchSlice | None = None
    ) -> EpisodeResults:
        c, classes = self.config.evaluation, self.validation_classes
        options: dict[str, Any] = {"query": c.query, "episodes": c.selection_episodes, "with_unknown": False}
        return evaluate_episodes(classifier, embeddings, classes, setting, batch_slice=batch_slice, **options)


def _sources(splits: ClassSplits) -> list[EpisodeSource]:
    """The classes of each training data set, with their fraction of the episodes."""
    classes = episode_classes(splits.train)
    first = len(classes.names) - sum(count for count, _ in splits.extra_sources)
    sources = [EpisodeSource(classes.slice(0, first), 0, 1 - sum(fraction for _, fraction in splits.extra_sources))]
    for count, fraction in splits.extra_sources:
        sources.append(EpisodeSource(classes.slice(first, first + count), first, fraction))
        first += count
    return sources


def _data_fingerprint(splits: ClassSplits, histogram: Tensor) -> dict[str, Any]:
    """Counts and digests of a data set; `histogram` is the histogram of its training images."""
    fingerprint: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        images: ImageSet | None = getattr(splits, name)
        fingerprint[name] = {"images": 0 if images is None else len(images)}
        if images is not None:
            fingerprint[name]["classes"] = digest("\0".join(images.classes).encode())
            fingerprint[name]["labels"] = digest(images.labels.cpu().numpy().tobytes())
    fingerprint["train"]["levels"] = digest(histogram.numpy().tobytes())
    return fingerprint
