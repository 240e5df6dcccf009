"""Explanations of few-shot predictions: cards with the image, its most important support examples and all scores.

A page requires Pillow, a figure also matplotlib (the `plot` extra).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageColor

from ..errors import check
from ..names import shortened
from .figures import COLORS, GRAY_WEIGHTS, HEAT_COLORS, figure, short_label, wrap
from .images import data_url
from .page import Page, html_document, read_static

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]

MAX_SCORES = 8
"""Classes whose scores are shown."""
IMAGE_SIDE = 336
"""Width of an image on a page, in pixels."""
UNKNOWN_COLOR = "#b25e00"
OCCLUSION_NOTE = "Bright regions lower the predicted class's score when occluded."
CONTRIBUTION_NOTE = (
    "The contribution of a support example is the drop of the predicted class's score when the example is left out."
)


@dataclass(frozen=True, eq=False)
class ExplainedImage:
    """The query image or a support example, with its occlusion map."""

    name: str
    """File name or index."""
    pixels: Array | None
    """uint8 (H, W) or (H, W, 3); None if there is no image."""
    occlusion: Array | None
    """(rows, columns), the drop of the predicted class's score when each cell is occluded; None if not computed."""
    label: str = ""
    """Class of a support example."""
    contribution: float | None = None
    """Drop of the predicted class's score without this support example."""


