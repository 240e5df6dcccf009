"""Report pages: figures, tables, matrices, curves and images in one self-contained page."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from ..names import shortened
from .images import MAX_LOSSLESS_SIDE, WEBP_OPTIONS, data_url
from .page import Page, csp_hash, html_document, json_for_html, read_static

Array = np.ndarray[Any, Any]
IMAGE_SIDE = 160
"""Largest width and height of an image of a report, in pixels."""
MAX_MATRIX_SIDE = 60
"""Rows and columns of a matrix that are drawn."""
MAX_NUMBERED_SIDE = 30
"""Rows and columns of a matrix whose numbers are written into the cells."""
MAX_NAME_CHARS = 28
CELL, CHAR_WIDTH = 26, 6.4
"""Side of a cell and width of a character of a matrix, in pixels."""
NUM_LINE_COLORS = 6
"""Colors of curves; with more lines they repeat."""


@dataclass(frozen=True, eq=False)
class ReportImage:
    """An image with a few lines of text below it; the first line is bold."""

    pixels: Array | None
    """uint8 (H, W) or (H, W, 3); None if there is no image."""
    lines: Sequence[str]


class Report:
    """A page that is built section by section."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = shortened(title, 120)
        self._parts = [f"<header><h1>{_text(self.title)}</h1><p>{_text(subtitle)}</p></header>"]

    def add_figures(self, figures: Sequence[tuple[str, str, str]]) -> None:
        """Large numbers side by side: name, value and a note each."""
        tiles = (
            f'<div class="tile"><span>{_text(name)}</span><b>{_text(value)}</b><small>{_text(note)}</small></div>'
            for name, value, note in figures
        )
        self._parts.append(f'<div class="tiles">{"".join(tiles)}</div>')

    def add_table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
        """A table; the first column is left-aligned, the others right-aligned."""
        head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
        body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
        table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        self._add_section(title, table, note)

    def add_matrix(
        self, title: str, rows: Sequence[str], columns: Sequence[str], counts: Array, is_right: Array, note: str = ""
    ) -> None:
        """Counts (rows, columns) as a picture. The shade of a cell is its share of the row, its color whether it is
        right.
        """
        self._add_section(title, f'<div class="scroll">{_matrix(rows, columns, counts, is_right)}</div>', note)

    def add_curves(self, title: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], note: str) -> None:
        """Lines by name, each with its x and y values."""
        self._add_section(title, _curves(lines), note)

    def add_images(self, title: str, images: Sequence[ReportImage], note: str = "") -> None:
        """Images in a grid."""
        figures = []
        for image in images:
            first, *rest = image.lines
            picture = "" if image.pixels is None else f'<img src="{_source(image.pixels)}" alt="{_text(first)}">'
            lines = "".join(f"<span>{_text(line)}</span>" for line in rest)
            figures.append(f"<figure>{picture}<figcaption><b>{_text(first)}</b>{lines}</figcaption></figure>")
        self._add_section(title, f'<div class="images">{"".join(figures)}</div>', note)

    def add_paragraphs(self, title: str, paragraphs: Sequence[str]) -> None:
        """Text."""
        text = "".join(f'<p class="finding">{_text(paragraph)}</p>' for paragraph in paragraphs)
        self._add_section(title, text, "")

    def add_charts(self, title: str, charts: Sequence[str], note: str = "") -> None:
        """Charts of `charts.py` in a grid."""
        content = charts[0] if len(charts) == 1 else f'<div class="charts">{"".join(charts)}</div>'
        self._add_section(title, content, note)

    def page(self, script: str = "", style: str = "", data: Any = None) -> Page:
        """The page with all sections. A script finds `data` as JSON in the element `sightline-data`."""
        policy, parts = "img-src data:", list(self._parts)
        if script:
            policy = f"{policy}; script-src {csp_hash(script)}"
            parts.append(f'<script type="application/json" id="sightline-data">{json_for_html(data)}</script>')
            parts.append(f'<script type="module">{script}</script>')
        text = html_document(self.title, "\n".join(parts), style=read_static("reports.css") + style, policy=policy)
        return Page(text.encode("utf-8", "replace").decode("utf-8"))

    def _add_section(self, title: str, content: str, note: str) -> None:
        note = f"<p>{_text(note)}</p>" if note else ""
        self._parts.append(f"<section><h2>{_text(title)}</h2>{note}{content}</section>")


def _text(text: str) -> str:
    return html.escape(text)


