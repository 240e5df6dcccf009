"""The results of a search: a row for each trial, the best trials, and files of both."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import config, files, limits
from ..errors import check, reraise
from ..output import RecordWriter, finite
from .plan import Objective, Plan
from .space import stored
from .study import RESULT, Study, state_of

BEST, CSV, JSON = FILES = ("best.yaml", "trials.csv", "trials.json")
MIN_TRIALS = 10
"""Complete trials below which a report says nothing about settings."""
STATES = ("complete", "pruned", "failed", "running")


@dataclass(frozen=True)
class Results:
    """The trials of a search as plain JSON values."""

    name: str
    definition: dict[str, Any]
    trials: list[dict[str, Any]]
    """`trial` (the index), `state`, `values` and `settings` by name, `parameters`, `seconds`, `latency`, `curve`, and
    `failure` and `message` of a trial that failed."""

    @classmethod
    def of(cls, study: Study) -> "Results":
        """The trials of a study that were started."""
        definition = study.definition
        objectives = [name for name, _ in definition.get("objectives", ())]
        choices = {
            s["key"]: {stored(c): c for c in s["choices"]} for s in definition.get("space", ()) if "choices" in s
        }
        order = [setting["key"] for setting in definition.get("space", ())]
        rows = []
        for index, trial in study.trials().items():
            result = dict(trial.user_attrs.get(RESULT, {}))
            values = trial.values or [None] * len(objectives)
            params = {key: trial.params[key] for key in order if key in trial.params}
            curve = [[None, None, value] for _, value in sorted(trial.intermediate_values.items())]
            rows.append(
                {
                    "trial": index,
                    "state": state_of(trial),
                    "values": dict(zip(objectives, values, strict=False)),
                    "settings": {key: choices.get(key, {}).get(value, value) for key, value in params.items()},
                    "parameters": result.get("parameters"),
                    "seconds": result.get("seconds"),
                    "latency": result.get("latency"),
                    "curve": result.get("curve", curve),
                    "failure": result.get("failure"),
                    "message": result.get("message"),
                }
            )
        return cls(study.title, definition, rows)

    @classmethod
    def read(cls, path: Path) -> "Results":
        """The results in a JSON file."""
        size, limit = path.stat().st_size, limits.MAX_SEARCH_FILE_BYTES
        check(size <= limit, f"{path} must be at most {limit:,} bytes, got {size:,}")
        with reraise(f"{path} must hold the results of a search", ValueError, TypeError, RecursionError):
            return cls(**json.loads(path.read_text(encoding="utf-8")))

    @property
    def objectives(self) -> list[Objective]:
        """What the search maximized or minimized."""
        return [Objective(name, direction == "maximize") for name, direction in self.definition["objectives"]]

    @property
    def counts(self) -> Counter[str]:
        """The number of trials in each state."""
        return Counter(trial["state"] for trial in self.trials)

    @property
    def finished(self) -> int:
        """The number of trials that ended."""
        return len(self.trials) - self.counts["running"]

    @property
    def complete(self) -> list[dict[str, Any]]:
        """The trials that were trained to the end."""
        return [trial for trial in self.trials if trial["state"] == "complete"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The complete trial with the best first objective; None if there is none."""
        objective, complete = self.objectives[0], self.complete
        sign = 1 if objective.maximize else -1
        return max(complete, key=lambda trial: sign * trial["values"][objective.name]) if complete else None

    @property
    def pareto_front(self) -> list[dict[str, Any]]:
        """The complete trials that no other one beats in all objectives, the best first objective first."""
        front: list[dict[str, Any]] = []
        for trial in sorted(self.complete, key=self._costs):
            if not any(_dominates(self._costs(other), self._costs(trial)) for other in front):
                front.append(trial)
        return front

    def _costs(self, trial: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(-trial["values"][o.name] if o.maximize else trial["values"][o.name] for o in self.objectives)

    def write(self, folder: Path) -> None:
        """Write a JSON file with everything, and a CSV file without learning curves."""
        content = {"name": self.name, "definition": self.definition, "trials": self.trials}
        files.write_bytes(folder / JSON, json.dumps(finite(content), ensure_ascii=False, indent=1).encode())
        settings = [f"settings.{setting['key']}" for setting in self.definition["space"]]
        objectives = [objective.name for objective in self.objectives]
        measures = [name for name in ("parameters", "seconds", "latency") if name not in objectives]
        columns = ["trial", "state", *objectives, *measures, "evaluations", *settings, "failure", "message"]
        with files.atomic_write(folder / CSV) as part, part.open("w", encoding="utf-8", newline="") as stream:
            writer = RecordWriter(stream, "csv", [column.removeprefix("settings.") for column in columns])
            for trial in self.trials:
                row = {**trial["values"], **trial, "evaluations": len(trial["curve"])}
                flat = {name: row.get(name) for name in columns if not name.startswith("settings.")}
                writer.write(flat | trial["settings"], "")
            writer.close()

    def write_best(self, plan: Plan) -> Path | None:
        """Write the config of the best trial; None if no trial is complete."""
        if self.best is None:
            return None
        path, value = plan.folder / BEST, self.best["values"][self.objectives[0].name]
        source = f"# Trial {self.best['trial']} of a search: {self.objectives[0].name} {value:.4g}\n"
        best_config = plan.best_config(self.best["settings"])
        files.write_bytes(path, (source + config.dump(best_config)).encode())
        return path

    def summary(self, total: int | None = None) -> str:
        """The number of trials in each state, and the best one."""
        counts = self.counts
        states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        lines = [f"{self.finished} of {total or len(self.trials)} trials finished: {states}"]
        if self.best is not None:
            values = ", ".join(f"{name} {format_number(value)}" for name, value in self.best["values"].items())
            lines.append(f"best: trial {self.best['trial']}, {values}")
            width = max(map(len, self.best["settings"]), default=0)
            lines += [f"  {key:{width}}  {format_number(value)}" for key, value in self.best["settings"].items()]
            if len(self.objectives) > 1:
                front = self.pareto_front
                lines.append(f"Pareto front: {len(front)} trials, {', '.join(str(trial['trial']) for trial in front)}")
        return "\n".join(lines)


def format_number(value: Any) -> str:
    """A setting or a metric in a few characters."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"
    return json.dumps(value) if isinstance(value, bool | None | list | dict) else str(value)


def _dominates(costs: Sequence[float], others: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(costs, others, strict=True)) and tuple(costs) != tuple(others)
