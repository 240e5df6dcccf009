"""Runs: a folder each, made by `train`, opened by `load`.

config.yaml          the whole configuration        metrics.jsonl   a line for every look at training
model.safetensors    the weights                    README.md       the model's card
classes.json         what a task needs beside       data.json       what its data held
checkpoints/         to go on from
"""

import dataclasses
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import config, zoo
from . import registry as catalogue
from .errors import SightlineError
from .files import remove_parts
from .hub import CARD, CONFIG, DATA, WEIGHTS, pulled, read_json

EVALUATION, LOG, CLASSIFIER = "evaluation.json", "metrics.jsonl", ".sightline"
FREE = ("out", "data.memory", "data.workers", "training.device", "training.keep", "training.tensorboard")
"""Keys that may differ when a run goes on: they do not change what comes out."""


@dataclass(frozen=True)
class Run:
    """A model that was trained."""

    folder: Path
    metrics: dict[str, float]
    """Of the weights that were kept, on the validation set."""
    steps: int
    seconds: float

    @property
    def leads(self) -> bool:
        """Whether this process speaks for all that trained."""
        from .training.distributed import leads

        return leads()

    def __str__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"{self.folder}: {self.steps:,} steps, validation {metrics or 'not held out'}"


def train(
    recipe: Any = None, changes: Iterable[str] = (), *, resume: bool = False, quiet: bool = False, command: str = ""
) -> Run:
    """Train by a recipe: the path of a YAML file or of a run's folder, a dict of values, or a recipe object.

    Without one, the image classifier learns the embedded glyphs. `changes` are `key=value`. With `resume` the run goes
    on from its newest checkpoint, if it has one.
    """
    from .training import loop
    from .training.checkpoint import write_bytes
    from .training.distributed import leads

    wanted, name = _recipe(recipe, changes)
    entry = catalogue.entry(wanted.task)
    folder = Path(wanted.out or Path("runs") / name)
    _check_folder(folder, resume)

    made: list[Any] = []

    def make() -> Any:
        with _Reading(quiet or not leads()) as progress:
            task = entry.get("task")(wanted, progress=progress)
        made.append(task)
        if resume and (folder / CONFIG).is_file():
            _check_same(folder, _flat(config.plain(task.recipe)))
            _check_data(folder, task.held)
        return task

    def begin(task: Any) -> None:
        if leads():
            own = entry.get("predictor").files(task)
            remove_parts(folder, (CONFIG, WEIGHTS, CARD, DATA, LOG, EVALUATION, *own))
            for file, data in own.items():
                write_bytes(folder / file, data)
            write_bytes(folder / DATA, json.dumps(task.held, indent=1).encode())
            write_bytes(folder / CONFIG, config.dump(task.recipe).encode())

    outcome = loop.train(make, wanted.training, folder, seed=wanted.seed, resume=resume, quiet=quiet, begin=begin)
    done = Run(folder, outcome.metrics, outcome.steps, outcome.seconds)
    if leads():
        done = dataclasses.replace(done, metrics=entry.get("predictor").finish(folder, made[0]) or done.metrics)
        write_bytes(folder / CARD, _card(done, wanted, command).encode())
    return done


def load(run: str | Path) -> Any:
    """The trained model of a run's folder, or one that ships by its name, or by `owner/name` from a model hub, or the
    file of a few-shot classifier, ready to `predict`."""
    folder = zoo.folder(run)
    if folder.suffix == CLASSIFIER and not folder.is_dir():
        from .classifier import FewShotClassifier

        return FewShotClassifier.load(folder)
    if not folder.exists() and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(run)) and not folder.parent.exists():
        folder = pulled(str(run))
    if not folder.is_dir():
        raise SightlineError(f"run must be the folder of a trained model, or {zoo.known(str(run))}")
    if not (folder / CONFIG).is_file():
        raise SightlineError(
            f"run must be the folder of a trained model, got {str(run)!r}, which has no {CONFIG}; to make a classifier "
            f"from images in it: sightline fit {shlex.quote(str(run))}"
        )
    task = config.read(folder / CONFIG).get("task")
    return catalogue.entry(task).get("predictor").open(folder)


