"""Pictures of a run, whatever its task: where they go, and how training went."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import zoo
from ..errors import SightlineError, one_of
from ..hub import MOST_BYTES, Shared
from ..view import curves
from ..view import figures as pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..view.page import Page

FORMATS = ("png", "svg")
LOG = "metrics.jsonl"


class Missing(Exception):  # noqa: N818 - it is no error
    """Why a model has nothing to draw here."""


@dataclass
class Drawn:
    """What was drawn of a model, and what there is none of."""

    folder: Path
    format: str
    files: list[Path] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """The name of a picture, and why it was not drawn."""

    @classmethod
    def into(cls, predictor: Shared, out: str | Path | None, format: str) -> "Drawn":
        """Nothing yet: into the folder that is told, or `pictures/` in the run's, or here for a model that ships."""
        if format not in FORMATS:
            raise SightlineError(f"format must be {one_of(format, FORMATS)}")
        home = Path() if zoo.ships(predictor.folder) else predictor.folder
        folder = home / "pictures" if out is None else Path(out)
        if folder.exists() and not folder.is_dir():
            raise SightlineError(f"out must be a folder, got {str(folder)!r}, which is a file")
        return cls(folder, format)

    def add(self, name: str, draw: "Callable[..., Figure]", *what: Any) -> None:
        """One picture, drawn of `what`, unless there is nothing to draw."""
        try:
            self.files.append(pictures.save(draw(*what), self.folder / f"{name}.{self.format}"))
        except Missing as reason:
            self.left_out[name] = str(reason)

    def add_page(self, page: "Page") -> None:
        """The viewer, beside the pictures."""
        self.files.append(page.save(self.folder / "page.html"))


def curves_of(folder: Path, monitor: str) -> "Figure":
    """Loss, the metric it was evaluate_on by, and learning rate, as the run wrote them down."""
    lines = list(log_lines(folder / LOG))
    panels: dict[str, dict[str, curves.Line]] = {}
    for panel, line, path in (
        ("loss", "training", ("loss",)),
        ("loss", "validation", ("validation", "loss")),
        (f"validation {monitor}", monitor, ("validation", monitor)),
        ("learning rate", "rate", ("learning_rate",)),
    ):
        points = [(fact["step"], value) for fact in lines if (value := number(fact, path)) is not None]
        if points:
            panels.setdefault(panel, {})[line] = ([step for step, _ in points], [value for _, value in points])
    if not panels:
        raise Missing(f"there is no {LOG} with measurements in {zoo.called(folder)}")
    best = [fact["step"] for fact in lines if fact.get("best") is True]
    return curves.curves(panels, best=best[-1] if best else None)


def log_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's log that can be read; a broken one is passed over."""
    if not path.is_file():
        return
    if path.stat().st_size > MOST_BYTES:
        raise Missing(f"{path} is over {MOST_BYTES:,} bytes")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(fact, dict) and number(fact, ("step",)) is not None:
            yield fact


def number(fact: Any, path: tuple[str, ...]) -> float | None:
    """The number at the end of these keys, if it is one that can be drawn."""
    for key in path:
        fact = fact.get(key) if isinstance(fact, dict) else None
    plain = isinstance(fact, int | float) and not isinstance(fact, bool)
    return float(fact) if plain and abs(fact) < 1e30 else None
