"""Plots as SVG text. Colors are CSS classes, so one plot fits light and dark pages."""

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
Line = tuple[Sequence[float], Sequence[float]]
"""x and y values"""


def bar(advantage: float, spread: tuple[float, float], limit: float) -> str:
    """How many times better one side is, on a logarithmic scale from 1 / limit to limit; 1 is in the middle."""
    width, height, middle = 240, 16, 120

    def x(value: float) -> float:
        share = math.log(max(value, 1e-9)) / math.log(limit)
        return round(middle + (middle - 4) * max(-1.0, min(1.0, share)), 1)

    end, low, high = x(advantage), *map(x, sorted(spread))
    kind = "win" if advantage >= 1 else "loss"
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-label="{advantage:.3g} times better">'
        f'<rect class="{kind}" x="{min(end, middle)}" y="4" width="{abs(end - middle):.1f}" height="8" rx="1"/>'
        f'<line class="even" x1="{middle}" x2="{middle}" y1="0" y2="{height}"/>'
        f'<line class="whisker" x1="{low}" x2="{high}" y1="8" y2="8"/></svg>'
    )


def log_plot(title: str, lines: Mapping[str, Line], *, x_label: str, y_format: str, size: tuple[int, int]) -> str:
    """Lines with markers on two logarithmic axes; `y_format` names the unit of the ticks, s or bytes."""
    width, height = size
    left, right, top, bottom = 54, 26, 46 + 14 * ((len(lines) - 1) // 2), 34
    xs = [x for line in lines.values() for x in line[0]]
    ys = [y for line in lines.values() for y in line[1]]
    x_range, y_ticks = (min(xs), max(xs)), _powers(min(ys), max(ys))
    y_range = (y_ticks[0], max(max(ys), y_ticks[-1]))

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / x_range[0]) / math.log(x_range[1] / x_range[0])
        up = math.log(y / y_range[0]) / math.log(y_range[1] / y_range[0])
        return round(left + across * (width - left - right), 1), round(
            height - bottom - up * (height - top - bottom), 1
        )

    parts = [f'<text class="title" x="{left}" y="16">{html.escape(title)}</text>']
    for y in y_ticks:
        level = place(x_range[0], y)[1]
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{level}" y2="{level}"/>')
        parts.append(f'<text x="{left - 6}" y="{level + 4}" text-anchor="end">{_tick(y, y_format)}</text>')
    for x in sorted(set(xs))[:: 1 + len(set(xs)) // 6]:
        parts.append(f'<text x="{place(x, y_range[0])[0]}" y="{height - 18}" text-anchor="middle">{x:,.0f}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 3}" text-anchor="middle">{html.escape(x_label)}</text>')
    for i, (name, (line_xs, line_ys)) in enumerate(lines.items()):
        points = [place(x, y) for x, y in zip(line_xs, line_ys, strict=True)]
        legend_x, legend_y = left + i % 2 * (width - left - right) / 2, 34 + 14 * (i // 2)
        text = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline class="line s{i}" points="{text}"/>')
        parts += [f'<circle class="s{i}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points]
        parts.append(
            f'<line class="line s{i}" x1="{legend_x}" x2="{legend_x + 14}" y1="{legend_y - 4}" y2="{legend_y - 4}"/>'
        )
        parts.append(f'<text x="{legend_x + 19}" y="{legend_y}">{html.escape(name)}</text>')
    size_attributes = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg class="plot" {size_attributes} role="img">{"".join(parts)}</svg>'


def standalone(plots: Sequence[str], size: tuple[int, int]) -> str:
    """Plots of one size side by side, as a file."""
    width, height = size
    moved = "".join(plot.replace("<svg ", f'<svg x="{i * width}" ', 1) for i, plot in enumerate(plots))
    total = width * len(plots)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}" height="{height}">'
        f'<style>{STYLE}</style><rect width="{total}" height="{height}" fill="var(--panel)"/>{moved}</svg>\n'
    )


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten that cover a range, at most six."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1, 1 + (last - first) // 6)]


def _tick(value: float, unit: str) -> str:
    names = {"s": {1.0: "s", 1e-3: "ms", 1e-6: "µs"}, "bytes": {1e9: "GB", 1e6: "MB", 1e3: "kB", 1.0: "B"}}[unit]
    for scale, name in sorted(names.items(), reverse=True):
        if value >= scale * 0.999:
            return f"{value / scale:,.0f} {name}"
    return f"{value:.0e}"
