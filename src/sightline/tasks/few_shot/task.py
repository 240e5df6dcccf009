"""Training of a few-shot classifier: its episodes, loss and validation metrics."""

import itertools
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import seeds
from ...data.episodes import Classes, Source, draw_from, left_out
from ...data.images.class_splits import ClassSplits, groups_of
from ...data.images.loading import ImageSet, Progress
from ...data.images.statistics import histogram, mean_and_spread
from ...metrics import fit_calibration_scale
from ...models.few_shot import FewShot
from ...training.task import BatchSlice
from ..image_classification.task import NORMALIZATION_IMAGES, digest
from .config import FewShotTaskConfig
from .evaluate import Setting, attention_facts, embed_all, metrics, tally
from .frozen_embedder import Embedded
from .micro_batches import Piece, Shown, changed, pieces


class FewShotTask:
    """Classes to learn from, and the model that learns."""

    monitor, higher_is_better = "accuracy", True

    def __init__(self, config: FewShotTaskConfig, data: ClassSplits, progress: Progress | None = None):
        divided = data
        train, e = divided.train, config.episode
        self.train, self.validation, self.test = train, divided.validation, divided.test
        self.sources = _sources(divided)
        for one in self.sources:
            one.classes.check(e.way, e.shot + e.query)
        if self.validation is not None:
            self.judged_by = classes_of(self.validation)
            Setting.of(config.evaluation.selection_setting).check(self.judged_by, config.evaluation.query)
        count = len(train.classes) if config.auxiliary else 0
        model_config = replace(config.model, image_size=train.size, channels=train.channels, num_classes=count)
        self.config = replace(config, model=model_config)
        self.model = FewShot(model_config)
        chosen = np.sort(
            seeds.make_generator(config.seed, seeds.NORMALIZATION).permutation(len(train))[:NORMALIZATION_IMAGES]
        )
        levels = histogram(train, chosen)
        if self.model.backbone is not None:
            self.model.set_normalization(*mean_and_spread(levels))
        self.embedded = Embedded.of(config, divided, progress)
        self.data_fingerprint = _held(divided, levels)
        """What the data hold, in few words: a run goes on with the same."""
        self.device = torch.device("cpu")

    @staticmethod
    def load_data(config: FewShotTaskConfig, progress: Progress | None = None) -> ClassSplits:
        """Read the config's data."""
        return config.data.load(config.seed, progress)

    def files(self) -> dict[str, bytes]:
        return {}

    @torch.no_grad()
    def finish(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Calibrate the confidence on the validation classes."""
        if self.validation is None:
            return weights, {}
        model = FewShot(self.config.model).to(self.device).eval()
        model.load_state_dict(weights)
        head, classes, e = model.head, self.judged_by, self.config.evaluation
        embeddings = self.seen(model)
        batches: list[tuple[Tensor, Tensor]] = []

        def collect(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
            logits = head(support, labels, query, way=way)
            batches.append((logits.flatten(0, 1), torch.arange(way).repeat_interleave(e.query).repeat(len(logits))))
            return logits

        options: dict[str, Any] = {"query": e.query, "episodes": e.selection_episodes}
        for name in dict.fromkeys((*e.settings, e.selection_setting)):
            setting = Setting.of(name)
            if setting.way <= len(classes.names) and setting.shot + e.query <= int(classes.counts.min()):
                tally(collect, embeddings, classes, **setting._asdict(), **options, unknown=False)
        head.calibration_scale.fill_(
            fit_calibration_scale([(logits.double().cpu(), labels) for logits, labels in batches])
        )
        setting = Setting.of(e.selection_setting)
        found = metrics(tally(head, embeddings, classes, **setting._asdict(), **options, unknown=False).sums)
        return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, found

    def steps_per_epoch(self, batch_size: int) -> int:
        e = self.config.episode
        return max(1, len(self.train) // (batch_size * e.way * (e.shot + e.query)))

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        if self.config.training.fsdp:  # torch shares out only what lies in order
            self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.sources = [one._replace(classes=one.classes.to(device)) for one in self.sources]
        if self.embedded is not None:
            self.embedded = self.embedded.to(device)
            return
        self.train = ImageSet(self.train.pixels.to(device), self.train.labels.to(device), self.train.classes)
        if self.validation is not None:
            v = self.validation
            self.validation = ImageSet(v.pixels.to(device), v.labels.to(device), v.classes)

    def batches(self, first: int, batch_size: int, part: BatchSlice) -> Generator[list[Any], None, None]:
        e, rows = self.config.episode, part.indices(batch_size)
        for step in itertools.count(first):
            drawn = draw_from(
                self.sources,
                episodes=batch_size,
                way=e.way,
                shot=e.shot,
                query=e.query,
                seed=self.config.seed,
                step=step,
                within=e.within,
            )
            if step == first:
                drawn.check()  # later ones are drawn alike, and to look at them would make a GPU wait
            known = None
            if e.min_shot is not None:
                known = left_out(drawn.support_labels, way=e.way, least=e.min_shot, seed=self.config.seed, step=step)
            yield pieces(drawn, known, rows, self._shown(torch.cat((drawn.support, drawn.query), 1), rows, step))

    def _shown(self, chosen: Tensor, rows: list[slice], step: int) -> Shown:
        if self.embedded is not None:
            return self.embedded.shown(chosen, rows, seed=self.config.seed, step=step)
        return changed(self.train, self.config.augment, chosen, rows, seed=self.config.seed, step=step)

    def seen(self, model: FewShot) -> Tensor:
        """The images to choose by, embedded: (I, P, M)"""
        if self.embedded is not None:
            return self.embedded.validation
        assert self.validation is not None
        return embed_all(model, self.validation.pixels, self.device)

    def loss(self, model: nn.Module, piece: Piece) -> Tensor:
        images, labels, answers, known, total = piece
        e, smoothing = self.config.episode, self.config.label_smoothing
        logits, plain = model(images, way=e.way, shot=e.shot, labels=known)
        share = len(images) / total
        loss = share * F.cross_entropy(logits.flatten(0, 1).float(), answers.flatten(), label_smoothing=smoothing)
        if plain is not None:
            loss = loss + share * self.config.auxiliary * F.cross_entropy(plain.float(), labels, label_smoothing=0.1)
        return loss

    def evaluate(self, model: nn.Module, part: BatchSlice) -> dict[str, Tensor]:
        if self.validation is None:
            return {}
        assert isinstance(model, FewShot)
        embeddings = self.seen(model)
        setting = Setting.of(self.config.evaluation.selection_setting)
        sums = tally(
            model.head,
            embeddings,
            self.judged_by,
            **setting._asdict(),
            query=self.config.evaluation.query,
            episodes=self.config.evaluation.selection_episodes,
            part=part,
            unknown=False,
        )
        facts = attention_facts(model.head, embeddings, self.judged_by, setting.way, setting.shot)
        return {**sums.sums, **facts, "judges": torch.ones((), dtype=torch.float64, device=self.device)}

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return metrics(sums) if sums else {}


def classes_of(images: ImageSet) -> Classes:
    """Where its classes lie, and which of them go together."""
    return Classes.of(images.labels, images.classes, groups_of(images.classes))


def _sources(splits: ClassSplits) -> list[Source]:
    """What to draw training episodes from: the classes of the first data set, and of each beside it."""
    classes = classes_of(splits.train)
    first = len(classes.names) - sum(one.classes for one in splits.shares)
    sources = [Source(classes.part(0, first), 0, 1 - sum(one.episodes for one in splits.shares))]
    for count, share in splits.shares:
        sources.append(Source(classes.part(first, first + count), first, share))
        first += count
    return sources


def _held(splits: ClassSplits, levels: Tensor) -> dict[str, Any]:
    """Counts and digests of what a data set holds; `levels` are those of its training images."""
    facts: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        images: ImageSet | None = getattr(splits, name)
        facts[name] = {"images": 0 if images is None else len(images)}
        if images is not None:
            facts[name]["classes"] = digest("\0".join(images.classes).encode())
            facts[name]["labels"] = digest(images.labels.cpu().numpy().tobytes())
    facts["train"]["levels"] = digest(levels.numpy().tobytes())
    return facts
