"""Comparison of several models on identical data: results with paired differences, and how their runs differ."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from . import config, seeds
from .errors import check
from .files import WEIGHTS, read_log
from .names import printable, shortened
from .output import aligned, flatten
from .predictor import SELECTION_NOTES, Predictor, Progress
from .training.hooks import FINAL
from .view.page import Page
from .view.reports import Report

Table = list[list[str]]
"""Rows of cells; the first row is the header."""
MAX_KEYS = 12
"""Keys of configs that differ, which are listed as text."""
MAX_VALUE_CHARS = 40
"""Characters of a config value that are shown."""
RESAMPLES = 1000
"""Bootstrap resamples of the examples."""
Array = np.ndarray[Any, Any]
AnyPredictor = TypeVar("AnyPredictor", bound=Predictor)
Output = TypeVar("Output")


@dataclass(frozen=True)
class RunDescription:
    """What is known about a run without evaluating it."""

    name: str
    config: Mapping[str, Any]
    """The values of the config by dotted key."""
    parameters: int
    weight_bytes: int | None
    training_seconds: float | None
    """None if the log does not say it, as for a pretrained model."""
    training_steps: int | None
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    """Steps and values of each validation metric."""

    @classmethod
    def of(cls, name: str, predictor: Predictor) -> "RunDescription":
        """Describe the run of a predictor."""
        records, weights = read_log(predictor.folder), predictor.folder / WEIGHTS
        final: Mapping[str, Any] = next((record for record in reversed(records) if FINAL in record), {})
        seconds = final.get("seconds")
        return cls(
            name=name,
            config=flatten(config.plain(predictor.config)),
            parameters=sum(parameter.numel() for parameter in predictor.model.parameters()),
            weight_bytes=weights.stat().st_size if weights.is_file() else None,
            training_seconds=float(seconds) if isinstance(seconds, int | float) else None,
            training_steps=final.get("step"),
            curves=_curves(records),
        )


@dataclass(frozen=True, kw_only=True)
class Comparison(ABC):
    """Models on identical data; the first one is the reference. A task subclasses it."""

    runs: tuple[RunDescription, ...] = ()
    """The runs among the models."""
    seconds: Mapping[str, float] | None = None
    """Time of the evaluation of each model."""

    @abstractmethod
    def title(self) -> str:
        """What was compared, in one line."""

    @abstractmethod
    def table(self) -> Table:
        """The results, one row for each model."""

    @abstractmethod
    def to_records(self) -> list[dict[str, Any]]:
        """Plain JSON values of every model; `name` is its name."""

    def __str__(self) -> str:
        return "\n".join([self.title(), *aligned(self.table())])

    def markdown(self) -> str:
        """The results as a Markdown table."""
        return f"{self.title()}\n\n{_markdown(self.table())}"

    def report(self, *, markdown: bool = False) -> str:
        """The results, times and sizes, and how the configs of the runs differ; text has at most `MAX_KEYS` keys."""
        parts = [self.markdown() if markdown else str(self)]
        for title, table in self._run_tables(None if markdown else MAX_KEYS):
            parts.append(f"{title}\n\n{_markdown(table)}" if markdown else "\n".join([title, *aligned(table)]))
        return "\n\n".join(parts)

    def page(self) -> Page:
        """A page with the tables, and the learning curves of the runs."""
        report = Report(f"Comparison of {len(self.table()) - 1} models", "")
        header, *rows = self.table()
        report.add_table("Results", header, rows, self.title())
        for title, (header, *rows) in self._run_tables():
            report.add_table(title.capitalize(), header, rows)
        metrics = dict.fromkeys(metric for run in self.runs for metric in run.curves)
        for metric in metrics:
            lines = {run.name: run.curves[metric] for run in self.runs if metric in run.curves}
            report.add_curves(f"Validation {metric.replace('_', ' ')}", lines, "By training step.")
        return report.page()

    def run_records(self) -> list[dict[str, Any]]:
        """The records with the time and size of each run."""
        facts = {run.name: run for run in self.runs}
        records = []
        for record in self.to_records():
            run, seconds = facts.get(record["name"]), (self.seconds or {}).get(record["name"])
            values: dict[str, Any] = {"evaluation_seconds": seconds}
            for name in ("parameters", "weight_bytes", "training_seconds", "training_steps"):
                values[name] = None if run is None else getattr(run, name)
            records.append({**record, **values})
        return records

    def _run_tables(self, max_keys: int | None = None) -> list[tuple[str, Table]]:
        """The times and sizes of the runs, and the keys in which their configs differ."""
        tables = []
        if self.runs:
            tables.append(("times and sizes", self._sizes()))
        if differences := self._differences():
            title, count = "differences of the configs", len(differences) - 1
            if max_keys is not None and count > max_keys:
                title += f", {max_keys} of {count} keys; a page (`show`) has all"
                differences = differences[: max_keys + 1]
            tables.append((title, differences))
        return tables

    def _sizes(self) -> Table:
        rows = [["", "parameters", "weights", "training steps", "training time", "evaluation time"]]
        for run in self.runs:
            seconds = (self.seconds or {}).get(run.name)
            size = "" if run.weight_bytes is None else f"{run.weight_bytes / 1e6:,.1f} MB"
            steps = "" if run.training_steps is None else f"{run.training_steps:,}"
            times = ["" if time is None else f"{time:,.1f} s" for time in (run.training_seconds, seconds)]
            rows.append([printable(run.name), f"{run.parameters:,}", size, steps, *times])
        return rows

    def _differences(self) -> Table:
        keys = dict.fromkeys(key for run in self.runs for key in run.config if key != "out")
        rows = []
        for key in keys:
            values = [str(run.config.get(key, "")) for run in self.runs]
            if len(set(values)) > 1:
                rows.append([key, *(shortened(value, MAX_VALUE_CHARS) for value in values)])
        return [["key", *(printable(run.name) for run in self.runs)], *rows] if rows else []


@dataclass(frozen=True)
class PairedResult:
    """One model, and its difference to the first one on the same examples. A subclass adds the metrics."""

    name: str
    difference: float = field(kw_only=True)
    """Difference of the metric that is compared."""
    difference_interval: tuple[float, float] = field(kw_only=True)
    """95% interval of the paired difference."""


@dataclass(frozen=True)
class BootstrapResult(PairedResult):
    """A result whose intervals are by bootstrap resampling of the examples."""

    p_value: float = field(kw_only=True)
    """Two-sided: twice the share of resamples in which the difference has the other sign or is 0, at most 1."""


@dataclass(frozen=True, kw_only=True)
class PairedComparison(Comparison):
    """Models on the same examples, each with its paired difference to the first one.

    A subclass has a field named `noun`, the number of examples.
    """

    noun: ClassVar[str]
    """What the examples are, in the plural."""
    description: ClassVar[str]
    """What the columns are, for the title."""
    columns: ClassVar[tuple[str, ...]]
    """The names of the metrics."""
    paired: ClassVar[tuple[str, ...]] = ("difference", "difference_interval", "p_value")
    """The fields of a result that compare it with the first one."""
    factor: ClassVar[float] = 1.0
    """Differences are multiplied by it in the table."""
    digits: ClassVar[int] = 2
    """Digits of a difference after the point."""
    split_notes: ClassVar[Mapping[str, str]] = SELECTION_NOTES
    """What the title says about a split that was used in training."""

    split: str
    results: tuple[Any, ...]
    """A `PairedResult` of each model."""

    @abstractmethod
    def metrics(self, result: Any) -> list[str]:
        """The metrics of a model as text, below `columns`."""

    def title(self) -> str:
        count, note = getattr(self, self.noun), self.split_notes.get(self.split, "")
        return f"{self.split} set, the same {count:,} {self.noun} for all models{note}; {self.description}"

    def table(self) -> Table:
        has_test = "p_value" in self.paired
        rows = [["", *self.columns, "difference", "95% interval", *["p-value"] * has_test]]
        for i, result in enumerate(self.results):
            values = (result.difference, *result.difference_interval)
            difference, low, high = (f"{self.factor * value:+.{self.digits}f}" for value in values)
            cells = [difference, f"{low} to {high}", *(f"{result.p_value:.2g}" for _ in range(has_test))]
            rows.append([printable(result.name), *self.metrics(result), *(cells if i else [""] * len(cells))])
        return rows

    def to_records(self) -> list[dict[str, Any]]:
        """One record for each model. The reference has no difference."""
        records = []
        for i, result in enumerate(self.results):
            values = asdict(result)
            paired = {name: values.pop(name) for name in self.paired}
            values |= paired if i else dict.fromkeys(paired)
            records.append({**values, "split": self.split, self.noun: getattr(self, self.noun)})
        return records


def evaluate_each(
    predictors: Sequence[AnyPredictor],
    names: Sequence[str],
    evaluate: Callable[[str, AnyPredictor], Output],
    progress: Progress | None = None,
) -> tuple[list[Output], dict[str, float]]:
    """What `evaluate` returns for the name and predictor of each model, and the seconds that it took."""
    outputs, seconds = list[Output](), dict[str, float]()
    for name, predictor in zip(names, predictors, strict=True):
        start = time.perf_counter()
        outputs.append(evaluate(name, predictor))
        seconds[name] = time.perf_counter() - start
        if progress is not None:
            progress(len(outputs), len(predictors))
    return outputs, seconds


def check_same_data(is_same: bool, noun: str, name: str, first: str) -> None:
    """Raise SightlineError if a model is evaluated on other data than the first one."""
    rule = f"runs must be evaluated on the same {noun} to be compared"
    check(is_same, f"{rule}, got others for {name} than for {first}; pass --data PATH")


def resample_weights(count: int) -> Array:
    """How often each example is in each bootstrap resample: (RESAMPLES, count)"""
    generator = seeds.make_generator(0, seeds.DATA)
    return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)


def percentile_interval(values: Array) -> tuple[float, float]:
    """The 95% interval of resampled values."""
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)


def bootstrap_p_value(differences: Array) -> float:
    """Two-sided: twice the share of resamples in which the difference has the other sign or is 0, at most 1.

    The data count as one more resample, so that the p-value is not 0.
    """
    return min(1.0, 2 * float(1 + min((differences <= 0).sum(), (differences >= 0).sum())) / (len(differences) + 1))


def bootstrap_description(metric: str) -> str:
    """What the columns of a comparison by `bootstrap_intervals` are."""
    intervals = f"with 95% intervals and p-value of {RESAMPLES:,} bootstrap resamples"
    return f"the paired difference of {metric} to the first model, {intervals}"


def bootstrap_intervals(values: Array, differences: Array) -> dict[str, Any]:
    """`interval`, `difference_interval` and `p_value` of a result, from a metric in each resample and its difference
    to that of the first model: (RESAMPLES,) each
    """
    return {
        "interval": percentile_interval(values),
        "difference_interval": percentile_interval(differences),
        "p_value": bootstrap_p_value(differences),
    }


def names_of(runs: Sequence[str | Path]) -> list[str]:
    """A name for each run: that of its folder, or its path if two folders have the same name."""
    names = [Path(run).resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def _curves(records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """Steps and values of each validation metric of a log; those of plots have a slash in their names."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        metrics = record.get("validation")
        for metric, value in metrics.items() if isinstance(metrics, dict) else ():
            if "/" not in metric and isinstance(value, int | float) and abs(value) < 1e30:
                steps, values = curves.setdefault(metric, ([], []))
                steps.append(record["step"])
                values.append(value)
    return curves


def _markdown(table: Table) -> str:
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in table]
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
