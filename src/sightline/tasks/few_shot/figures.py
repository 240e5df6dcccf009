"""Pictures of a few-shot run: how training went, and what its attention became, head by head."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from ... import zoo
from ...view import curves
from ..figures import LOG, Drawn, Missing, curves_of, log_lines, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .predictor import FewShotPredictor

PANELS = {"temperature": "temperature of each head", "entropy": "entropy of attention, bits"}


def show(predictor: "FewShotPredictor", out: str | Path | None = None, *, format: str = "png") -> Drawn:
    """Draw them into a folder; without `out` it is as `Drawn.into` says."""
    drawn = Drawn.into(predictor, out, format)
    drawn.add("training", curves_of, predictor.folder, "accuracy")
    drawn.add("attention", attention, predictor)
    return drawn


def attention(predictor: "FewShotPredictor") -> "Figure":
    """The temperature and the entropy of every head over training, as the run wrote them down."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for fact in log_lines(predictor.folder / LOG):
        for name in fact.get("validation") or {}:
            kind, slash, head = name.partition("/")
            value = number(fact, ("validation", name))
            if slash and kind in PANELS and value is not None:
                found[PANELS[kind]][head].append((fact["step"], value))
    if not found:
        raise Missing(f"there is no {LOG} with temperatures in {zoo.called(predictor.folder)}")
    panels = {
        panel: {head: ([step for step, _ in points], [value for _, value in points]) for head, points in lines.items()}
        for panel, lines in sorted(found.items(), reverse=True)
    }
    return curves.curves(panels, title="Attention over training")
