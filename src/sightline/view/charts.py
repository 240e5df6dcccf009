"""Charts of trials as SVG text: scatter plots, curves, parallel coordinates and bars.

Elements of a trial have the attribute `data-trial`; `trials.js` highlights and selects them in all charts of a page.
Colors are CSS classes of `trials.css`.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..names import shortened
from .reports import ticks

WIDTH, HEIGHT = 420, 270
"""Of a chart in its own units; a page scales it."""
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 44
AXIS_WIDTH, AXIS_HEIGHT = 112, 260
"""Distance and height of the axes of parallel coordinates, in pixels."""
MAX_LABEL_CHARS = 14
NUM_SHADES = 5
"""Colors of lines by value, from the worst to the best fifth."""
UNUSED = "none"
"""Label of a value that a trial does not have."""


@dataclass(frozen=True)
class Scale:
    """An axis: where values are, from 0 to 1, and its labels."""

    name: str
    position: Callable[[Any], float]
    labels: Sequence[tuple[float, str]]
    """Positions and texts."""

    @classmethod
    def linear(cls, name: str, values: Sequence[float], *, integer: bool = False) -> "Scale":
        """A linear axis with round numbers, or with integers, that covers the values."""
        marks = ticks(min(values, default=0.0), max(values, default=1.0), 1.0 if integer else 0.0)
        low, span = marks[0], marks[-1] - marks[0]
        return cls(name, lambda x: (x - low) / span, [((mark - low) / span, f"{mark:,g}") for mark in marks])

    @classmethod
    def logarithmic(cls, name: str, values: Sequence[float]) -> "Scale":
        """A logarithmic axis that covers the positive values, with 1, 2 or 5 times powers of ten as labels."""
        positive = [math.log10(x) for x in values if x > 0] or [0.0]
        low, high = min(positive), max(positive)
        middle, half = (low + high) / 2, max((high - low) / 2 * 1.04, 0.05)
        low, high = middle - half, middle + half
        exponents = range(math.floor(low), math.ceil(high) + 1)
        factors = (1,) if high - low > 2.5 else (1, 2, 5)
        marks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        inside = [mark for mark in marks if low <= math.log10(mark) <= high]
        marks = inside if len(inside) > 1 else [10**low, 10**high]

        def place(x: float) -> float:
            return (math.log10(max(x, 1e-300)) - low) / (high - low)

        return cls(name, place, [(place(mark), short_number(mark)) for mark in marks])

    @classmethod
    def categories(cls, name: str, values: Sequence[Any], labels: Sequence[str]) -> "Scale":
        """Values side by side, in this order. Any other value is at 0."""
        count = len(values)
        places = [(i + 0.5) / count for i in range(count)]

        def place(value: Any) -> float:
            matches = (p for p, v in zip(places, values, strict=True) if v == value and type(v) is type(value))
            return next(matches, 0.0)

        return cls(name, place, list(zip(places, labels, strict=True)))


@dataclass(frozen=True)
class Mark:
    """A trial in a chart: its index, CSS classes, and the text that describes it."""

    trial: int
    kind: str
    tip: str

    @property
    def attributes(self) -> str:
        """Attributes of its element."""
        return f'class="trial {self.kind}" data-trial="{self.trial}"'


def scatter(
    x: Scale,
    y: Scale,
    points: Sequence[tuple[Mark, Any, float]],
    *,
    front: Sequence[tuple[Any, float]] = (),
    means: Sequence[tuple[float, float, float, float]] = (),
) -> str:
    """Points of trials. `front` is a staircase; `means` are a position from 0 to 1, a mean and its interval each."""
    parts = _frame(x, y)
    if front:
        steps = [(_across(x.position(front[0][0])), _up(y.position(front[0][1])))]
        for a, b in front[1:]:
            steps += [(_across(x.position(a)), steps[-1][1]), (_across(x.position(a)), _up(y.position(b)))]
        steps.append((WIDTH - RIGHT, steps[-1][1]))
        parts.append(f'<polyline class="front" points="{_points(steps)}"/>')
    for mark, a, b in points:
        place = f'cx="{_across(x.position(a)):.1f}" cy="{_up(y.position(b)):.1f}"'
        parts.append(f'<circle {mark.attributes} {place} r="4"><title>{_text(mark.tip)}</title></circle>')
    for at, mean, low, high in means:
        left, top, bottom = _across(at), _up(y.position(high)), _up(y.position(low))
        parts.append(f'<line class="interval" x1="{left:.1f}" x2="{left:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        level = f"{_up(y.position(mean)):.1f}"
        parts.append(f'<line class="mean" x1="{left - 9:.1f}" x2="{left + 9:.1f}" y1="{level}" y2="{level}"/>')
    return _svg("chart", WIDTH, HEIGHT, parts)


def curves(x: Scale, y: Scale, lines: Sequence[tuple[Mark, Sequence[tuple[float, float]]]]) -> str:
    """One line for each trial; a line of one point is a dot."""
    parts = _frame(x, y)
    for mark, points in lines:
        placed = [(_across(x.position(a)), _up(y.position(b))) for a, b in points]
        title = f"<title>{_text(mark.tip)}</title>"
        if len(placed) == 1:
            [(left, top)] = placed
            parts.append(f'<circle {mark.attributes} cx="{left:.1f}" cy="{top:.1f}" r="2.5">{title}</circle>')
        elif placed:
            parts.append(f'<polyline {mark.attributes} points="{_points(placed)}">{title}</polyline>')
    return _svg("chart", WIDTH, HEIGHT, parts)


def parallel(axes: Sequence[Scale], lines: Sequence[tuple[Mark, Sequence[Any]]]) -> str:
    """Parallel coordinates: a line for each trial through its values. A value None is below its axis."""
    top, bottom, unused = 36, 36 + AXIS_HEIGHT, 60 + AXIS_HEIGHT
    parts = []
    for mark, values in lines:
        placed = [
            (AXIS_WIDTH * (i + 0.5), unused if value is None else bottom - AXIS_HEIGHT * _inside(axis.position(value)))
            for i, (axis, value) in enumerate(zip(axes, values, strict=True))
        ]
        title = f"<title>{_text(mark.tip)}</title>"
        parts.append(f'<polyline {mark.attributes} points="{_points(placed)}">{title}</polyline>')
    for i, axis in enumerate(axes):
        x, has_unused = AXIS_WIDTH * (i + 0.5), any(values[i] is None for _, values in lines)
        end = unused if has_unused else bottom
        labels = [(bottom - AXIS_HEIGHT * position, text) for position, text in axis.labels]
        labels += [(unused, UNUSED)] if has_unused else []
        parts += [
            f'<g class="axis" tabindex="0" role="group" aria-label="{_text(axis.name)}">',
            f"<title>{_text(axis.name)}: drag to select trials</title>",
            f'<rect class="grab" x="{x - 22:g}" y="{top - 8}" width="44" height="{end - top + 16}"/>',
            f'<line x1="{x:g}" x2="{x:g}" y1="{top}" y2="{bottom}"/>',
            f'<rect class="brush" x="{x - 9:g}" y="0" width="18" height="0" rx="4"/>',
            f'<text class="name" x="{x:g}" y="16" text-anchor="middle">{_text(_end(axis.name))}</text>',
        ]
        for y, text in labels:
            shown = _text(shortened(text, MAX_LABEL_CHARS))
            parts.append(f'<text class="halo" x="{x + 6:g}" y="{y + 4:.1f}">{shown}</text>')
        parts.append("</g>")
    return f'<div class="scroll">{_svg("parallel", AXIS_WIDTH * len(axes), unused + 14, parts)}</div>'


def bars(rows: Sequence[tuple[str, float, float, float, bool]]) -> str:
    """Horizontal bars from 0 to 1: name, value, its interval, and whether it is clear."""
    left, right, pitch = 140, 46, 24

    def across(value: float) -> float:
        return left + min(1.0, max(0.0, value)) * (WIDTH - left - right)

    parts = []
    for i, (name, value, low, high, is_clear) in enumerate(rows):
        y, kind = 4 + pitch * i, "bar" if is_clear else "bar unclear"
        tip = f"{name}: {value:.1%}, 95% interval {low:.1%} to {high:.1%}"
        ends = f'x1="{across(low):.1f}" x2="{across(high):.1f}" y1="{y + 8}" y2="{y + 8}"'
        parts += [
            f"<g><title>{_text(tip)}</title>",
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{_text(shortened(name, 22))}</text>',
            f'<rect class="{kind}" x="{left}" y="{y}" width="{across(value) - left:.1f}" height="16" rx="3"/>',
            f'<line class="interval" {ends}/>',
            f'<text x="{across(high) + 6:.1f}" y="{y + 12}">{value:.0%}</text></g>',
        ]
    return _svg("chart", WIDTH, pitch * len(rows) + 4, parts)


def short_number(value: float) -> str:
    """A number in at most six characters: 0.002, 20, 5k, 2M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.2g}"


