"""A task without training, for tests of searches: the validation accuracy is a function of the config and the step."""

import itertools
import math
import os
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import nn

from sightline import registry
from sightline.config import Config, at_least
from sightline.errors import check, check_divides
from sightline.training.config import DataConfig, TaskConfig, TrainingConfig
from sightline.training.task import Task

SPACE = {
    "model.size": {"min": 1, "max": 6},
    "model.kind": ["plain", "wide"],
    "model.rate": {"min": 1e-3, "max": 1.0, "log": True},
    "model.width": {"choices": [2, 4], "if": {"model.kind": "wide"}},
}


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    size: Annotated[int, at_least(1)] = 2
    kind: Literal["plain", "wide"] = "plain"
    rate: float = 0.1
    width: int = 2
    shape: tuple[int, ...] = (1,)
    error: Literal["none", "diverge", "memory", "bug", "kill"] = "none"

    def __post_init__(self):
        super().__post_init__()
        check_divides("width", 4, width=self.width)


@dataclass(frozen=True, kw_only=True)
class ToyData(DataConfig):
    source: str = "toy"
    max_size: int = 100


@dataclass(frozen=True, kw_only=True)
class ToyTaskConfig(TaskConfig):
    task: Literal["toy_search"] = "toy_search"
    data: ToyData = field(default_factory=ToyData)
    model: ToyConfig = field(default_factory=ToyConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=4, batch_size=1, evaluate_every=1, device="cpu")
    )

    @classmethod
    def starter(cls):
        return cls()


class ToyTask(Task):
    """`loads` counts how often the data is read; `trained` has the model config of every task."""

    monitor, higher_is_better = "accuracy", True
    loads = 0
    trained: list = []  # noqa: RUF012

    def __init__(self, config, data, progress=None):
        self.config, self.model = self.complete_config(config, data), nn.Linear(1, config.model.size)
        self.data_fingerprint, self.step = {}, 0
        self.trained.append(config.model)

    @staticmethod
    def load_data(config, progress=None):
        ToyTask.loads += 1
        return config.data.max_size

    @staticmethod
    def complete_config(config, data):
        check(config.model.size <= data, f"model.size must be at most {data}, as in the data, got {config.model.size}")
        return config

    def steps_per_epoch(self, batch_size):
        return 4

    def batches(self, first_step, batch_size, batch_slice):
        return ([step] for step in itertools.count(first_step))

    def loss(self, model, step):
        error = self.config.model.error
        if error == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if error == "bug":
            raise TypeError("a bug")
        if error == "kill":
            os.kill(os.getpid(), 9)
        return model(torch.ones(1, 1)).square().mean() * (math.nan if error == "diverge" else 1.0)

    def evaluate(self, model, batch_slice):
        self.step += 1
        return {"accuracy": torch.tensor(score(self.config.model, self.step))}

    def metrics(self, sums):
        return {name: float(value) for name, value in sums.items()}


def score(model, step=4):
    """The accuracy of a model config: best with size 4, rate 0.1 and a width of 4."""
    loss = 0.02 * abs(model.size - 4) + 0.1 * abs(math.log10(model.rate) + 1) + 0.05 * (model.kind == "plain")
    return round(0.9 - loss - 0.1 / step + 0.01 * (model.width == 4), 6)


SPEC = registry.TaskSpec("toy_search", ToyTaskConfig, ToyTask, None)


def register():
    """Add the task in this process."""
    registry.TASKS[SPEC.name] = SPEC


def worker_process(*arguments):
    """The main function of a worker process that knows the task."""
    from sightline.search.pool import worker_process

    register()
    worker_process(*arguments)


def signal_in_trial(count, number):
    """Send this process a signal in a trial, counted from 1 in this process."""
    register()
    loss = ToyTask.loss

    def signaling(*arguments):
        if len(ToyTask.trained) == count:
            os.kill(os.getpid(), number)
        return loss(*arguments)

    ToyTask.loss = signaling