def check_run(run: str | Path, fix: str) -> None:
    """Not the file of a few-shot classifier: that has no data to judge by, and no log."""
    path = Path(run).expanduser()
    if path.suffix == CLASSIFIER and path.is_file():
        raise SightlineError(
            f"run must be the folder of a trained model, got {str(run)!r}, a classifier that fit made; {fix}"
        )


def evaluate(
    run: str | Path,
    source: str | None = None,
    device: str = "auto",
    *,
    settings: Sequence[str] = (),
    episodes: int | None = None,
) -> Any:
    """How good a run is on the test set of its data; its card says so from then on. Or on other data: the test set of
    that, or all of it where it brings none.

    A few-shot run is judged at these settings, such as 5w1s, and over so many episodes of each, or as its recipe says.
    """
    from .training.checkpoint import write_bytes
    from .training.device import choose_device

    check_run(
        run,
        f"it knows its examples alone: FewShotClassifier.load({str(run)!r}).estimate() judges it by these, and "
        f"sightline evaluate RUN the model it began with",
    )
    predictor = load(run).to(choose_device(device))
    as_told = bool(settings) or episodes is not None
    if as_told:
        if not hasattr(predictor, "judging"):
            task = predictor.recipe.task
            raise SightlineError(f"settings and episodes must be left out for a run of task {task}, got some")
        predictor.judging(settings, episodes)
    with _Reading(quiet=False) as progress:
        score = predictor.judged(source, progress)
    folder = Path(run).expanduser()
    kept = (folder / CONFIG).is_file()  # one that ships, or from a hub, stays as it came
    if kept and source is None and not as_told:
        write_bytes(folder / EVALUATION, json.dumps(dataclasses.asdict(score), indent=1).encode())
        if (folder / CARD).is_file():
            write_bytes(folder / CARD, _with_score((folder / CARD).read_text(encoding="utf-8"), score).encode())
    return score


def _recipe(recipe: Any, changes: Iterable[str]) -> tuple[Any, str]:
    """The recipe as an object, and a name for it."""
    changes, name = list(changes), "run"
    if dataclasses.is_dataclass(recipe) and not isinstance(recipe, type):
        values = config.plain(recipe)
    elif isinstance(recipe, Mapping):
        values = dict(recipe)
    elif recipe is None:
        values, name = config.plain(_entry(config.change({}, changes)).get("recipe").starter()), ""
    else:
        path = Path(recipe)
        if path.is_dir() and not (path / CONFIG).is_file():
            raise SightlineError(
                f"a recipe must be a YAML file or the folder of a run, got {str(path)!r}, which has no {CONFIG}; "
                f"to learn from images in it: data.source={path}"
            )
        values = config.read(path / CONFIG if path.is_dir() else path)
        name = path.stem
        if path.is_dir():
            values["out"] = str(path)
    values = config.change(values, changes)
    _replace_twins(values, {change.partition("=")[0].strip() for change in changes})
    built = config.build(_entry(values).get("recipe"), values)
    return built, _named_after(built.data.source) if recipe is None else name


def _named_after(source: str) -> str:
    """A run without a recipe has the name of its data."""
    path = Path(source).expanduser().resolve()
    return (path.stem if path.suffix.lower() == ".npz" else path.name) or "run"


def _replace_twins(values: Mapping[str, Any], changed: set[str]) -> None:
    """Epochs told by key=value take the place of steps, and the other way round."""
    training = values.get("training")
    for name, twin in (("epochs", "steps"), ("steps", "epochs")):
        if isinstance(training, dict) and f"training.{name}" in changed and f"training.{twin}" not in changed:
            training[twin] = None


def _entry(values: Mapping[str, Any]) -> catalogue.Entry:
    task = values.get("task", catalogue.DEFAULT)
    return catalogue.entry(task.text if isinstance(task, config.Typed) else task)


def _read(folder: Path) -> Any:
    values = config.read(folder / CONFIG)
    return config.build(catalogue.entry(values.get("task")).get("recipe"), values)


