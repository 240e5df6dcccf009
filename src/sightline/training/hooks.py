"""Hooks: extend the training loop without changing it. Those of every run log to metrics.jsonl and the terminal."""

import json
import time
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from ..errors import MissingDependencyError
from ..files import LOG, named_errors, read_log, write_bytes
from .config import TrainingConfig
from .task import Task

SECONDS_BETWEEN_LINES = 10
"""Minimum time between two lines about the loss, without a terminal."""
AVERAGE = "average"
"""Key of the line with the metrics of averaged checkpoints."""
FINAL = "final"
"""Key of the last line, with the metrics of the final weights."""


class TrainerState(Protocol):
    """What a hook sees of the trainer."""

    task: Task
    folder: Path
    """Folder of the run."""
    step: int
    """Number of finished steps."""
    total_steps: int

    @property
    def evaluations_without_improvement(self) -> int:
        """Evaluations since the one that was better than all before it; 0 right after that."""

    @property
    def seconds(self) -> float:
        """Duration of training so far, with the time before a resume."""

    def request_stop(self, reason: str) -> None:
        """Stop after the current step. A checkpoint is saved and the run is finished; it can be resumed."""


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
        """Called with the validation metrics; `is_best` if the weights were kept as the best so far.

        Of equal values the later one is kept, so `is_best` does not mean that the metric improved.
        """

    def on_average(self, trainer: TrainerState, metrics: dict[str, float], is_best: bool) -> None:
        """Called at the end with the validation metrics of averaged checkpoints; `is_best` if they were kept."""

    def on_finish(self, trainer: TrainerState, metrics: dict[str, float], stop_reason: str | None) -> None:
        """Called with the validation metrics of the final weights, which are written, and why training ended early."""

    def on_checkpoint(self, trainer: TrainerState, path: Path) -> None:
        """Called after a checkpoint was written to `path`."""

    def on_message(self, trainer: TrainerState, message: str) -> None:
        """Called with a message for the user."""

    def on_end(self, trainer: TrainerState) -> None:
        """Called at the end, also after an error."""


def default_hooks(config: TrainingConfig, *, quiet: bool = False) -> list[Hook]:
    """Return the hooks of every run: metrics.jsonl, progress unless `quiet`, TensorBoard if configured."""
    progress = [] if quiet else [TerminalProgress()]
    return [MetricsFile(), *([TensorBoard()] if config.tensorboard else []), *progress]


class _Log(Hook):
    """Base class of hooks whose `on_log` writes metrics, too."""

    def on_evaluate(self, trainer: TrainerState, metrics: dict[str, float], is_best: bool) -> None:
        self.on_log(trainer, {"validation": metrics, "best": is_best})

    def on_average(self, trainer: TrainerState, metrics: dict[str, float], is_best: bool) -> None:
        self.on_log(trainer, {AVERAGE: metrics, "best": is_best})


class MetricsFile(_Log):
    """Append a JSON object per log interval and evaluation to metrics.jsonl."""

    def on_start(self, trainer: TrainerState) -> None:
        """Drop lines of later steps, which an interrupted run left, and damaged lines."""
        lines = read_log(trainer.folder) if trainer.step else []
        kept = [line for line in lines if line["step"] <= trainer.step and not line.keys() & {AVERAGE, FINAL}]
        write_bytes(trainer.folder / LOG, "".join(f"{json.dumps(line)}\n" for line in kept).encode())

    def on_log(self, trainer: TrainerState, values: dict[str, Any]) -> None:
        path = trainer.folder / LOG
        with named_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": trainer.step, **values}) + "\n")

    def on_finish(self, trainer: TrainerState, metrics: dict[str, float], stop_reason: str | None) -> None:
        report = {"stop_reason": stop_reason, "calibration": trainer.task.calibration, "seconds": trainer.seconds}
        self.on_log(trainer, {FINAL: metrics, **report})


class TensorBoard(_Log):
    """Write the values of metrics.jsonl as TensorBoard events."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            message = "training.tensorboard must have TensorBoard installed: pip install 'sightline[logs]'"
            raise MissingDependencyError(message) from error
        self._make_writer: Any = SummaryWriter
        self._writer: Any = None

    def on_start(self, trainer: TrainerState) -> None:
        self._writer = self._make_writer(str(trainer.folder / "events"), purge_step=trainer.step + 1)

    def on_log(self, trainer: TrainerState, values: dict[str, Any]) -> None:
        for name, value in values.items():
            for tag, scalar in value.items() if isinstance(value, dict) else [("", value)]:
                self._writer.add_scalar(f"{name}/{tag}".rstrip("/"), scalar, trainer.step)

    def on_end(self, trainer: TrainerState) -> None:
        if self._writer is not None:
            self._writer.close()


class TerminalProgress(Hook):
    """Show a progress bar in a terminal, and plain lines elsewhere, on standard error."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._best = ""
        self._last_line, self._started, self._first_step = 0.0, time.perf_counter(), 0

    def on_start(self, trainer: TrainerState) -> None:
        self._started, self._first_step = time.perf_counter(), trainer.step
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("left"),
                TextColumn("{task.fields[values]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
                console=self._console,
                expand=True,  # a short line cuts the values
                refresh_per_second=4,
            )
            self._bar.start()
            self._bar.add_task("", total=trainer.total_steps, completed=trainer.step, values="")

    def on_step(self, trainer: TrainerState) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=trainer.step)

    def on_log(self, trainer: TrainerState, values: dict[str, Any]) -> None:
        if self._bar is not None:
            loss, _, others = _format(values).partition("  ")
            best = f"best validation {self._best}  " if self._best else ""
            self._bar.update(self._bar.task_ids[0], values=f"{loss}  {best}{others}")
        elif time.perf_counter() - self._last_line > SECONDS_BETWEEN_LINES:
            self._print_line(trainer, _format(values))

    def on_evaluate(self, trainer: TrainerState, metrics: dict[str, float], is_best: bool) -> None:
        shown = {name: value for name, value in metrics.items() if "/" not in name}  # others are for plots
        if is_best:
            self._best = _format(shown)
        text = _format({f"validation {name}": value for name, value in shown.items()})
        if is_best:
            text += "  (equal to the best)" if trainer.evaluations_without_improvement else "  (best)"
        if self._bar is not None:
            self.on_message(trainer, f"step {trainer.step}: {text}")
        else:
            self._print_line(trainer, text)

    def on_message(self, trainer: TrainerState, message: str) -> None:
        self._console.print(message, markup=False, soft_wrap=True)

    def on_end(self, trainer: TrainerState) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _print_line(self, trainer: TrainerState, text: str) -> None:
        self._last_line = time.perf_counter()
        seconds_per_step = (self._last_line - self._started) / max(1, trainer.step - self._first_step)
        steps = trainer.total_steps - trainer.step
        left = f"  about {steps * seconds_per_step:.0f} s left" if steps else ""
        self.on_message(trainer, f"step {trainer.step}/{trainer.total_steps}  {text}{left}")


def _format(values: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, float))
