"""One trial: a model is trained with the settings of the trial, and pruned at an evaluation."""

import gc
import json
import math
import shutil
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import optuna
import torch
from optuna.exceptions import UpdateFinishedTrialError

from .. import config, runs
from ..errors import MissingDependencyError, SightlineError, check
from ..run_config import build_config, change_values
from ..training.hooks import Hook, TrainerState
from ..training.losses import DivergedError
from ..training.task import BatchSlice
from .plan import Plan
from .space import changes_data
from .study import Claim, Outcome, Study, state_of

TRIALS = "trials"
"""Folder of the runs of trials. A trial removes its run when it ends."""
MAX_CURVE_POINTS = 200
MAX_MESSAGE_CHARS = 500
LATENCY_REPEATS = 5
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class TrialRunner:
    """Runs trials in this process. The data are read once, unless the space has keys of the data."""

    def __init__(self, plan: Plan, device: str | None = None, on_change: Callable[[], object] = lambda: None):
        """`on_change` is called after every evaluation."""
        self.plan, self.device, self.on_change = plan, device, on_change
        self._data: tuple[str, Any] = ("", None)

    def check_space(self) -> None:
        """The configs of the space must suit the data. Keys of the data in the space are not checked."""
        if changes_data(setting.key for setting in self.plan.space.settings):
            return
        data, task = self._load(self.plan.config), self.plan.task
        values = change_values(self.plan.values, self.plan.in_trials)
        self.plan.space.check(values, lambda task_config: task.complete_config(task_config, data))
        if task.unit == "tokens":  # the smallest batch must hold the longest sentence
            configs = (build_config(change_values(values, settings)) for settings in self.plan.space.samples())
            smallest = min(configs, key=lambda task_config: task_config.training.batch_size)
            task(smallest, data).steps_per_epoch(smallest.training.batch_size)

    def __call__(self, claim: Claim) -> Outcome:
        """Train the model of a trial."""
        plan, hook = self.plan, TrialHook(claim.trial, self.on_change, can_prune=len(self.plan.objectives) == 1)
        folder = plan.folder / TRIALS / str(claim.trial.number)
        try:
            settings = plan.space.suggest(claim.trial)
            task_config = plan.trial_config(settings, folder, self.device)
            run = runs.train(task_config, data=self._load(task_config), hooks=[hook], quiet=True)
            return Outcome("complete", self._values(run.metrics, hook), hook.result())
        except optuna.TrialPruned:
            return Outcome("pruned", result=hook.result())
        except DivergedError as error:
            return _failed("diverged", str(error).split(";")[0], hook, informs_sampler=True)
        except (MissingDependencyError, UpdateFinishedTrialError, OSError):
            raise
        except SightlineError as error:
            return _failed("error", str(error), hook)
        except Exception as error:  # one trial must not end the search
            if isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY):
                return _failed("memory", str(error).split(".")[0] or "out of memory", hook, informs_sampler=True)
            return _failed("error", "".join(traceback.format_exception(error)), hook)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()
            if torch.cuda.is_initialized():
                gc.collect()
                torch.cuda.empty_cache()

    def _values(self, metrics: dict[str, float], hook: "TrialHook") -> list[float]:
        """The value of each objective."""
        monitor = self.plan.objectives[0].name
        check(monitor in metrics, f"data must have a validation set for a search, got no {monitor}")
        if not math.isfinite(metrics[monitor]):
            raise DivergedError(f"{monitor} must be finite, got {metrics[monitor]}")
        measures: dict[str, Any] = {**metrics, "parameters": hook.parameters, "latency": hook.latency}
        return [measures[objective.name] for objective in self.plan.objectives]

    def _load(self, task_config: Any) -> Any:
        key = json.dumps([config.plain(task_config.data), task_config.seed], sort_keys=True)
        if self._data[0] != key:
            self._data = ("", None)  # free the memory of other data
            self._data = (key, self.plan.task.load_data(task_config))
        return self._data[1]


def remove_runs(plan: Plan, study: Study) -> None:
    """Remove the runs that killed trials left in the folder of a search."""
    running = {str(trial.number) for trial in study.trials().values() if state_of(trial) == "running"}
    for folder in (plan.folder / TRIALS).glob("*"):
        if folder.name.isdecimal() and folder.name not in running:
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        (plan.folder / TRIALS).rmdir()


class TrialHook(Hook):
    """Reports evaluations to Optuna and raises `TrialPruned` where it prunes the trial."""

    def __init__(self, trial: optuna.Trial, on_change: Callable[[], object], *, can_prune: bool):
        self.trial, self.on_change, self.can_prune = trial, on_change, can_prune
        self.parameters = 0
        self.latency: float | None = None
        self.curve: list[tuple[int, float, float]] = []
        """Step, seconds and monitored value of each evaluation."""
        self._started = time.perf_counter()

    def on_start(self, trainer: TrainerState) -> None:
        self.parameters = sum(parameter.numel() for parameter in trainer.task.model.parameters())
        self._started = time.perf_counter()

    def on_evaluate(self, trainer: TrainerState, metrics: dict[str, float], is_best: bool) -> None:
        value = metrics[trainer.task.monitor]
        self.curve.append((trainer.step, round(time.perf_counter() - self._started, 3), value))
        if not self.can_prune:
            return
        self.trial.report(value, len(self.curve))
        self.on_change()
        if trainer.step < trainer.total_steps and self.trial.should_prune():
            raise optuna.TrialPruned

    def on_finish(self, trainer: TrainerState, metrics: dict[str, float], stop_reason: str | None) -> None:
        if not self.can_prune:
            self.latency = measure_latency(trainer.task)

    def result(self) -> dict[str, Any]:
        """What is stored of the trial."""
        step = -(-len(self.curve) // MAX_CURVE_POINTS) or 1
        curve = self.curve[::-1][::step][::-1]  # with the last point
        seconds = round(time.perf_counter() - self._started, 3)
        return {"parameters": self.parameters, "seconds": seconds, "latency": self.latency, "curve": curve}


@torch.no_grad()
def measure_latency(task: Any) -> float:
    """Milliseconds per example of a forward pass with a training batch: the median of a few passes."""
    size, model = task.config.training.batch_size, task.model.eval()
    with closing(task.batches(0, size, BatchSlice())) as batches:
        [batch] = next(batches)
    seconds = []
    for _ in range(1 + LATENCY_REPEATS):
        _synchronize()
        started = time.perf_counter()
        task.loss(model, batch)
        _synchronize()
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds[1:]) / size


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _failed(kind: str, message: str, hook: TrialHook, *, informs_sampler: bool = False) -> Outcome:
    result = {**hook.result(), "failure": kind, "message": message[-MAX_MESSAGE_CHARS:]}
    return Outcome("failed", result=result, informs_sampler=informs_sampler)
