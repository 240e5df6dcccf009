"""The report of a search: what mattered, as text and as one page with charts of all trials."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import seeds
from ..errors import check, reraise
from ..view import charts
from ..view.charts import Mark, Scale
from ..view.page import Page, bundle_script, read_static
from ..view.reports import Report
from .analysis import Analysis, analyze, findings, mean_interval, ordered_choices
from .progress import duration
from .results import JSON, Results, format_number
from .study import JOURNAL, Study

MAX_SHOWN = 1500
"""Trials on a page; of more, the last ones and the best one are shown."""
MAX_LISTED = 10
"""Trials in the table."""
MIN_GROUP = 3
"""Trials of a group whose mean is drawn."""
NUM_GROUPS, MAX_VALUES = 4, 12
"""Groups of a range whose means are drawn, and values up to which each has its own mean."""
MEASURES = {"parameters": "parameters", "seconds": "seconds of training", "latency": "latency in ms per example"}


def read_results(study: Path, storage: str = "") -> Results:
    """The results of a search: of its folder, of its trials.json, or of its name in a storage."""
    if storage:
        with Study(storage, study.resolve().name, study) as opened:
            return _checked(Results.of(opened), storage)
    if study.is_dir() and (study / JOURNAL).is_file():  # also that of a running search
        with Study("", "search", study) as opened:
            return _checked(Results.of(opened), str(study))
    path = study / JSON if study.is_dir() else study
    rule = f"study must be the folder of a search or its {JSON}"
    check(path.is_file(), f"{rule}, got {str(study)!r}; a search in a database needs --storage URL")
    return _checked(Results.read(path), str(path))


def _checked(results: Results, source: str) -> Results:
    """The results, if they have the form that this package writes."""
    with reraise(f"{source} must hold the results of a search", KeyError, TypeError, ValueError, AttributeError):
        names = {objective.name for objective in results.objectives}
        keys = {setting["key"] for setting in results.definition["space"]}
        for trial in results.trials:
            numbers = [trial["parameters"], trial["seconds"], trial["latency"], *trial["values"].values()]
            numbers += [number for point in trial["curve"] for number in point]
            is_valid = all(number is None or np.isfinite(float(number)) for number in numbers)
            is_known = trial["settings"].keys() <= keys and trial["values"].keys() <= names
            if not (is_valid and is_known and int(trial["trial"]) >= 0):
                raise ValueError(f"trial {trial['trial']} is not valid")
    check(results.trials, f"{source} must hold at least one trial, got none")
    return results


class SearchReport:
    """The analysis of a search."""

    def __init__(self, results: Results):
        self.results = results
        self.analysis = analyze(results)
        self.objective = results.objectives[0]
        best = results.best
        self._best = None if best is None else best["trial"]
        self._values = sorted(trial["values"][self.objective.name] for trial in results.complete)

    def __str__(self) -> str:
        return "\n".join([self.results.summary(), "", *self.findings])

    @property
    def findings(self) -> list[str]:
        """A few sentences: what mattered and how sure that is."""
        return findings(self.results, self.analysis)

    def page(self) -> Page:
        """One page with all charts, which makes no network request."""
        results, name = self.results, self.objective.name
        shown = self._shown()
        total = (
            f"{len(shown):,} of {len(results.trials):,} trials are drawn. " if len(shown) < len(results.trials) else ""
        )
        report = Report(f"Search {results.name}", results.summary().splitlines()[0])
        report.add_figures(self._tiles())
        report.add_paragraphs("What mattered", self.findings)
        if self.analysis is not None:
            note = f"Share of the variance of {name} that a setting explains on its own (fANOVA), with 95% bootstrap "
            note += "intervals over trials. Gray: no effect could be shown."
            report.add_charts("Importance", [_importances(self.analysis)], note)
        note = f"{total}One line for each trial; the darkest have the best {name}, the orange one is the best."
        report.add_charts("Parallel coordinates", [self._parallel(shown)], note)
        note = f"{name} against each setting. Bars are means with 95% bootstrap intervals; empty circles were not "
        note += "trained to the end."
        report.add_charts("Slices", [self._slice(setting, shown) for setting in results.definition["space"]], note)
        measures = [measure for measure in MEASURES if any(trial[measure] for trial in results.complete)]
        if measures:
            note = "The dashed line is the Pareto front: no complete trial is better in both."
            scatters = [self._cost(measure, shown) for measure in measures]
            report.add_charts(f"{name} against {_listed(measures)}", scatters, note)
        report.add_charts("Learning curves", [self._curves(shown)], f"{name} on the validation set by training step.")
        report.add_table(f"Best {MAX_LISTED} trials", *self._table())
        texts = {t["trial"]: {"text": self._tip(t), "value": self._value(t, complete=True)} for t in shown}
        data = {"objective": name, "maximize": self.objective.maximize, "trials": texts}
        return report.page(bundle_script("trials"), read_static("trials.css"), data)

    def _shown(self) -> list[dict[str, Any]]:
        trials = self.results.trials
        kept = trials[-MAX_SHOWN:]
        best = [trial for trial in trials[:-MAX_SHOWN] if trial["trial"] == self._best]
        return sorted(best + kept, key=lambda trial: (trial["trial"] == self._best, trial["state"] == "complete"))

    def _value(self, trial: Mapping[str, Any], *, complete: bool = False) -> float | None:
        """The first objective of a trial; of a trial that did not end, the last evaluation."""
        if trial["state"] == "complete":
            return float(trial["values"][self.objective.name])
        values = [value for _, _, value in trial["curve"] if value is not None]
        return None if complete or not values else float(values[-1])

    def _tip(self, trial: Mapping[str, Any]) -> str:
        settings = ", ".join(f"{key} {format_number(value)}" for key, value in trial["settings"].items())
        value = self._value(trial)
        number = "" if value is None else f" {self.objective.name} {format_number(value)};"
        return f"trial {trial['trial']}, {trial['state']}:{number} {settings}"

    def _mark(self, trial: Mapping[str, Any]) -> Mark:
        kind = trial["state"]
        if trial["trial"] == self._best:
            kind = "best"
        elif kind == "complete":
            rank = bisect_right(self._values, trial["values"][self.objective.name]) - 1
            shade = int(rank * charts.NUM_SHADES / len(self._values))
            kind = f"v{shade if self.objective.maximize else charts.NUM_SHADES - 1 - shade}"
        return Mark(trial["trial"], kind, self._tip(trial))

    def _tiles(self) -> list[tuple[str, str, str]]:
        results, best, counts = self.results, self.results.best, self.results.counts
        states = ", ".join(f"{counts[state]} {state}" for state in ("pruned", "failed", "running") if counts[state])
        tiles = [("complete trials", f"{counts['complete']:,}", states)]
        if best is not None:
            tiles.append((f"best {self.objective.name}", f"{self._value(best):.4g}", f"trial {best['trial']}"))
            if best["parameters"]:
                tiles.append(("parameters of the best", f"{best['parameters']:,}", ""))
        seconds = sum(trial["seconds"] or 0.0 for trial in results.trials)
        tiles.append(("time in trials", duration(seconds), f"sampler {results.definition.get('sampler', '')}"))
        return tiles

    def _axis(self, setting: Mapping[str, Any]) -> Scale:
        if "choices" in setting:
            choices = ordered_choices(setting) or setting["choices"]
            return Scale.categories(setting["key"], choices, [format_number(choice) for choice in choices])
        key, ends = setting["key"], [setting["min"], setting["max"]]
        return Scale.logarithmic(key, ends) if setting["log"] else Scale.linear(key, ends, integer=setting["integer"])

    def _objective_axis(self, trials: Sequence[Mapping[str, Any]]) -> Scale:
        values = [value for trial in trials if (value := self._value(trial)) is not None]
        return Scale.linear(self.objective.name, values)

    def _parallel(self, trials: Sequence[Mapping[str, Any]]) -> str:
        space = self.results.definition["space"]
        others = [objective.name for objective in self.results.objectives[1:]]
        axes = [self._axis(setting) for setting in space]
        for name in others:
            found = [trial["values"][name] for trial in trials if trial["values"].get(name) is not None]
            axes.append(Scale.logarithmic(name, found))
        axes.append(self._objective_axis(trials))
        lines = []
        for trial in trials:
            values = [trial["settings"].get(setting["key"]) for setting in space]
            values += [trial["values"].get(name) for name in others]
            lines.append((self._mark(trial), [*values, self._value(trial)]))
        return charts.parallel(axes, lines)

    def _slice(self, setting: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> str:
        key, x, y = setting["key"], self._axis(setting), self._objective_axis(trials)
        points, placed = [], []
        for trial in trials:
            value = self._value(trial)
            if key in trial["settings"] and value is not None:
                points.append((self._mark(trial), trial["settings"][key], value))
                if trial["state"] == "complete":
                    placed.append((x.position(trial["settings"][key]), value))
        random = seeds.make_generator(0, seeds.SEARCH, 2)
        means = []
        is_discrete = "choices" in setting or setting["integer"] or setting["step"] is not None
        for group in _grouped(placed, is_discrete=is_discrete):
            mean = mean_interval(np.array([value for _, value in group]), random)
            at = float(np.mean([position for position, _ in group]))
            means.append((at, mean.value, mean.low, mean.high))
        return charts.scatter(x, y, points, means=means)

    def _cost(self, measure: str, trials: Sequence[Mapping[str, Any]]) -> str:
        """The objective against a cost, with the Pareto front of the complete trials."""
        having = [trial for trial in trials if trial[measure] and self._value(trial) is not None]
        x = Scale.logarithmic(MEASURES[measure], [trial[measure] for trial in having])
        points = [(self._mark(trial), trial[measure], self._value(trial) or 0.0) for trial in having]
        sign = 1 if self.objective.maximize else -1
        front: list[tuple[float, float]] = []
        complete = [(t[measure], self._value(t) or 0.0) for t in having if t["state"] == "complete"]
        for cost, value in sorted(complete, key=lambda pair: (pair[0], -sign * pair[1])):
            if not front or sign * value > sign * front[-1][1]:
                front.append((cost, value))
        return charts.scatter(x, self._objective_axis(having), points, front=front)

    def _curves(self, trials: Sequence[Mapping[str, Any]]) -> str:
        lines = []
        for trial in trials:
            curve = [(step, value) for step, _, value in trial["curve"] if step is not None and value is not None]
            lines.append((self._mark(trial), curve))
        points = [point for _, curve in lines for point in curve]
        x, y = Scale.linear("training step", [p[0] for p in points], integer=True), [p[1] for p in points]
        return charts.curves(x, Scale.linear(self.objective.name, y), lines)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        sign = -1 if self.objective.maximize else 1
        best = sorted(self.results.complete, key=lambda trial: sign * trial["values"][self.objective.name])
        keys = [setting["key"] for setting in self.results.definition["space"]]
        names = [objective.name for objective in self.results.objectives]
        rows = []
        for trial in best[:MAX_LISTED]:
            cells = [format_number(trial["values"][name]) for name in names]
            cells += [format_number(trial["settings"][key]) if key in trial["settings"] else "" for key in keys]
            rows.append([str(trial["trial"]), *cells])
        return ["trial", *names, *keys], rows


def _grouped(placed: Sequence[tuple[float, float]], *, is_discrete: bool) -> list[list[tuple[float, float]]]:
    """Points in groups of one position, or of about the same size; those of few points are left out."""
    ordered = sorted((round(position, 9), value) for position, value in placed)
    positions = dict.fromkeys(position for position, _ in ordered)
    if is_discrete and len(positions) <= MAX_VALUES:
        groups = [[point for point in ordered if point[0] == position] for position in positions]
    else:
        count = min(NUM_GROUPS, max(1, len(ordered) // MIN_GROUP))
        groups = [[ordered[i] for i in indices] for indices in np.array_split(np.arange(len(ordered)), count)]
    return [group for group in groups if len(group) >= MIN_GROUP]


def _importances(analysis: Analysis) -> str:
    effects = analysis.effects
    return charts.bars([(e.key, e.importance.value, e.importance.low, e.importance.high, e.is_clear) for e in effects])


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
