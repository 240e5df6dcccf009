"""Run a search: create the study, start the workers, show the progress, write the results."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import config, files, limits, registry, runs
from ..errors import SightlineError, check, check_int, check_max
from ..run_config import build_config, change_values, read_values
from .plan import Plan
from .pool import WorkerPool
from .progress import Progress, duration
from .results import MIN_TRIALS, Results
from .server import start_server
from .space import Accept, read_space
from .study import Study
from .trial import remove_runs
from .worker import run_worker

SECONDS_BETWEEN_FILES = 10


@dataclass(frozen=True)
class Usage:
    """The time of the workers of this command."""

    workers: int
    seconds: float
    """Sum over all workers, from their start to their end."""
    seconds_in_trials: float

    def __str__(self) -> str:
        outside = 1 - self.seconds_in_trials / self.seconds if self.seconds else 0.0
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        return f"{duration(self.seconds / self.workers)} on {workers}, {outside:.1%} of it outside trials"


@dataclass(frozen=True)
class FinishedSearch:
    """A search whose trials have all ended, or whose time is over."""

    folder: Path
    results: Results
    usage: Usage
    best_run: Any = None
    """The run of the best settings, if it was trained."""
    trials: int | None = None
    """The number of trials that the search was to have."""
    is_timed_out: bool = False
    """Whether trials were not started because of the timeout."""

    @property
    def notes(self) -> list[str]:
        """Sentences about what the search lacks."""
        notes, complete = [], len(self.results.complete)
        if complete < MIN_TRIALS and self.results.counts["pruned"]:
            rule = f"sightline search-report needs {MIN_TRIALS} complete trials to say what mattered, got {complete}"
            notes.append(f"{rule}; --pruner none gives more")
        if self.is_timed_out:
            notes.append("the timeout ended the search; the same command continues it")
        return notes

    def __str__(self) -> str:
        return f"{self.folder}: {self.results.summary(self.trials)}\n{self.usage}"


def search(
    source: Any,
    space: str | Path | Mapping[str, Any],
    changes: Iterable[str] = (),
    *,
    trials: int = 50,
    workers: int = 1,
    storage: str = "",
    sampler: str = "tpe",
    pruner: str | None = None,
    minimize: str | None = None,
    in_trials: Iterable[str] = (),
    seed: int = 0,
    out: str | Path | None = None,
    timeout: float | None = None,
    train_best: bool = False,
    quiet: bool = False,
    command: str = "",
) -> FinishedSearch:
    """Search the settings of a config; a search that was interrupted goes on.

    `source` and `changes` are a config as in `sightline.train`. `space` is a YAML file or a mapping. `storage` is the
    URL of a database or the path of a journal that several machines share. `pruner` is `halving` or `none` (default:
    halving, with a second objective none). `minimize` is a second objective, `parameters` or `latency`. `in_trials`
    are `key=value` that hold in trials only. After `timeout` seconds no further trial is started. `train_best` trains
    the best settings without `in_trials`.
    """
    deadline = _deadline(timeout)
    check_int(1, workers=workers)
    check_max(limits.MAX_SEARCH_WORKERS, workers=workers)
    if workers > 1:
        start_server()
    options: dict[str, Any] = {"trials": trials, "storage": storage, "sampler": sampler, "minimize": minimize}
    options |= {"pruner": pruner or ("halving" if minimize is None else "none"), "seed": seed}
    plan = _plan(source, space, changes, in_trials, out, **options)
    with plan.open_study(create=True) as study, Progress(plan.trials, deadline, quiet=quiet) as progress:
        monitor = _Monitor(plan, study, progress)
        monitor.update()
        try:
            usage = _run(plan, workers, study, monitor, deadline)
        except (SightlineError, KeyboardInterrupt) as error:
            monitor.stop(error)
            raise
        results = monitor.update(write=True)
        remove_runs(plan, study)
    results.write_best(plan)
    best_run = _train_best(plan, results, command=command, quiet=quiet) if train_best else None
    is_timed_out = deadline < math.inf and len(results.trials) < plan.trials
    return FinishedSearch(plan.folder, results, usage, best_run, plan.trials, is_timed_out)


def _plan(
    source: Any,
    space: str | Path | Mapping[str, Any],
    changes: Iterable[str],
    in_trials: Iterable[str],
    out: str | Path | None,
    **options: Any,
) -> Plan:
    """The plan of a search, checked; a grid has no more trials than it has points."""
    changes, short = list(changes), config.parse_changes(in_trials)
    values, name = read_values(source, changes)
    build_config(values)
    folder, trial_values = Path(out or Path("searches") / name), change_values(values, short)
    found = read_space(space, trial_values, partial(_read_data, trial_values))
    for where, given in (("among the changes of the config", config.parse_changes(changes)), ("in --in-trials", short)):
        for setting in found.settings:
            is_given = setting.key in given and not setting.condition
            check(not is_given, f"{setting.key} must be in the space or {where}, got both; leave one out")
    plan = Plan(
        values=values,
        space=found,
        name=folder.resolve().name if options["storage"] else "search",
        folder=folder,
        in_trials=short,
        **options,
    )
    if plan.sampler == "grid":
        plan = plan.with_trials(min(plan.trials, len(plan.space.grid())))
    check(folder.is_dir() or not folder.exists(), f"out must be a folder, got {str(folder)!r}, which is a file")
    return plan


def _read_data(values: Mapping[str, Any]) -> Accept:
    """Read the data of a config; the result checks whether other configs fit them."""
    task_config = build_config(values)
    task = registry.task_spec(task_config.task).task
    data = task.load_data(task_config)
    return lambda other: task.complete_config(other, data)


def _deadline(timeout: float | None) -> float:
    if timeout is None:
        return math.inf
    check(timeout > 0, f"timeout must be a positive number of seconds, got {timeout}")
    return time.time() + timeout


class _Monitor:
    """Reads the study, shows it and writes it to files."""

    def __init__(self, plan: Plan, study: Study, progress: Progress):
        self.plan, self.study, self.progress = plan, study, progress
        self._written = time.monotonic()

    def update(self, *, write: bool = False) -> Results:
        results = Results.of(self.study)
        self.progress.update(results)
        if write or (results.trials and time.monotonic() - self._written > SECONDS_BETWEEN_FILES):
            results.write(self.plan.folder)
            self._written = time.monotonic()
        return results

    def stop(self, error: BaseException) -> None:
        """Write the results so far, if there are any."""
        if isinstance(error, SightlineError) and not self.study.trials():
            return
        results = self.update(write=True)
        results.write_best(self.plan)
        if isinstance(error, KeyboardInterrupt):
            self.progress.message(results.summary(self.plan.trials))
            self.progress.message("stopped; the same command continues the search")


def _run(plan: Plan, workers: int, study: Study, monitor: _Monitor, deadline: float) -> Usage:
    """Run the trials in this process, or in several others."""
    if workers == 1:
        started = time.monotonic()
        seconds_in_trials = run_worker(plan, deadline=deadline, on_change=monitor.update)
        return Usage(1, time.monotonic() - started, seconds_in_trials)
    pool = WorkerPool(plan, workers, study, deadline)
    pool.run(lambda: monitor.update().finished)
    return Usage(workers, pool.seconds, pool.seconds_in_trials)


def _train_best(plan: Plan, results: Results, *, command: str, quiet: bool) -> Any:
    """Train the best settings as an ordinary run, or finish it."""
    check(results.best is not None, "a search must have a complete trial to train its best settings, got none")
    assert results.best is not None
    folder = plan.folder / f"best-{results.best['trial']}"
    best_config = plan.best_config(results.best["settings"])
    values = config.assign(config.plain(best_config), {"out": str(folder)})
    is_started = any((folder / name).exists() for name in (files.CONFIG, files.CHECKPOINTS))
    return runs.train(values, resume=is_started, quiet=quiet, command=command)