def _source(pixels: Array) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    is_small = max(image.size) <= MAX_LOSSLESS_SIDE
    return data_url(image, "png") if is_small else data_url(image, "webp", **WEBP_OPTIONS)


def _matrix(rows: Sequence[str], columns: Sequence[str], counts: Array, is_right: Array) -> str:
    row_names, column_names = ([shortened(name, MAX_NAME_CHARS) for name in names] for names in (rows, columns))
    left = round(14 + CHAR_WIDTH * max(map(len, row_names), default=0))
    top = round(14 + 0.8 * CHAR_WIDTH * max(map(len, column_names), default=0))
    width, height = left + CELL * len(columns) + top, top + CELL * len(rows) + 8
    has_numbers = max(len(rows), len(columns)) <= MAX_NUMBERED_SIDE
    parts = []
    for j, name in enumerate(column_names):
        x, y = left + CELL * j + CELL // 2, top - 6
        parts.append(f'<text x="{x}" y="{y}" transform="rotate(-55 {x} {y})">{_text(name)}</text>')
    for i, name in enumerate(row_names):
        y = top + CELL * i
        parts.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{_text(name)}</text>')
        total = max(1, int(counts[i].sum()))
        for j, count in enumerate(counts[i].tolist()):
            kind = "right" if is_right[i, j] else "wrong"
            x, share = left + CELL * j, count / total
            tip = f"{rows[i]} → {columns[j]}: {count:,} of {total:,}"
            parts.append(
                f'<g><title>{_text(tip)}</title><rect class="cell" x="{x}" y="{y}" width="24" height="24" rx="4"/>'
                f'<rect class="{kind}" x="{x}" y="{y}" width="24" height="24" rx="4" fill-opacity="{share**0.6:.3f}"/>'
            )
            if has_numbers and count:
                shade = ' class="strong"' if share > 0.5 else ""
                parts.append(f'<text{shade} x="{x + 12}" y="{y + 16}" text-anchor="middle">{count}</text>')
            parts.append("</g>")
    return (
        f'<svg class="matrix" viewBox="0 0 {width} {height}" width="{width}" height="{height}">{"".join(parts)}</svg>'
    )


def _curves(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    width, height, left, right, bottom = 720, 300, 60, 16, 30
    top = 20 + 18 * -(-len(lines) // 3)
    xs = [x for line_xs, _ in lines.values() for x in line_xs]
    ys = [y for _, line_ys in lines.values() for y in line_ys]
    x_ticks, y_ticks = (ticks(min(values), max(values)) for values in (xs, ys))
    x_low, x_high, y_low, y_high = min(xs), max(max(xs), min(xs) + 1e-9), y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (x - x_low) / (x_high - x_low) * (width - left - right)
        return round(across, 1), round(height - bottom - (y - y_low) / (y_high - y_low) * (height - top - bottom), 1)

    parts = []
    for y in y_ticks:
        level = place(x_low, y)[1]
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{level}" y2="{level}"/>')
        parts.append(f'<text x="{left - 8}" y="{level + 4}" text-anchor="end">{y:g}</text>')
    for x in (tick for tick in x_ticks if x_low <= tick <= x_high):
        parts.append(f'<text x="{place(x, y_low)[0]}" y="{height - 10}" text-anchor="middle">{x:,g}</text>')
    for i, (name, (line_xs, line_ys)) in enumerate(lines.items()):
        points = [place(x, y) for x, y in zip(line_xs, line_ys, strict=True)]
        color = f"s{i % NUM_LINE_COLORS}"
        parts.append(f'<polyline class="line {color}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>')
        parts += [f'<circle class="{color}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points[:: 1 + len(points) // 60]]
        x, y = left + i % 3 * (width - left - right) / 3, 14 + 18 * (i // 3)
        parts.append(f'<line class="line {color}" x1="{x:.0f}" x2="{x + 16:.0f}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(f'<text x="{x + 22:.0f}" y="{y}">{_text(shortened(name, MAX_NAME_CHARS))}</text>')
    return f'<svg class="curves" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'


def ticks(low: float, high: float, min_step: float = 0.0) -> list[float]:
    """Up to ten round numbers that cover a range, and four at least unless their distance would be below `min_step`."""
    span = max(high - low, abs(high) * 1e-3, 1e-9)
    power = 10.0 ** math.floor(math.log10(span))
    step = next(power * factor for factor in (0.1, 0.2, 0.5, 1, 2) if span / (power * factor) <= 8)
    step = max(step, min_step)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [round(i * step, 12) for i in range(first, last + 1)]
