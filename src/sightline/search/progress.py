"""The state of a running search in a terminal: a live table, or a line for each finished trial elsewhere."""

import math
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .results import Results, format_number

MAX_RUNNING = 8
"""Running trials that the table lists."""


class Progress:
    """Shows the results of a search as it runs, on standard error."""

    def __init__(self, total: int, deadline: float = math.inf, *, quiet: bool = False):
        """`deadline` is the `time.time()` after which no trial is started."""
        self.total, self.deadline, self.quiet = total, deadline, quiet
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._started, self._first = time.monotonic(), -1
        self._printed: set[int] = set()

    def __enter__(self) -> "Progress":
        if self._console.is_terminal and not self.quiet:
            self._live = Live(console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, results: Results) -> None:
        """Show new results."""
        if self._first < 0:
            self._first, self._started = results.finished, time.monotonic()
            self._printed = {trial["trial"] for trial in results.trials if trial["state"] != "running"}
        if self.quiet:
            return
        if self._live is not None:
            self._live.update(self.table(results))
            return
        for trial in results.trials:
            if trial["state"] != "running" and trial["trial"] not in self._printed:
                self._printed.add(trial["trial"])
                self.message(f"{describe(trial)}; {self.status(results)}")

    def message(self, text: str) -> None:
        """Print a line."""
        if not self.quiet:
            self._console.print(text, markup=False, soft_wrap=True)

    def seconds_left(self, results: Results) -> float | None:
        """The time that the remaining trials take at the speed so far, or that to the deadline if it is shorter; None
        before a trial is finished."""
        finished = results.finished - self._first
        elapsed = time.monotonic() - self._started
        if finished <= 0:
            return None
        return min((self.total - results.finished) * elapsed / finished, max(0.0, self.deadline - time.time()))

    def status(self, results: Results) -> str:
        """The number of finished trials, the best one, and the time left."""
        parts = [f"{results.finished} of {self.total} finished"]
        if (best := results.best) is not None:
            name = results.objectives[0].name
            parts.append(f"best {name} {format_number(best['values'][name])} (trial {best['trial']})")
        if (seconds := self.seconds_left(results)) and results.finished < self.total:
            parts.append(f"about {duration(seconds)} left")
        return ", ".join(parts)

    def table(self, results: Results) -> Any:
        """The live table: the best trial and the running ones."""
        counts = results.counts
        states = ", ".join(f"{counts[state]} {state}" for state in ("running", "pruned", "failed") if counts[state])
        keys = [setting["key"] for setting in results.definition["space"]]
        objective = results.objectives[0].name
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("trial", objective, *(key.rpartition(".")[2] for key in keys)):
            table.add_column(heading, no_wrap=True)
        best = [] if results.best is None else [results.best]
        running = [trial for trial in results.trials if trial["state"] == "running"][:MAX_RUNNING]
        for trial in [*best, *running]:
            is_best = trial is results.best
            values = [value for _, _, value in trial["curve"] if value is not None]
            value = trial["values"].get(objective) if is_best else (values[-1] if values else None)
            cells = ["" if value is None else format_number(value)]
            cells += [format_number(trial["settings"][key]) if key in trial["settings"] else "" for key in keys]
            label = f"{trial['trial']} best" if is_best else str(trial["trial"])
            table.add_row(label, *cells, style="bold" if is_best else "")
        return Group(Text(f"{self.status(results)}{states and f'; {states}'}"), table)


def describe(trial: dict[str, Any]) -> str:
    """How a trial ended, in a few words."""
    values = [f"{name} {format_number(value)}" for name, value in trial["values"].items() if value is not None]
    lines = (trial["message"] or trial["failure"] or "").splitlines()
    reason = f"failed ({(lines or [''])[-1]:.200})"
    ending = {"complete": ", ".join(values), "pruned": f"pruned at {', '.join(values)}", "failed": reason}
    return f"trial {trial['trial']}: {ending[trial['state']]}"


def duration(seconds: float) -> str:
    """Seconds as text, such as 2 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
