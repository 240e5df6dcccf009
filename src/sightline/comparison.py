"""Comparison of runs on identical data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from . import registry
from .errors import SightlineError, one_of
from .runs import CLASSIFIER, load, progress_bar
from .training.device import choose_device


class Comparison(Protocol):
    """Metrics of several models on identical data. `str(comparison)` is a table for a terminal."""

    def markdown(self) -> str:
        """A Markdown table."""

    def to_records(self) -> list[dict[str, Any]]:
        """One record for each model and setting, as plain JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""


def compare(
    runs: Sequence[str | Path],
    *,
    data: str | None = None,
    baselines: Sequence[str] = (),
    settings: Sequence[str] = (),
    episodes: int | None = None,
    device: str = "auto",
) -> Comparison:
    """Evaluate runs of one task on identical data and report paired differences to the first run.

    Few-shot runs are evaluated on identical episodes: `settings` such as ["5w1s"] and the number of `episodes` default
    to those of the first run's config, and `baselines` such as ["protonet"] use its embeddings. `data` is another data
    set to evaluate on.
    """
    if not runs:
        raise SightlineError("runs must name at least one run, got none")
    for run in runs:
        if Path(run).suffix == CLASSIFIER:
            raise SightlineError(f"runs must be folders of runs, got {str(run)!r}; compare the run it was fitted with")
    predictors = [load(run) for run in runs]
    task = predictors[0].config.task
    spec = registry.task_spec(task)
    if spec.compare is None:
        supported = [name for name, other in registry.TASKS.items() if other.compare is not None]
        raise SightlineError(f"the task of runs to compare must be {one_of(task, supported)}")
    for run, predictor in zip(runs, predictors, strict=True):
        if predictor.config.task != task:
            raise SightlineError(
                f"the task of all runs to compare must be {task}, got {str(run)!r} of task {predictor.config.task}"
            )
    for predictor in predictors:
        predictor.to(choose_device(device))
    options = {"data": data, "baselines": baselines, "settings": settings, "episodes": episodes}
    with progress_bar() as progress:
        result: Comparison = spec.compare_function(predictors, _names(runs), progress=progress, **options)
    return result


def _names(runs: Sequence[str | Path]) -> list[str]:
    """The last component of each path, or the whole paths if two of these are equal."""
    short = [Path(run).resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]
