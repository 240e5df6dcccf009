"""Figures of a run, whatever its task: where they are written, and the training curves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files, limits, zoo
from ..errors import SightlineError, check, check_choice, check_page_size
from ..files import LOG
from ..predictor import Predictor
from ..results import FailedPrediction, list_failures
from ..view import figures as view_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..view.page import Page

FORMATS = ("png", "svg")


class NoFigure(Exception):  # noqa: N818 - not an error
    """Why a figure does not apply to a model."""


@dataclass
class FigureFiles:
    """The figures that `show` wrote, and those that do not apply to the model."""

    folder: Path
    format: str
    files: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Names of figures that were not drawn, and why."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """The name and the error of each input that cannot be used."""

    @classmethod
    def create(cls, run: Path, out: str | Path | None, format: str) -> "FigureFiles":
        """No figures yet, to be written to `out`; by default `figures/` in the run, or here for a pretrained model."""
        check_choice("format", format, FORMATS)
        folder = (Path() if zoo.is_pretrained(run) else run) / "figures" if out is None else Path(out)
        is_usable = folder.is_dir() or not folder.exists()
        check(is_usable, f"out must be a folder, got {str(folder)!r}, which is a file")
        return cls(folder, format)

    def usable(self, predictor: Predictor, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The prepared inputs to show on a page, and what they were prepared from; the others become `failures`.

        SightlineError is raised if there are inputs and none can be used.
        """
        check_page_size(inputs=max(1, len(inputs)))
        prepared = predictor.prepare_all(inputs)
        self.failures += list_failures(inputs, prepared)
        is_usable = [not isinstance(item, FailedPrediction) for item in prepared]
        if inputs and not any(is_usable):
            raise SightlineError(self.failures[0][1])
        return list(compress(prepared, is_usable)), list(compress(inputs, is_usable))

    def add(self, name: str, draw: "Callable[..., Figure]", *arguments: Any) -> None:
        """Draw and write a figure, unless it does not apply."""
        try:
            path = self.folder / f"{name}.{self.format}"
            self.files.append(view_figures.save(draw(*arguments), path))
        except NoFigure as reason:
            self.skipped[name] = str(reason)

    def add_page(self, page: "Page") -> None:
        """Write the viewer beside the figures."""
        page = page.with_failures(self.failures) if self.failures else page
        self.files.append(page.save(self.folder / "page.html"))


def training_curves(folder: Path, metric: str) -> "Figure":
    """Loss, the validation metric and the learning rate from a run's log."""
    records = drawable_log(folder)
    panels: dict[str, dict[str, view_figures.Line]] = {}
    for panel, line, keys in (
        ("loss", "training", ("loss",)),
        ("loss", "validation", ("validation", "loss")),
        (f"validation {metric}", metric, ("validation", metric)),
        ("learning rate", "learning rate", ("learning_rate",)),
    ):
        if (drawn := log_line(records, *keys)) is not None:
            panels.setdefault(panel, {})[line] = drawn
    if not panels:
        raise NoFigure(f"{zoo.display_name(folder)} has no {LOG} with metrics")
    best = [record["step"] for record in records if record.get("best") is True]
    return view_figures.curves(panels, best_step=best[-1] if best else None)


def drawable_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's log that can be drawn."""
    path = folder / LOG
    if path.is_file() and path.stat().st_size > limits.MAX_RUN_FILE_BYTES:
        raise NoFigure(f"{path} is larger than {limits.MAX_RUN_FILE_BYTES:,} bytes")
    return [record for record in files.read_log(folder) if log_value(record, "step") is not None]


def log_line(records: list[dict[str, Any]], *keys: str) -> view_figures.Line | None:
    """The steps and values of all records with a number at the end of these keys; None if there are none."""
    points = [(record["step"], value) for record in records if (value := log_value(record, *keys)) is not None]
    return ([step for step, _ in points], [value for _, value in points]) if points else None


def log_value(record: Any, *keys: str) -> float | None:
    """The number at the end of these keys, if it can be drawn."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    is_number = isinstance(record, int | float) and not isinstance(record, bool)
    return float(record) if is_number and abs(record) < 1e30 else None
