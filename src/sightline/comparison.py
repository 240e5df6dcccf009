"""Few-shot models side by side: the same episodes for all, and how far each is from the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from . import limits
from .data.images.loading import ImageSet, Progress
from .errors import SightlineError, check_int, check_max, one_of
from .models.baselines import BASELINES
from .names import printable
from .runs import check_run, load, reading
from .tasks.few_shot.evaluate import Answers, Setting, drawable, mean_and_half, tally
from .tasks.few_shot.predictor import FewShotPredictor
from .tasks.few_shot.task import classes_of
from .training.device import choose_device


@dataclass(frozen=True)
class Standing:
    """How one does at one way and shot."""

    accuracy: float
    half: float
    """Of the 95% interval over episodes."""
    difference: float
    """To the first, episode by episode."""
    difference_half: float

    @classmethod
    def of(cls, shares: Tensor, first: Tensor) -> "Standing":
        """From the share that was right in each episode, and the first one's."""
        return cls(*mean_and_half(shares), *mean_and_half(shares - first))

    def __str__(self) -> str:
        return f"{self.accuracy:.2%} ± {self.half:.2%}"

    @property
    def beside(self) -> str:
        """The difference to the first, in percentage points."""
        return f"{100 * self.difference:+.2f} ± {100 * self.difference_half:.2f}"


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to: for each name, how it does at each setting."""

    split: str
    classes: int
    episodes: int
    """Of each setting."""
    standings: tuple[tuple[str, dict[str, Standing]], ...]
    """The first is what the others are held against."""
    query: int | None = None
    """Images asked of each class, where there were not as many as the first run asks."""
    left_out: tuple[str, ...] = ()
    """Settings that want more classes or images than there are, or groups."""

    @property
    def title(self) -> str:
        """Over what it was made."""
        fewer = "" if self.query is None else f", {self.query} images asked of each class"
        fewer += f", too few classes or images for {', '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{self.split} set, {self.classes:,} classes, the same {self.episodes:,} episodes of each setting for "
            f"all{fewer}; "
            f"accuracy with its 95% interval, and the paired difference to the first in percentage points with its own"
        )

    def lines(self) -> list[str]:
        """For a terminal."""
        rows = self._rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        aligned = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return [self.title, *(line.rstrip() for line in aligned)]

    def markdown(self) -> str:
        """A table for a page or a README."""
        head, *body = [[cell.replace("|", "\\|") for cell in row] for row in self._rows()]
        rows = [head, ["---"] * len(head), *body]
        return f"{self.title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def _rows(self) -> list[list[str]]:
        head = [cell for setting in self.standings[0][1] for cell in (setting, "difference")]
        rows = [["", *head]]
        for place, (name, found) in enumerate(self.standings):
            cells = [cell for one in found.values() for cell in (str(one), one.beside if place else "")]
            rows.append([printable(name), *cells])
        return rows


def compare(
    runs: Sequence[str | Path],
    *,
    data: str | None = None,
    baselines: Sequence[str] = (),
    settings: Sequence[str] | None = None,
    episodes: int | None = None,
    device: str = "auto",
) -> Comparison:
    """Judge few-shot runs on the same episodes; baselines are judged on the embeddings of the first.

    Settings such as `5w1s` and the number of episodes are those of the first run's recipe where they are not given.
    Runs are judged on the test classes of their data, or of other `data`: all of it where it brings no test part.
    """
    if not runs:
        raise SightlineError("runs must name at least one run, got none")
    for name in baselines:
        if name not in BASELINES:
            raise SightlineError(f"a baseline must be {one_of(name, BASELINES)}")
    opened = [_opened(run) for run in runs]
    judged = opened[0].recipe.evaluation
    wanted = {name: Setting.of(name) for name in settings or judged.settings}
    asked = tuple(wanted)
    count = judged.episodes if episodes is None else episodes
    check_int(1, episodes=count)
    check_max(limits.MAX_EPISODES, episodes=count)
    with reading() as progress:
        sets = _sets(runs, opened, data, progress)
    images, split = sets[0]
    classes = classes_of(images)
    query = judged.query
    if data is not None:
        possible, query = drawable(wanted, classes, judged.query)
        wanted = {name: wanted[name] for name in possible}
    for setting in wanted.values():
        setting.check(classes, query)

    def shares(answer: Answers, embeddings: Tensor) -> dict[str, Tensor]:
        found = {}
        for name, setting in wanted.items():
            how = setting._asdict() | {"query": query, "episodes": count}
            seen = tally(answer, embeddings, classes, **how, unknown=False)  # nobody sees a stranger among the queries
            found[name] = torch.cat(seen.accuracies)
        return found

    place, right = choose_device(device), []
    for name, predictor, (images, _) in zip(_names(runs), opened, sets, strict=True):
        embeddings = predictor.to(place).embedded(images)
        right.append((name, shares(predictor.model.head, embeddings)))
        if len(right) == 1:
            right += [(baseline, shares(BASELINES[baseline], embeddings)) for baseline in baselines]
    first = right[0][1]
    standings = tuple((name, {s: Standing.of(own[s], first[s]) for s in wanted}) for name, own in right)
    left_out = tuple(name for name in asked if name not in wanted)
    return Comparison(split, len(classes.names), count, standings, None if query == judged.query else query, left_out)


def _opened(run: str | Path) -> FewShotPredictor:
    check_run(run, "compare the runs that classifiers began with")
    predictor = load(run)
    if not isinstance(predictor, FewShotPredictor):
        raise SightlineError(
            f"a run to compare must be of task few_shot, got {str(run)!r} of task {predictor.recipe.task}"
        )
    return predictor


def _names(runs: Sequence[str | Path]) -> list[str]:
    """The last part of each path, or all of it where two would be called the same."""
    short = [Path(run).resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def _sets(
    runs: Sequence[str | Path], opened: Sequence[FewShotPredictor], data: str | None, progress: Progress
) -> list[tuple[ImageSet, str]]:
    """What each is judged on, at its own size: the same classes and the same images of each, or it is refused."""
    kept: dict[object, tuple[ImageSet, str]] = {}
    sets = []
    for run, predictor in zip(runs, opened, strict=True):
        r = predictor.recipe
        key = (r.data, r.seed, r.model.image_size, r.model.channels)
        kept[key] = kept.get(key) or predictor.evaluation_split(data, progress)
        sets.append(kept[key])
        ours, theirs = sets[0][0], sets[-1][0]
        rule = "runs must be judged on the same classes to be compared"
        for one, other, here, there in ((ours, theirs, runs[0], run), (theirs, ours, run, runs[0])):
            if missing := sorted(set(one.classes) - set(other.classes)):
                raise SightlineError(f"{rule}, got {missing[0]!r} in those of {here} but not of {there}")
        if ours.classes != theirs.classes or not ours.labels.equal(theirs.labels):
            raise SightlineError(f"{rule}, with the same images, got others for {run} than for {runs[0]}")
    return sets
