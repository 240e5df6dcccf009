"""Why a classifier answered as it did, drawn: the image and the examples behind it, their parts aglow. Plain arrays in.

A page needs pillow alone, a picture matplotlib: the extra `plot`.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SightlineError
from ..names import shortened
from .figures import COLORS, figure, name, wrapped
from .overlays import GLOW
from .page import Page, digest, static

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]

MOST_SCORES = 8
"""Classes whose shares are drawn."""
SIDE = 336
"""Pixels of a picture on a page."""
AMBER = "#b25e00"


@dataclass(frozen=True, eq=False)
class Sight:
    """A picture, and what each part of it was worth."""

    name: str
    """Of its file, or its number."""
    pixels: Array | None
    """uint8 (H, W) or (H, W, 3); None where there is no picture."""
    parts: Array | None
    """(rows, columns), what the answer loses without each; None where that is not known."""
    label: str = ""
    """The class of an example."""
    worth: float | None = None
    """What the answer loses without all of an example."""


@dataclass(frozen=True, eq=False)
class Reason:
    """One answer and what it rests on."""

    name: str
    label: str
    known: bool
    confidence: float
    scores: Sequence[tuple[str, float]]
    """A share for each class, the likeliest first."""
    image: Sight
    examples: Sequence[Sight]
    notes: Sequence[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """In a few words."""
        label = shortened(self.label, 60)
        return f"{label} {self.confidence:.1%} (known)" if self.known else f"unknown: none of these (closest {label})"

    @property
    def heading(self) -> str:
        """What the shares of the classes are."""
        return "All scores" if self.known else "If it were one of them"


def glowing(pixels: Array, parts: Array | None, side: int = SIDE) -> Array:
    """The picture as uint8 (side, side, 3), its parts aglow by what they are worth; parts below 0 stay dark."""
    from PIL import Image

    tall, wide = pixels.shape[:2]
    size = (side, max(1, round(side * tall / wide)))
    smooth = Image.Resampling.NEAREST if side >= 4 * wide else Image.Resampling.BICUBIC
    picture = Image.fromarray(pixels).convert("RGB").resize(size, smooth)
    base: Array = np.asarray(picture, dtype=np.float64)
    if parts is None:
        return base.astype(np.uint8)
    heat = np.clip(parts, 0, None).astype(np.float32)
    heat = heat / max(float(heat.max()), 1e-9)
    spread = np.asarray(Image.fromarray(heat).resize(size, Image.Resampling.BICUBIC), dtype=np.float64).clip(0, 1)
    stops = np.array([[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in GLOW], dtype=np.float64)
    where = spread * (len(stops) - 1)
    low = np.minimum(where.astype(int), len(stops) - 2)
    share = (where - low)[..., None]
    color = stops[low] * (1 - share) + stops[low + 1] * share
    gray = base @ (0.299, 0.587, 0.114)
    mixed: Array = 0.42 * gray[..., None] + 0.58 * color
    return mixed.round().clip(0, 255).astype(np.uint8)


def strongest(parts: Array, most: int = 3) -> list[tuple[int, int]]:
    """The parts worth most, as row and column from 1; those worth nothing are left out."""
    order = np.argsort(-parts, axis=None, kind="stable")[:most]
    places = [divmod(int(i), parts.shape[1]) for i in order if parts.flat[i] > 0]
    return [(row + 1, column + 1) for row, column in places]


def picture(reason: Reason) -> Figure:
    """The image, the examples behind the answer, and the shares of the classes, side by side."""
    shown = [sight for sight in (reason.image, *reason.examples) if sight.pixels is not None]
    columns = len(shown) + 1
    wide = 2.5 * columns + 0.6
    title = wrapped(reason.verdict, wide, 13)
    drawn, axes = figure(1, columns, size=(wide, 3.6 + 0.25 * title.count("\n")))
    drawn.set_layout_engine("constrained", h_pad=0.12)
    drawn.suptitle(title, color=COLORS["ink"] if reason.known else AMBER, fontsize=13)
    for ax, sight in zip(axes[0], shown, strict=False):
        assert sight.pixels is not None
        ax.imshow(glowing(sight.pixels, sight.parts), interpolation="none")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.set_title(name(sight.label, 24) or "asked", color=COLORS["ink"], fontsize=10)
        if sight.worth is not None:
            ax.set_xlabel(f"{name(sight.name, 18)}, worth {sight.worth:+.2f}", fontsize=9, color=COLORS["gray"])
    ax = axes[0, -1]
    bars = list(reason.scores[:MOST_SCORES])[::-1]
    inks = [COLORS["gray"]] * (len(bars) - 1) + [COLORS["blue"] if reason.known else COLORS["amber"]]
    ax.barh([name(label, 18) for label, _ in bars], [share for _, share in bars], color=inks, height=0.7)
    ax.set(xlim=(0, 1.18), xticks=[])
    for i, (_, share) in enumerate(bars):
        ax.text(share + 0.02, i, f"{share:.0%}", va="center", fontsize=8, color=COLORS["ink"])
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)
    ax.set_title(reason.heading, color=COLORS["ink"], fontsize=10)
    return drawn


def page(reasons: Sequence[Reason], *, title: str = "Answers") -> Page:
    """One page, a card for each answer; it works from disk, asks no host for anything and needs no script."""
    if not reasons:
        raise SightlineError("reasons must hold at least one answer, got none")
    style = _style()
    policy = f"default-src 'none'; style-src {digest(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    many = f"{len(reasons)} answers" if len(reasons) > 1 else shortened(title, 80)
    known = sum(reason.known for reason in reasons)
    about = f"{known} of {len(reasons)} known" if len(reasons) > 1 else "one answer and what it rests on"
    seen = any(sight.pixels is not None for reason in reasons for sight in (reason.image, *reason.examples))
    switch = '\n<label for="heat">show the parts that matter</label>' if seen else ""
    box = '<input type="checkbox" id="heat" checked>\n' if seen else ""
    bright = "Bright parts are those the answer would miss: each was hidden, and the score of the winning class fell."
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Sightline">
<title>{_text(many)}</title>
<style>{style}</style>
</head>
<body>
{box}<header><h1>{_text(many)}</h1><p>{about}</p>{switch}</header>
<main>
{"".join(_card(reason) for reason in reasons)}
</main>
<footer>{bright if seen else ""}
An example is worth what the score of the winning class loses when the example is left out.</footer>
</body>
</html>
"""
    return Page(text.encode("utf-8", "replace").decode("utf-8"))


