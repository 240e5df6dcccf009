"""Hooks: extend the training loop without changing it."""

from pathlib import Path
from typing import Any, Protocol

from torch import nn


class TrainerState(Protocol):
    """What a hook sees of the trainer."""

    model: nn.Module
    folder: Path
    """Folder of the run."""
    step: int
    """Number of finished steps."""
    total_steps: int

    def request_stop(self, reason: str) -> None:
        """Stop after the current step. A checkpoint is saved and the run is finished; it can be resumed."""
        ...


class Hook:
    """Base class of hooks; every method does nothing by default. Hooks run on the main process alone."""

    def on_start(self, trainer: TrainerState) -> None:
        """Called before the first step, after a checkpoint was restored."""

    def on_step(self, trainer: TrainerState) -> None:
        """Called after every optimizer step."""

    def on_log(self, trainer: TrainerState, values: dict[str, Any]) -> None:
        """Called every `log_every` steps with the mean loss since the last call, the epoch, the learning rate and the
        speed."""

    def on_evaluate(self, trainer: TrainerState, metrics: dict[str, float], is_best: bool) -> None:
        """Called with the validation metrics; `is_best` if the weights were kept as the best so far."""

    def on_average(self, trainer: TrainerState, metrics: dict[str, float], is_best: bool) -> None:
        """Called at the end with the validation metrics of averaged checkpoints; `is_best` if they were kept."""

    def on_checkpoint(self, trainer: TrainerState, path: Path) -> None:
        """Called after a checkpoint was written to `path`."""

    def on_message(self, trainer: TrainerState, message: str) -> None:
        """Called with a message for the user."""

    def on_end(self, trainer: TrainerState) -> None:
        """Called at the end, also after an error."""
