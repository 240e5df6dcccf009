"""A trained few-shot model: evaluate_on on new classes, compared, drawn, and the start of a classifier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import config, zoo
from ...data.episodes import Classes
from ...data.images.class_splits import same_source
from ...data.images.formats.omniglot_runs import read_one_shot_runs
from ...data.images.loading import NAMED, ImageSet, Progress
from ...errors import SightlineError
from ...files import CONFIG, write_bytes
from ...metrics import wilson_interval
from ...models.few_shot import FewShot
from ...names import printable
from ...predictor import Predictor
from ...weights import read_weights, to_bytes
from .evaluate import Answers, Setting, Tally, drawable, embed_all, metrics, tally
from .frozen_embedder import Frozen
from .task import FewShotTask, Recipe, classes_of

if TYPE_CHECKING:
    from ..figures import Drawn

HARDEST = 10
"""Classes listed one by one."""


@dataclass(frozen=True)
class SettingScore:
    """How a model does at one way and shot."""

    accuracy: float
    half: float
    """Of the 95% interval over episodes."""
    loss: float
    calibration_error: float
    auroc: float | None
    """Of known against unknown; null where there are no classes beside those of an episode."""

    @classmethod
    def of(cls, seen: Tally) -> "SettingScore":
        """From what was counted."""
        counted, (accuracy, half) = metrics(seen.sums), seen.interval()
        return cls(accuracy, half, counted["loss"], counted["calibration_error"], seen.auroc())


@dataclass(frozen=True)
class FewShotScore:
    """How a model does on classes it has never seen."""

    split: str
    classes: int
    episodes: int
    """Of each setting."""
    settings: dict[str, SettingScore]
    per_class: dict[str, float]
    """In the first setting."""
    one_shot_runs: tuple[int, int] | None = None
    """Of Omniglot's official runs: how many were right, of how many."""
    query: int | None = None
    """Images asked of each class, where there were not as many as the recipe asks."""
    left_out: tuple[str, ...] = ()
    """Settings that want more classes or images than there are, or groups."""

    def lines(self) -> list[str]:
        """For a terminal."""
        found = [
            f"{self.split} set, {self.classes:,} classes, {self.episodes:,} episodes of each setting{self._changed()}",
            "setting  accuracy            calibration error  known against unknown",
        ]
        for name, one in self.settings.items():
            auroc = "-" if one.auroc is None else f"{one.auroc:.4f}"
            found.append(
                f"{name:7}  {one.accuracy:7.2%} ± {one.half:.2%}    {one.calibration_error:.4f}             {auroc}"
            )
        if self.one_shot_runs:
            found.append(f"official one-shot runs: {self._runs()}")
        if self.per_class:
            found.append(f"hardest classes, {next(iter(self.settings))}:")
        hardest = sorted(self.per_class.items(), key=lambda pair: pair[1])[:HARDEST]
        return [*found, *(f"  {share:7.2%}  {printable(name)}" for name, share in hardest)]

    def sentence(self) -> str:
        """For the card."""
        listed = ", ".join(f"{name} {one.accuracy:.2%} ± {one.half:.2%}" for name, one in self.settings.items())
        runs = f"; official one-shot runs {self._runs()}" if self.one_shot_runs else ""
        return f"On the {self.split} set ({self.classes:,} classes, {self.episodes:,} episodes each): {listed}{runs}."

    def _changed(self) -> str:
        fewer = "" if self.query is None else f", {self.query} images asked of each class"
        return fewer + (f"; too few classes or images for {', '.join(self.left_out)}" if self.left_out else "")

    def _runs(self) -> str:
        right, count = self.one_shot_runs or (0, 1)
        low, high = wilson_interval(right, count)
        return f"{right / count:.2%} ({right} of {count}; 95% interval {low:.2%} to {high:.2%})"


