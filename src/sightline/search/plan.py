"""The plan of a search: everything that a worker process needs to know."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import config, limits, registry
from ..errors import check, check_choice, check_int, check_max
from ..output import flatten
from ..run_config import build_config, change_values, without_later_keys
from .space import Settings, Space
from .study import PRUNERS, SAMPLERS, Direction, Study

MEASURES = {"parameters": "parameters", "latency": "ms per example"}
"""What can be minimized besides the metric, and its unit."""
MACHINE_KEYS = ("out", "data.cache_mib", "data.num_workers", "training.device", "training.tensorboard")
"""Keys that may differ between the machines of a search."""

NEVER = 2**40
"""Steps between two checkpoints."""


@dataclass(frozen=True)
class Objective:
    """A number that a search maximizes or minimizes."""

    name: str
    maximize: bool

    @property
    def direction(self) -> Direction:
        """The direction as Optuna names it."""
        return "maximize" if self.maximize else "minimize"


@dataclass(frozen=True)
class Plan:
    """A config, a space, and how to search it."""

    values: Mapping[str, Any]
    """The config."""
    space: Space
    name: str
    folder: Path
    trials: int = 50
    storage: str = ""
    """URL of a database or path of a journal; empty for the journal in the folder."""
    sampler: str = "tpe"
    pruner: str = "halving"
    minimize: str | None = None
    """A second objective, one of `MEASURES`."""
    in_trials: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the config that hold in trials only."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_int(1, trials=self.trials)
        check_max(limits.MAX_SEARCH_TRIALS, trials=self.trials)
        check_int(0, seed=self.seed)
        check_choice("sampler", self.sampler, SAMPLERS)
        check_choice("pruner", self.pruner, PRUNERS)
        if self.minimize is not None:
            check_choice("minimize", self.minimize, MEASURES)
            check(self.pruner == "none", "pruner must be none with two objectives, got 'halving'")

    @property
    def task(self) -> Any:
        """The class of the task."""
        return registry.task_spec(self.config.task).task

    @cached_property
    def config(self) -> Any:
        """The config of trials, without settings."""
        return build_config(change_values(self.values, self.in_trials))

    @cached_property
    def objectives(self) -> list[Objective]:
        """The metric that the task monitors, and what is minimized besides."""
        metric = Objective(self.task.monitor, self.task.higher_is_better)
        return [metric] if self.minimize is None else [metric, Objective(self.minimize, maximize=False)]

    def with_trials(self, trials: int) -> "Plan":
        """The plan with another number of trials."""
        return replace(self, trials=trials)

    def trial_config(self, settings: Settings, folder: Path, device: str | None = None) -> Any:
        """The config of a trial with these settings, whose run is written to a folder."""
        trial = build_config(change_values(self.values, {**self.in_trials, **settings}))
        training = replace(trial.training, device=device or trial.training.device)
        if not training.average_checkpoints:  # a trial is not resumed
            training = replace(training, checkpoint_every=NEVER)
        return replace(trial, out=str(folder), training=training)

    def best_config(self, settings: Settings) -> Any:
        """The config with these settings, to be trained fully."""
        return build_config(change_values(self.values, {**settings, "out": None}))

    def definition(self) -> dict[str, Any]:
        """What must stay the same when the search is continued, by key, as JSON values."""
        values = without_later_keys(flatten(config.plain(self.config)))
        values = {key: value for key, value in values.items() if key not in MACHINE_KEYS}
        definition = {
            "task": self.config.task,
            "objectives": [[objective.name, objective.direction] for objective in self.objectives],
            "space": [setting.to_dict() for setting in self.space.settings],
            "sampler": self.sampler,
            "pruner": self.pruner,
            "seed": self.seed,
            "config": values,
        }
        stored: dict[str, Any] = json.loads(json.dumps(definition))
        return stored

    def open_study(self, *, create: bool = False) -> Study:
        """The study of the search, with its definition if it is created."""
        directions = [objective.direction for objective in self.objectives] if create else None
        study = Study(self.storage, self.name, self.folder, directions)
        study.expected = self.definition()
        if create:
            study.define(study.expected)
        return study