def _check_folder(folder: Path, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise SightlineError(f"out must be a folder, got {str(folder)!r}, which is a file")
    if not resume and any((folder / name).exists() for name in (CONFIG, WEIGHTS, "checkpoints")):
        raise SightlineError(
            f"out must be a new folder, got {str(folder)!r}, which holds a run; "
            f"pass --resume to go on with it, or out=FOLDER for another"
        )
    if resume and (folder / "checkpoints").exists() and not (folder / CONFIG).is_file():
        raise SightlineError(
            f"out must be the folder of a run to go on with, got {str(folder)!r}, which has checkpoints and no {CONFIG}; "
            f"pass out=FOLDER for a new one"
        )


def _check_same(folder: Path, new: dict[str, Any]) -> None:
    """A run goes on with what it began with."""
    old = _flat(config.plain(_read(folder)))
    for key in sorted(old.keys() | new.keys()):
        if key not in FREE and old.get(key) != new.get(key):
            raise SightlineError(
                f"{key} must be {old.get(key)!r}, as {folder} began, to go on with it, got {new.get(key)!r}"
            )


def _check_data(folder: Path, new: Mapping[str, Any]) -> None:
    """And from the same data: their counts and digests, as far as they are known on both sides."""
    if not (folder / DATA).is_file():  # a run of an earlier version
        return
    kept = read_json(folder / DATA)
    old, new = _flat(kept if isinstance(kept, Mapping) else {}), _flat(new)
    for key in sorted(old.keys() & new.keys(), key=lambda key: (key.partition(".")[2] != "images", key)):
        if old[key] != new[key]:
            raise SightlineError(
                f"data.source must hold what it held when {folder} began, to go on with it: {key} must be "
                f"{old[key]!r:.100}, got {new[key]!r:.100}; begin anew with out=FOLDER"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def reading(quiet: bool = False) -> "_Reading":
    """A bar while many files are read; what `with` gives is told how far it is."""
    return _Reading(quiet)


class _Reading:
    """A bar while many files are read."""

    def __init__(self, quiet: bool):
        self.quiet, self.began = quiet, time.perf_counter()
        self.bar: Any = None

    def __enter__(self) -> Any:
        return self._advance

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _advance(self, done: int, count: int) -> None:
        if self.quiet or time.perf_counter() - self.began < 1 or not sys.stderr.isatty():
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.bar.add_task("working")
        self.bar.update(self.bar.task_ids[0], completed=done, total=count)


SCORE = "## Score"


def sources(data: Any) -> str:
    """Where data come from, for a card; more of them are sections with a source, or paths alone."""
    return ", ".join(f"`{getattr(one, 'source', one)}`" for one in (data, *getattr(data, "more", ())))


def _card(run: Run, recipe: Any, command: str) -> str:
    import torch

    from . import __version__

    size = (run.folder / WEIGHTS).stat().st_size
    validation = ", ".join(f"{name} {value:.4f}" for name, value in run.metrics.items()) or "nothing was held out"
    versions = f"sightline {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    command = command or f"sightline.train({str(run.folder / CONFIG)!r}, ['out=ANOTHER_FOLDER'])"
    return f"""---
library_name: sightline
tags: [sightline, {recipe.task}]
---
# {run.folder.name}

Made by Sightline, for the task `{recipe.task}`: `{catalogue.entry(recipe.task).use}`.

## How it was made

    {command}

Data: {sources(recipe.data)}. {run.steps:,} steps, {run.seconds:.0f} s in the last process; {size:,} bytes of weights.
The whole configuration is in `{CONFIG}`, every measurement in `metrics.jsonl`.

{SCORE}

On the validation set: {validation}.

## Versions

{versions}
"""


def _with_score(card: str, score: Any) -> str:
    line = score.sentence()
    before, mark, after = card.partition(SCORE)
    kept = [part for part in after.split("\n\n") if not part.startswith(f"On the {score.split} set")]
    return before + mark + "\n\n".join([kept[0], line, *kept[1:]])


def command_line() -> str:
    """What was typed, to be typed again."""
    from .training.distributed import place

    words = ["sightline", *sys.argv[1:]]
    if (world := place()[1]) > 1:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        words = ["torchrun", "--nnodes", str(world // here), "--nproc-per-node", str(here), "-m", *words]
    return shlex.join(words)