def _frame(x: Scale, y: Scale) -> list[str]:
    """Axes with labels and grid lines."""
    parts = []
    for position, text in y.labels:
        level = f"{_up(position):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level}" y2="{level}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{_up(position) + 4:.1f}" text-anchor="end">{_text(text)}</text>')
    step = 1 + (len(x.labels) - 1) // 7
    for position, text in x.labels[::step]:
        shown = _text(shortened(text, MAX_LABEL_CHARS if len(x.labels) < 4 else 8))
        parts.append(
            f'<text x="{_across(position):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{shown}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="name" x="{middle:g}" y="{HEIGHT - 6}" text-anchor="middle">{_text(x.name)}</text>')
    return parts


def _inside(position: float) -> float:
    return min(1.0, max(0.0, position))


def _across(position: float) -> float:
    return LEFT + _inside(position) * (WIDTH - LEFT - RIGHT)


def _up(position: float) -> float:
    return HEIGHT - BOTTOM - _inside(position) * (HEIGHT - TOP - BOTTOM)


def _end(name: str) -> str:
    """The last part of a config key."""
    return shortened(name.rpartition(".")[2], MAX_LABEL_CHARS + 2)


def _points(placed: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)


def _svg(kind: str, width: float, height: float, parts: Sequence[str]) -> str:
    size = f' width="{width:g}" height="{height:g}"' if kind == "parallel" else ""
    return f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}"{size}>{"".join(parts)}</svg>'


def _text(text: str) -> str:
    return html.escape(text)
