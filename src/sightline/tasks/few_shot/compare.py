"""Comparison of few-shot classifiers on identical episodes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...comparison import Comparison, Table
from ...data.images.datasets import ImageSet
from ...errors import SightlineError, check, check_choice
from ...metrics import mean_interval
from ...models.baselines import BASELINES
from ...names import printable
from ...predictor import Progress
from .config import Setting
from .evaluate import Classifier, episode_classes, evaluate_episodes, select_settings, settings_notes
from .predictor import FewShotPredictor

PRECISION_EPISODES, PRECISION_IMAGES, PRECISION_TOLERANCE = 200, 40, 0.005
"""Episodes, images per class and largest change of accuracy of `compare_precision`."""


@dataclass(frozen=True)
class PairedAccuracy:
    """The accuracy in one setting, and its difference to a reference on the same episodes."""

    accuracy: float
    margin: float
    """Half the width of the 95% interval of the accuracy over episodes."""
    difference: float
    difference_margin: float
    """Half the width of the 95% interval of the paired difference."""

    @classmethod
    def from_episodes(cls, accuracies: Tensor, reference: Tensor) -> "PairedAccuracy":
        """From the accuracy of each episode, and that of the reference: (E,) each."""
        return cls(*mean_interval(accuracies), *mean_interval(accuracies - reference))

    def __str__(self) -> str:
        return f"{self.accuracy:.2%} ± {self.margin:.2%}"

    def difference_points(self) -> str:
        """The difference in percentage points."""
        return f"{100 * self.difference:+.2f} ± {100 * self.difference_margin:.2f}"


@dataclass(frozen=True)
class FewShotComparison(Comparison):
    """The accuracies of several models on identical episodes. The first model is the reference."""

    split: str
    classes: int
    episodes: int
    """Episodes per setting."""
    results: tuple[tuple[str, dict[str, PairedAccuracy]], ...]
    """The name of each model, and its results by setting."""
    query: int | None = None
    """Query images per class, if fewer than in the config of the reference."""
    skipped_settings: tuple[str, ...] = ()
    """Settings for which the data has too few classes or images, or no groups."""

    def to_records(self) -> list[dict[str, Any]]:
        """One record for each model and setting. The reference has no difference."""
        return [
            {
                "name": name,
                "split": self.split,
                "setting": setting,
                "episodes": self.episodes,
                "accuracy": paired.accuracy,
                "interval": _interval(paired.accuracy, paired.margin),
                "difference": paired.difference if i else None,
                "difference_interval": _interval(paired.difference, paired.difference_margin) if i else None,
            }
            for i, (name, by_setting) in enumerate(self.results)
            for setting, paired in by_setting.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        names = ("split", "classes", "episodes", "query", "skipped_settings")
        return {name: getattr(self, name) for name in names} | {"results": self.to_records()}

    def title(self) -> str:
        notes = settings_notes(self.query, self.skipped_settings)
        data = f"{self.split} set, {self.classes:,} classes, the same {self.episodes:,} episodes per setting for all"
        difference = "the paired difference to the first model in percentage points with its 95% interval"
        return f"{data} models{notes}; accuracy with its 95% interval, and {difference}"

    def table(self) -> Table:
        rows = [["", *(cell for setting in self.results[0][1] for cell in (setting, "difference"))]]
        for i, (name, by_setting) in enumerate(self.results):
            cells = ((str(paired), paired.difference_points() if i else "") for paired in by_setting.values())
            rows.append([printable(name), *(cell for pair in cells for cell in pair)])
        return rows


def compare(
    predictors: Sequence[FewShotPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    baselines: Sequence[str] = (),
    settings: Sequence[str] = (),
    episodes: int | None = None,
    progress: Progress | None = None,
) -> FewShotComparison:
    """Evaluate few-shot runs on identical episodes; baselines use the embeddings of the first run.

    Settings and the number of episodes default to those of the first run's config. The classes are the test classes of
    the runs' data, or of `data`: all its classes if it has no test split.
    """
    for baseline in baselines:
        check_choice("baseline", baseline, BASELINES)
    config = predictors[0].config.evaluation.changed(settings, episodes)
    sets = _evaluation_sets(predictors, names, data, progress)
    images, split = sets[0]
    classes = episode_classes(images)
    adapt: dict[str, Any] = {"skip_infeasible": data is not None, "can_lower_way": not settings}
    feasible, query = select_settings(config, classes, **adapt)

    def accuracies(classifier: Classifier, embeddings: Tensor) -> dict[str, Tensor]:
        options: dict[str, Any] = {"query": query, "episodes": config.episodes, "with_unknown": False}
        results = (evaluate_episodes(classifier, embeddings, classes, Setting.parse(s), **options) for s in feasible)
        return {name: torch.cat(result.accuracies) for name, result in zip(feasible, results, strict=True)}

    results, seconds = [], dict[str, float]()
    for name, predictor, (images, _) in zip(names, predictors, sets, strict=True):
        start = time.perf_counter()
        embeddings = predictor.embed(images.pixels)
        results.append((name, accuracies(predictor.model.head, embeddings)))
        seconds[name] = time.perf_counter() - start
        if len(results) == 1:
            results += [(baseline, accuracies(BASELINES[baseline], embeddings)) for baseline in baselines]
    reference = results[0][1]
    return FewShotComparison(
        split=split,
        classes=len(classes.names),
        episodes=config.episodes,
        results=tuple(
            (name, {s: PairedAccuracy.from_episodes(by_setting[s], reference[s]) for s in feasible})
            for name, by_setting in results
        ),
        query=None if query == config.query else query,
        skipped_settings=tuple(name for name in config.settings if name not in feasible),
        seconds=seconds,
    )


def _evaluation_sets(
    predictors: Sequence[FewShotPredictor], names: Sequence[str], data: str | None, progress: Progress | None
) -> list[tuple[ImageSet, str]]:
    """The evaluation images of each run, at its image size; all must have the same classes and images."""
    cache: dict[object, tuple[ImageSet, str]] = {}
    sets = []
    for name, predictor in zip(names, predictors, strict=True):
        c = predictor.config
        key = (c.data, c.seed, c.model.image_size, c.model.channels)
        cache[key] = cache.get(key) or predictor.evaluation_split(data, progress)
        sets.append(cache[key])
        first, images = sets[0][0], sets[-1][0]
        rule = "runs must have the same evaluation classes to be compared"
        for a, b, a_name, b_name in ((first, images, names[0], name), (images, first, name, names[0])):
            if missing := sorted(set(a.classes) - set(b.classes)):
                raise SightlineError(f"{rule}, got {missing[0]!r} in those of {a_name} but not of {b_name}")
        is_same = first.classes == images.classes and first.labels.equal(images.labels)
        check(is_same, f"{rule}, with the same images, got others for {name} than for {names[0]}")
    return sets


def compare_precision(
    before: FewShotPredictor, after: FewShotPredictor, data: str | None, progress: Progress | None = None
) -> str:
    """Compare the accuracy of a model before and after its conversion to half precision; returns a sentence.

    Raises SightlineError if the accuracies differ by more than `PRECISION_TOLERANCE`.
    """
    config = before.config.evaluation
    name, setting = config.settings[0], Setting.parse(config.settings[0])
    images, split = before.evaluation_split(data, progress)
    per_class = max(PRECISION_IMAGES, setting.shot + config.query)
    indices = episode_classes(images).indices[:, :per_class].flatten()
    images = images.take(indices[indices >= 0])
    classes = episode_classes(images)
    setting.check(classes, config.query)

    def accuracy(predictor: FewShotPredictor) -> float:
        embeddings = predictor.embed(images.pixels, progress)
        options: dict[str, Any] = {"query": config.query, "episodes": PRECISION_EPISODES, "with_unknown": False}
        return evaluate_episodes(predictor.model.head, embeddings, classes, setting, **options).interval()[0]

    old, new = accuracy(before), accuracy(after)
    rule = f"accuracy must change by at most {PRECISION_TOLERANCE} in half precision"
    check(abs(new - old) <= PRECISION_TOLERANCE, f"{rule}, got {old:.4f} before and {new:.4f} after")
    return f"{name} {old:.2%} before and {new:.2%} after, over {PRECISION_EPISODES} episodes of the {split} set"


def _interval(center: float, margin: float) -> list[float]:
    return [center - margin, center + margin]
