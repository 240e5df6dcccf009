"""What is written and shown while a model trains: JSON lines always, a live bar in a terminal, else plain lines."""

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from ..errors import SightlineError
from ..files import write_bytes

SECONDS_BETWEEN_LINES = 10
AVERAGE = "average"
"""What the line about the mean of the last checkpoints is known by."""


class Log:
    """metrics.jsonl and the user's screen.

    `quiet` writes the file alone; `silent` does neither, for the processes beside the first.
    """

    def __init__(
        self, folder: Path, steps: int, *, quiet: bool = False, silent: bool = False, tensorboard: bool = False
    ):
        self.path, self.steps, self.silent = folder / "metrics.jsonl", steps, silent
        self.console = Console(stderr=True, quiet=quiet or silent, highlight=False)
        self._progress = self._bar() if self.console.is_terminal else None
        self._task: Any = None
        self._writer = _tensorboard() if tensorboard and not silent else None
        self._events: Any = None
        self._last_line, self._since, self._first, self._best = 0.0, time.perf_counter(), 0, ""

    def start(self, step: int) -> None:
        """Show where training begins; lines about later steps, left by a run that was broken off, are dropped."""
        self._first = step
        if self.silent:
            return
        kept = []
        if step and self.path.is_file():
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    facts = json.loads(line)
                    if facts["step"] <= step and AVERAGE not in facts:  # that one ends a run, and this one goes on
                        kept.append(line)
                except (ValueError, KeyError, TypeError):
                    continue  # the line that was being written when the run died
        write_bytes(self.path, "".join(f"{line}\n" for line in kept).encode())
        if self._writer is not None:
            self._events = self._writer(str(self.path.parent / "events"), purge_step=step + 1)
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("", total=self.steps, completed=step, facts="")

    def step(self, step: int, facts: dict[str, Any]) -> None:
        """A line about training."""
        self._write(step, facts)
        self._show(step, facts, always=False)

    def advance(self, step: int) -> None:
        """Move the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step)

    def evaluated(self, step: int, metrics: dict[str, float], *, best: bool) -> None:
        """A line about the validation set."""
        self._write(step, {"validation": metrics, "best": best})
        told = {name: value for name, value in metrics.items() if "/" not in name}  # others are for the curves alone
        self._best = "  ".join(f"{name} {value:.4g}" for name, value in told.items()) if best else self._best
        self._show(step, {f"validation {name}": value for name, value in told.items()}, always=True, best=best)

    def averaged(self, step: int, metrics: dict[str, float], *, best: bool) -> None:
        """The last line, about the mean of the last checkpoints on the validation set."""
        self._write(step, {AVERAGE: metrics, "best": best})

    def say(self, message: str) -> None:
        """A word to the user."""
        (self._progress.console if self._progress else self.console).print(message, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
        if self._events is not None:
            self._events.close()

    def _write(self, step: int, facts: dict[str, Any]) -> None:
        if self.silent:
            return
        line = json.dumps({"step": step, **facts}) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{self.path} must be written, and the disk said: {error.strerror}; "
                f"make room, then go on with --resume",
            ) from error
        if self._events is not None:
            for name, value in _flat(facts):
                self._events.add_scalar(name, value, step)

    def _show(self, step: int, facts: dict[str, Any], *, always: bool, best: bool = False) -> None:
        words = "  ".join(f"{name} {value:.4g}" for name, value in facts.items() if isinstance(value, float))
        if self._progress is not None:
            if self._task is not None and not always:
                loss, _, others = words.partition("  ")
                before = f"best {self._best}  " if self._best else ""
                self._progress.update(self._task, completed=step, facts=f"{loss}  {before}{others}")
            if always:
                self.say(f"step {step}: {words}{'  (best)' if best else ''}")
        elif always or time.perf_counter() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.perf_counter()
            left = (self.steps - step) * (self._last_line - self._since) / max(1, step - self._first)
            self.say(f"step {step}/{self.steps}  {words}{'  (best)' if best else ''}  about {left:.0f} s left")

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("training"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            console=self.console,
            expand=True,  # where the line is too short, it is the facts that are cut
            refresh_per_second=4,
        )


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in facts.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found.append((f"{prefix}{name}", float(value)))
    return found


def _tensorboard() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SightlineError(
            "training.tensorboard must have TensorBoard installed: pip install 'sightline[logs]'"
        ) from error
    return SummaryWriter
