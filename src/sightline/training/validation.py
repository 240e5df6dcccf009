"""Validation during training: metrics, the best weights so far, and early stopping."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .averaging import ExponentialMovingAverage
from .distributed import ProcessGroup
from .task import BatchSlice, Task


class Validation:
    """Evaluates the weights of a model in training, or their moving average if there is one."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        ema: ExponentialMovingAverage | None,
        group: ProcessGroup,
        batch_slice: BatchSlice,
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        patience: int | None = None,
    ):
        """`patience` is the number of evaluations without improvement after which training ends; None for any."""
        self.task, self.model, self.ema, self.group, self.batch_slice = task, model, ema, group, batch_slice
        self.autocast, self.patience = autocast, patience
        self.best: dict[str, Any] | None = None
        """Step, monitored value, metrics and file of the best weights."""
        self.evaluations_without_improvement = 0

    def weights(self) -> dict[str, Tensor]:
        """Return the moving average of the weights if there is one, else the weights."""
        return dict(self.model.state_dict() if self.ema is None else self.ema.weights)

    def metrics(self, *, averaged: bool = True) -> dict[str, float]:
        """Return the metrics of the moving average, or without `averaged` of the model as it is."""
        applied = self.ema.applied_to(self.model) if averaged and self.ema is not None else nullcontext()
        self.average_running_statistics()
        self.model.eval()
        with applied, torch.no_grad(), self.autocast():
            sums = self.group.sum(self.task.evaluate(self.model, self.batch_slice))
            self.group.reshard(self.model)
        self.model.train()
        return self.task.metrics(sums)

    def average_running_statistics(self) -> None:
        """Average those of the model and of its moving average over all processes."""
        self.group.average_running_statistics(self.model, *([] if self.ema is None else [self.ema.weights]))

    def update(self, step: int, metrics: dict[str, float]) -> dict[str, Any] | None:
        """Compare metrics with the best so far; return the new `best`, or None. Of equal values the later is better."""
        improvement = self.improvement(metrics)
        self.evaluations_without_improvement = 0 if improvement > 0 else self.evaluations_without_improvement + 1
        if not improvement >= 0:  # also NaN
            return None
        self.best = {"step": step, "value": metrics[self.task.monitor], "metrics": metrics}
        return self.best

    def improvement(self, metrics: dict[str, float]) -> float:
        """Return how much better the monitored metric is than the best so far; NaN if it is not finite."""
        value, sign = metrics[self.task.monitor], 1 if self.task.higher_is_better else -1
        best = -math.inf if self.best is None else sign * self.best["value"]
        return sign * value - best if math.isfinite(value) else math.nan

    @property
    def is_out_of_patience(self) -> bool:
        """Whether training ends for lack of improvement."""
        return self.patience is not None and self.evaluations_without_improvement >= self.patience
