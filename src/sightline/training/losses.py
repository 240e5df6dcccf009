"""The training loss: summed over the steps between two logs and over all processes, and checked to be finite."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import SightlineError
from ..files import resume_command
from .distributed import ProcessGroup, local_tensors


class DivergedError(SightlineError):
    """The loss or a weight is not finite."""


class LossSum:
    """The sum of the losses since the last log. Reading it raises `DivergedError` if it is not finite."""

    def __init__(self, group: ProcessGroup, folder: Path, learning_rate: float):
        """`folder` and `learning_rate` are those of the run, for messages."""
        self._group, self._folder, self._learning_rate = group, folder, learning_rate
        self._sum = torch.zeros((), dtype=torch.float64, device=group.device)
        """Of the losses of this process."""
        self._logged_step = 0
        """The last step of the losses that were logged."""

    def add(self, loss: Tensor) -> None:
        """Add this process's share of the mean loss of a step."""
        self._sum += loss

    def restore(self, total: float, step: int, log_every: int) -> None:
        """Continue from the sum that `total` returned after a step."""
        self._sum.fill_(total if self._group.is_main else 0.0)
        is_logged = total == 0  # also at the last step, which an extended run continues from
        self._logged_step = step if is_logged else step - step % log_every

    def take_mean(self, step: int) -> float:
        """Return the mean loss since the last log and start a new sum."""
        mean = self._finite_sum(self._sum, step) / (step - self._logged_step)
        self._sum.zero_()
        self._logged_step = step
        return mean

    def total(self, step: int, model: nn.Module) -> float:
        """Return the sum over all processes; it and the weights of the model must be finite."""
        weights = [tensor for tensor in local_tensors([*model.parameters()]) if tensor.numel()]
        return self._finite_sum(self._sum + 0 * torch.stack(torch._foreach_norm(weights, math.inf)).sum(), step)

    def _finite_sum(self, losses: Tensor, step: int) -> float:
        total = float(self._group.sum({"loss": losses.clone()})["loss"])
        if not math.isfinite(total):
            command = f"{resume_command(self._folder)} training.learning_rate={self._learning_rate / 3:.2g}"
            fix = f"checkpoints are intact: continue with a lower learning rate: {command}"
            raise DivergedError(f"loss must be finite, got {total} at step {step}; {fix}")
        return total