class FewShotPredictor(Predictor):
    """What `sightline.load(run)` gives for a few-shot model; `FewShotClassifier.pretrained(run)` learns with it."""

    def __init__(self, folder: Path, recipe: Recipe, model: FewShot):
        self.folder, self.recipe = folder, recipe
        self.model = model.eval()
        self.device = torch.device("cpu")

    @staticmethod
    def files(task: FewShotTask) -> dict[str, bytes]:
        """What a run of this task keeps beside its weights."""
        return {}

    @classmethod
    def open(cls, folder: Path) -> "FewShotPredictor":
        recipe = config.build(Recipe, config.read(folder / CONFIG))
        return cls(folder, recipe, read_weights(folder, lambda: FewShot(recipe.model), depth=recipe.model.depth))

    @classmethod
    def finish(cls, folder: Path, task: FewShotTask) -> dict[str, float]:
        """The last touch to a run: confidence set by validation classes. What it comes to there is given back."""
        if task.validation is None:
            return {}
        predictor, e = cls.open(folder).to(task.device), task.recipe.evaluation
        head, classes = predictor.model.head, task.judged_by
        embeddings = task.seen(predictor.model)
        asked: list[tuple[Tensor, Tensor]] = []

        def listening(support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
            logits = head(support, labels, query, way=way)
            asked.append((logits.flatten(0, 1), torch.arange(way).repeat_interleave(e.query).repeat(len(logits))))
            return logits

        how: dict[str, Any] = {"query": e.query, "episodes": e.selection_episodes}
        for name in dict.fromkeys((*e.settings, e.selection_setting)):
            setting = Setting.of(name)
            if setting.way <= len(classes.names) and setting.shot + e.query <= int(classes.counts.min()):
                tally(listening, embeddings, classes, **setting._asdict(), **how, unknown=False)
        head.calibration_scale.fill_(
            fit_calibration_scale([(logits.double().cpu(), labels) for logits, labels in asked])
        )
        write_bytes(folder / WEIGHTS, to_bytes({n: t.cpu() for n, t in predictor.model.state_dict().items()}))
        one = Setting.of(e.selection_setting)
        return metrics(tally(head, embeddings, classes, **one._asdict(), **how, unknown=False).sums)

    def to(self, device: str | torch.device) -> "FewShotPredictor":
        """Work there from now on."""
        self.device = torch.device(device)
        self.model.to(self.device)
        return self

    def read(self, inputs: Sequence[str]) -> list[Any]:
        """Images cannot be named before there are classes."""
        raise SightlineError(
            f"a few-shot model must first see what to tell apart, got images alone; begin with: "
            f"sightline fit FOLDER --model {zoo.display_name(self.folder)} --out mine.sightline"
        )

    def predict(self, images: Any) -> Any:
        """Refused: see `read`."""
        self.read([])

    def evaluation_split(self, source: str | None = None, progress: Progress | None = None) -> tuple[ImageSet, str]:
        """The classes to judge by, and what they are: those of test, or of validation, or all of other data."""
        there, run = self.recipe.data.source, zoo.display_name(self.folder)
        if source is None and there not in NAMED and not Path(there).expanduser().exists():
            raise SightlineError(
                f"the data of {run} must be there to judge by, got {there!r}, which is not; name their place, or other "
                f"data, with --data PATH"
            )
        ours = source is None or same_source(source, there)
        form: dict[str, Any] = {"image_size": self.recipe.model.image_size, "channels": self.recipe.model.channels}
        if not ours and self.frozen is not None:
            form = {"image_size": self.frozen.embedder.image_size, "channels": self.frozen.embedder.channels}
        data = replace(self.recipe.data, source=source or there, more=(), **form)
        learned = [one for one in self.recipe.data.more if source is not None and same_source(source, one.source)]
        if not ours:
            data = replace(data, split=learned[0].split if learned else None, validation=0.0)
            if data.rotations == "train":  # nothing is learned from: what is turned is no class of its own
                data = replace(data, rotations="none")
        splits = data.load(self.recipe.seed, progress)
        if splits.test is not None:
            return splits.test, "test"
        if learned:
            raise SightlineError(
                f"data must have test classes, since {run} has learned from it, got none in {source!r}; name other data"
            )
        if not ours:
            return splits.train, "whole"
        if splits.validation is None:
            raise SightlineError(
                f"data must have test or validation classes to judge by, got neither in {data.source!r}"
            )
        return splits.validation, "validation"

    def judging(self, settings: Sequence[str] = (), episodes: int | None = None) -> "FewShotPredictor":
        """Judge at these settings, over so many episodes of each; those of its recipe where nothing is given."""
        e = self.recipe.evaluation
        changed = replace(
            e, settings=tuple(settings) or e.settings, episodes=e.episodes if episodes is None else episodes
        )
        self.recipe = replace(self.recipe, evaluation=changed)
        return self

    def evaluate_on(self, source: str | None = None, progress: Progress | None = None) -> FewShotScore:
        """Thousands of episodes of classes it has never seen, at every setting of its recipe."""
        images, split = self.evaluation_split(source, progress)
        e, classes = self.recipe.evaluation, classes_of(images)
        names, query = (e.settings, e.query) if source is None else drawable(e.settings, classes, e.query)
        for name in names:
            Setting.of(name).check(classes, query)
        embeddings, done = self.embedded(images, progress), 0

        def advance(some: int) -> None:
            nonlocal done
            done += some
            if progress is not None:
                progress(done, len(names) * e.episodes)

        found: dict[str, SettingScore] = {}
        per_class: dict[str, float] = {}
        for setting in names:
            seen = self.tallied(self.model.head, embeddings, classes, setting, query, advance)
            found[setting] = SettingScore.of(seen)
            right, times = seen.sums["right"].cpu(), seen.sums["seen"].cpu()
            shares = {name: float(right[i] / times[i]) for i, name in enumerate(classes.names) if times[i] > 0}
            per_class = per_class or shares
        runs = None if e.one_shot_runs is None or source else self.one_shot_runs(e.one_shot_runs)
        left_out = tuple(name for name in e.settings if name not in names)
        fewer = None if query == e.query else query
        return FewShotScore(split, len(classes.names), e.episodes, found, per_class, runs, fewer, left_out)

    def embedded(self, images: ImageSet, progress: Progress | None = None) -> Tensor:
        """Each image once: (I, P, M)"""
        return self._seen(images.pixels, progress)

    @cached_property
    def frozen(self) -> Frozen | None:
        """The embedder its head was trained on, if that is not a backbone of its own."""
        return Frozen.of(self.recipe)

    def _seen(self, pixels: Tensor, progress: Progress | None = None) -> Tensor:
        if self.frozen is not None:
            return self.frozen.all(pixels, self.device, progress)
        return embed_all(self.model, pixels, self.device)

    def tallied(
        self,
        answer: Answers,
        embeddings: Tensor,
        classes: Classes,
        setting: str,
        query: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Tally:
        """What an answer comes to over the episodes of its recipe."""
        e, one = self.recipe.evaluation, Setting.of(setting)
        query = e.query if query is None else query
        one.check(classes, query)
        alone = not self.recipe.model.transductive  # strangers would be seen by the others
        how = one._asdict() | {"query": query, "episodes": e.episodes, "unknown": alone}
        return tally(answer, embeddings, classes, **how, progress=progress)

    @torch.no_grad()
    def one_shot_runs(self, path: str | Path) -> tuple[int, int]:
        """Omniglot's official runs: how many answers are right, of how many."""
        right = count = 0
        for run in read_one_shot_runs(path, size=self.recipe.model.image_size):
            way = len(run.support)
            support, query = (self._seen(x)[None] for x in (run.support, run.query))
            labels = torch.arange(way, device=self.device)[None]
            answers = self.model.head(support, labels, query, way=way)[0].argmax(-1).cpu()
            right, count = right + int((answers == run.labels).sum()), count + len(answers)
        return right, count

    def show(self, images: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png") -> "Drawn":
        """Pictures of how training went: accuracy, and the temperature and entropy of every head."""
        from .figures import show

        return show(self, out, format=format)
