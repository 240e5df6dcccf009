"""The result of training."""

from dataclasses import dataclass
from pathlib import Path

from .distributed import is_main_process


@dataclass(frozen=True)
class Run:
    """A finished training run."""

    folder: Path
    metrics: dict[str, float]
    """Validation metrics of the final weights; empty without a validation set."""
    steps: int
    seconds: float
    """Duration of training, with the time before a resume."""
    stop_reason: str | None = None
    """Why training stopped before the last step; None if it did not."""
    calibration: str = ""
    """Whether the confidence was calibrated; empty for a task that does not."""

    @property
    def is_main(self) -> bool:
        """Whether this process is the main one of those that trained."""
        return is_main_process()

    def __str__(self) -> str:
        stopped = f" (stopped: {self.stop_reason})" if self.stop_reason else ""
        return f"{self.folder}: {self.steps:,} steps{stopped}, validation {self.validation() or 'set is empty'}"

    def validation(self) -> str:
        """The validation metrics as text; empty without a validation set."""
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"{metrics} ({self.calibration})" if metrics and self.calibration else metrics