def _card(reason: Reason) -> str:
    state = "known" if reason.known else "unknown"
    says = "known" if reason.known else "unknown: belongs to none of the classes"
    verdict = shortened(reason.label, 60) if reason.known else "none of these"
    share = f"{reason.confidence:.1%} sure" if reason.known else f"closest: {shortened(reason.label, 60)}"
    top = max((e.worth or 0.0 for e in reason.examples), default=0.0)
    examples = "".join(_figure(sight, top) for sight in reason.examples)
    bars = "".join(_bar(_text(shortened(label, 40)), share) for label, share in reason.scores[:MOST_SCORES])
    rest = len(reason.scores) - MOST_SCORES
    notes = [*(f"and {rest:,} more classes" for _ in range(rest > 0)), *reason.notes]
    small = "".join(f'<p class="note">{_text(note)}</p>' for note in notes)
    row = "row" if reason.image.pixels is not None else "row blind"
    asked = f'<section class="asked" aria-label="the image that was asked">{_figure(reason.image, 0.0)}</section>'
    return f"""<article class="{state}">
<h2><span class="file">{_text(shortened(reason.name, 60))}</span> <span class="verdict">{_text(verdict)}</span>
<span class="share">{_text(share)}</span> <span class="badge">{says}</span></h2>
<div class="{row}">
{asked if reason.image.pixels is not None else ""}
<section class="behind"><h3>The examples behind it</h3><div class="examples">{examples}</div></section>
<section class="scores"><h3>{reason.heading}</h3><ol>{bars}</ol>{small}</section>
</div>
</article>
"""


def _bar(called: str, share: float) -> str:
    meter = f'<meter min="0" max="1" value="{share:.4f}" aria-label="{called}">{share:.1%}</meter>'
    return f'<li><span class="name">{called}</span><span class="value">{share:.1%}</span>{meter}</li>'


def _figure(sight: Sight, top: float) -> str:
    label, file = (_text(shortened(text, 48)) for text in (sight.label, sight.name))
    called = f"{label}, {file}" if label else file
    if sight.pixels is None:
        images = ""
    else:
        where = strongest(sight.parts) if sight.parts is not None else []
        places = ", ".join(f"row {row} column {column}" for row, column in where)
        rows, columns = (0, 0) if sight.parts is None else sight.parts.shape
        tells = f"; of {rows} x {columns} parts these matter most: {places}" if where else ""
        plain = f'<img class="plain" alt="{called}" src="{_png(sight.pixels, None)}">'
        heat = "" if sight.parts is None else (
            f'<img class="heat" alt="{called}{tells}" src="{_png(sight.pixels, sight.parts)}">'
        )  # fmt: skip
        images = f'<div class="pair{"" if heat else " alone"}">{plain}{heat}</div>'
    worth = ""
    if sight.worth is not None:
        share = 0.0 if top <= 0 else max(0.0, sight.worth / top)
        worth = (
            f'<span class="worth">worth {sight.worth:+.2f}</span>'
            f'<meter min="0" max="1" value="{share:.4f}" aria-label="worth">{sight.worth:+.2f}</meter>'
        )
    names = f'<span class="label">{label}</span><span class="from">{file}</span>' if label else ""
    return f"<figure>{images}<figcaption>{names}{worth}</figcaption></figure>"


def _png(pixels: Array, parts: Array | None) -> str:
    from PIL import Image

    small = parts is None and max(pixels.shape[:2]) < SIDE
    drawn = Image.fromarray(pixels if small else glowing(pixels, parts))
    file = io.BytesIO()
    drawn.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _text(text: str) -> str:
    return html.escape(text)


@cache
def _style() -> str:
    return static("reasons.css")