@dataclass(frozen=True, eq=False)
class ExplanationCard:
    """One prediction and its explanation."""

    name: str
    """Name of the query image."""
    label: str
    """Predicted class."""
    known: bool
    confidence: float
    scores: Sequence[tuple[str, float]]
    """Classes and probabilities, highest first."""
    image: ExplainedImage
    examples: Sequence[ExplainedImage]
    """Support examples, largest contribution first."""
    notes: Sequence[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The prediction in a few words."""
        label = shortened(self.label, 60)
        return f"{label} {self.confidence:.1%}" if self.known else f"unknown (closest {label})"

    @property
    def scores_title(self) -> str:
        """What the scores are: conditional on a known class if the prediction is unknown."""
        return "All scores" if self.known else "Scores if it were known"


def overlay_heat(pixels: Array, occlusion: Array | None, side: int = IMAGE_SIDE) -> Array:
    """The image as uint8 (H, side, 3), colored by its occlusion map. Values below 0 count as 0."""
    height, width = pixels.shape[:2]
    size = (side, max(1, round(side * height / width)))
    resampling = Image.Resampling.NEAREST if side >= 4 * width else Image.Resampling.BICUBIC
    base: Array = np.asarray(Image.fromarray(pixels).convert("RGB").resize(size, resampling), dtype=np.float64)
    if occlusion is None:
        return base.astype(np.uint8)
    heat = np.clip(occlusion, 0, None).astype(np.float32)
    heat = heat / max(float(heat.max()), 1e-9)
    heat = np.asarray(Image.fromarray(heat).resize(size, Image.Resampling.BICUBIC), dtype=np.float64).clip(0, 1)
    levels, channels = np.linspace(0, 1, len(HEAT_COLORS)), zip(*map(ImageColor.getrgb, HEAT_COLORS), strict=True)
    color = np.stack([np.interp(heat, levels, channel) for channel in channels], -1)
    mixed: Array = 0.42 * (base @ GRAY_WEIGHTS)[..., None] + 0.58 * color
    return mixed.round().clip(0, 255).astype(np.uint8)


def strongest_cells(occlusion: Array, count: int = 3) -> list[tuple[int, int]]:
    """The cells with the largest positive values, as (row, column) from 1."""
    order = np.argsort(-occlusion, axis=None, kind="stable")[:count]
    cells = [divmod(int(i), occlusion.shape[1]) for i in order if occlusion.flat[i] > 0]
    return [(row + 1, column + 1) for row, column in cells]


def explanation_figure(card: ExplanationCard) -> Figure:
    """Draw the query image, its support examples and the scores side by side."""
    images = [image for image in (card.image, *card.examples) if image.pixels is not None]
    columns = len(images) + 1
    width = 2.5 * columns + 0.6
    title = wrap(card.title, width, 13)
    fig, axes = figure(1, columns, size=(width, 3.6 + 0.25 * title.count("\n")))
    fig.set_layout_engine("constrained", h_pad=0.12)
    fig.suptitle(title, color=COLORS["ink"] if card.known else UNKNOWN_COLOR, fontsize=13)
    for ax, image in zip(axes[0], images, strict=False):
        assert image.pixels is not None
        ax.imshow(overlay_heat(image.pixels, image.occlusion), interpolation="none")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.set_title(short_label(image.label, 24) or "query", color=COLORS["ink"], fontsize=10)
        if image.contribution is not None:
            text = f"{short_label(image.name, 18)}\ncontribution {image.contribution:+.2f}"
            ax.set_xlabel(text, fontsize=9, color=COLORS["gray"])
    ax = axes[0, -1]
    bars = list(card.scores[:MAX_SCORES])[::-1]
    colors = [COLORS["gray"]] * (len(bars) - 1) + [COLORS["blue"] if card.known else COLORS["amber"]]
    ax.barh([short_label(label, 18) for label, _ in bars], [score for _, score in bars], color=colors, height=0.7)
    ax.set(xlim=(0, 1.18), xticks=[])
    for i, (_, score) in enumerate(bars):
        ax.text(score + 0.02, i, f"{score:.0%}", va="center", fontsize=8, color=COLORS["ink"])
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)
    ax.set_title(card.scores_title, color=COLORS["ink"], fontsize=10)
    return fig


def explanation_page(cards: Sequence[ExplanationCard], *, title: str = "Predictions") -> Page:
    """One self-contained page with a card for each prediction. It has no script and makes no network request."""
    check(cards, "cards must contain at least one prediction, got none")
    heading, subheading = shortened(title, 80), "Prediction and explanation"
    if len(cards) > 1:
        heading, subheading = f"{len(cards)} predictions", f"{sum(card.known for card in cards)} of {len(cards)} known"
    has_images = any(image.pixels is not None for card in cards for image in (card.image, *card.examples))
    checkbox = '<input type="checkbox" id="heat" checked>\n' if has_images else ""
    label = '\n<label for="heat">Show occlusion maps</label>' if has_images else ""
    body = f"""{checkbox}<header><h1>{html.escape(heading)}</h1><p>{subheading}</p>{label}</header>
<main>
{"".join(_card(card) for card in cards)}
</main>
<footer>{OCCLUSION_NOTE if has_images else ""}
{CONTRIBUTION_NOTE}</footer>"""
    text = html_document(heading, body, style=read_static("explanations.css"), policy="img-src data:")
    return Page(text.encode("utf-8", "replace").decode("utf-8"))


def _card(card: ExplanationCard) -> str:
    state, badge = ("known", "known") if card.known else ("unknown", "none of the classes")
    label = shortened(card.label, 60)
    prediction = label if card.known else "unknown"
    detail = f"confidence {card.confidence:.1%}" if card.known else f"closest: {label}"
    largest = max((example.contribution or 0.0 for example in card.examples), default=0.0)
    examples = "".join(_figure(example, largest) for example in card.examples)
    bars = "".join(_score_bar(html.escape(shortened(name, 40)), score) for name, score in card.scores[:MAX_SCORES])
    hidden = len(card.scores) - MAX_SCORES
    notes = ([f"and {hidden:,} more classes"] if hidden > 0 else []) + list(card.notes)
    small = "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)
    layout, query = "row no-image", ""
    if card.image.pixels is not None:
        layout = "row"
        query = f'<section class="query" aria-label="Query image">{_figure(card.image, 0.0)}</section>'
    return f"""<article class="{state}">
<h2><span class="file">{html.escape(shortened(card.name, 60))}</span>
<span class="prediction">{html.escape(prediction)}</span>
<span class="detail">{html.escape(detail)}</span> <span class="badge">{badge}</span></h2>
<div class="{layout}">
{query}
<section class="support"><h3>Support examples</h3><div class="examples">{examples}</div></section>
<section class="scores"><h3>{card.scores_title}</h3><ol>{bars}</ol>{small}</section>
</div>
</article>
"""


def _score_bar(label: str, score: float) -> str:
    meter = f'<meter min="0" max="1" value="{score:.4f}" aria-label="{label}">{score:.1%}</meter>'
    return f'<li><span class="name">{label}</span><span class="value">{score:.1%}</span>{meter}</li>'


def _figure(image: ExplainedImage, largest: float) -> str:
    label, name = (html.escape(shortened(text, 48)) for text in (image.label, image.name))
    alt = f"{label}, {name}" if label else name
    images = "" if image.pixels is None else _images(image.pixels, image.occlusion, alt)
    contribution = ""
    if image.contribution is not None:
        fraction = 0.0 if largest <= 0 else max(0.0, image.contribution / largest)
        value = f"{image.contribution:+.2f}"
        contribution = (
            f'<span class="contribution">contribution {value}</span>'
            f'<meter min="0" max="1" value="{fraction:.4f}" aria-label="contribution">{value}</meter>'
        )
    names = f'<span class="label">{label}</span><span class="source">{name}</span>' if label else ""
    return f"<figure>{images}<figcaption>{names}{contribution}</figcaption></figure>"


def _images(pixels: Array, occlusion: Array | None, alt: str) -> str:
    """The image, and the image with its occlusion map if there is one; a style rule shows one of them."""
    plain = f'<img class="plain" alt="{alt}" src="{_data_url(pixels, None)}">'
    if occlusion is None:
        return f'<div class="image only">{plain}</div>'
    cells = ", ".join(f"row {row} column {column}" for row, column in strongest_cells(occlusion))
    rows, columns = occlusion.shape
    described = f"{alt}; most important of {rows} x {columns} regions: {cells}" if cells else alt
    heat = f'<img class="heat" alt="{described}" src="{_data_url(pixels, occlusion)}">'
    return f'<div class="image">{plain}{heat}</div>'


def _data_url(pixels: Array, occlusion: Array | None) -> str:
    as_is = occlusion is None and max(pixels.shape[:2]) < IMAGE_SIDE
    return data_url(Image.fromarray(pixels if as_is else overlay_heat(pixels, occlusion)), "png")
