"""Explanations of few-shot predictions: what speaks for a class and against it, as a page or as a figure.

All effects are differences of log odds: of a class against all others, or against one other class. The regions of the
query share one heat scale, and so do all support examples. A figure requires matplotlib (the `plot` extra).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import check
from ..names import shortened
from . import heatmaps
from .figures import COLORS, escape, figure, short_label, wrap
from .images import ImageTable
from .page import Page, cards_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]

MAX_SCORES = 8
"""Classes whose scores are shown."""
MAX_COMPARED_CLASSES = 12
"""Classes that a page can compare; the most likely ones."""
MAX_PAGE_EXAMPLES = 24
"""Support examples of a prediction that a page contains."""
MIN_RELATIVE_CONTRIBUTION = 0.02
"""Contribution of a support example that is shown, relative to the largest."""
QUERY_SIDE, EXAMPLE_SIDE, FIGURE_SIDE = 224, 112, 336
"""Largest width and height of a query, of a support example on a page, and of an image in a figure, in pixels."""
MAX_FIGURE_WORDS = 16
"""Words of a text in a figure: those with the largest effects."""
UNKNOWN_COLOR = "#b25e00"


@dataclass(frozen=True, eq=False)
class ExplainedImage:
    """The query image or a support example, with its effect on the log odds."""

    name: str
    """File name or index."""
    pixels: Array | None
    """uint8 (H, W) or (H, W, 3); None if there is no image."""
    regions: Array | None
    """(rows, columns), None if not computed. Of the query, the decrease of the log odds when each region is occluded;
    of a support example, its contribution multiplied by the similarity of each region to the query, at most 1."""
    label: str = ""
    """Class of a support example."""
    contribution: float | None = None
    """Decrease of the log odds without this support example; negative if it speaks against the class."""

    @property
    def shown_regions(self) -> Array | None:
        """`regions`; of a support example without them, its contribution as that of one region."""
        if self.regions is not None or self.contribution is None:
            return self.regions
        return np.full((1, 1), self.contribution)


@dataclass(frozen=True, eq=False)
class Example:
    """A support example and its effect on all classes."""

    name: str
    label: str
    pixels: Array | None
    decreases: Array
    """(way,), the decrease of each class's log probability without the example."""
    shares: Array | None = None
    """(rows, columns), the similarity of regions of the example to the query, from 0 to 1 for the most similar one."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The log probability of each class, and its decrease without each region and without each support example."""

    classes: Sequence[str]
    log_probabilities: Array
    """(way,)"""
    name: str
    pixels: Array | None
    """The query image, uint8 (H, W) or (H, W, 3)."""
    decreases: Array | None
    """(rows, columns, way), 0 in regions that were not occluded; None without an image."""
    examples: Sequence[Example]
    words: Sequence[str] | None = None
    """The words of a text; `decreases` is then (1, words, way), without each word."""

    @cached_property
    def example_decreases(self) -> Array:
        """Those of all support examples: (S, way)"""
        return np.stack([example.decreases for example in self.examples])

    def log_odds(self, label: str, other: str | None = None) -> float:
        """The log odds of a class against another one, or against all others."""
        return float(self._log_odds(self.log_probabilities, label, other))

    def effects(self, decreases: Array, label: str, other: str | None = None) -> Array:
        """The decrease of the log odds by decreases (..., way) of log probabilities: (...)"""
        reduced = self._log_odds(self.log_probabilities - decreases, label, other)
        effects: Array = self.log_odds(label, other) - reduced
        return effects

    def answer(self, label: str, other: str | None, images: int) -> tuple[ExplainedImage, tuple[ExplainedImage, ...]]:
        """Why this class: the query with its map, and at most `images` examples for the class and against it each.

        Examples are in descending order of their contribution.
        """
        image_map = None if self.decreases is None else self.effects(self.decreases, label, other)
        examples = []
        for i in self.strongest(label, other, images):
            e = self.examples[i]
            contribution = float(self.effects(e.decreases, label, other))
            example_map = None if e.shares is None else contribution * e.shares
            examples.append(ExplainedImage(e.name, e.pixels, example_map, e.label, contribution))
        return ExplainedImage(self.name, self.pixels, image_map), tuple(examples)

    def strongest(self, label: str, other: str | None, count: int) -> list[int]:
        """Indices of the `count` examples that speak most for a class and of the `count` most against it; at least one.

        They are in descending order of their contribution.
        """
        contributions = self.effects(self.example_decreases, label, other)
        order = np.argsort(-contributions, kind="stable")
        least = MIN_RELATIVE_CONTRIBUTION * np.abs(contributions).max()
        positive, negative = order[contributions[order] > least][:count], order[contributions[order] < -least][-count:]
        shown: list[int] = np.concatenate((positive, negative)).tolist()
        return shown or order[:1].tolist()

    def _log_odds(self, log_probabilities: Array, label: str, other: str | None) -> Array:
        index = self.classes.index(label)
        if other is not None:
            difference: Array = log_probabilities[..., index] - log_probabilities[..., self.classes.index(other)]
            return difference
        others = np.delete(log_probabilities, index, -1)
        odds: Array = log_probabilities[..., index] - np.logaddexp.reduce(others, -1)
        return odds


@dataclass(frozen=True, eq=False)
class ExplanationCard:
    """One prediction and its explanation."""

    name: str
    """Name of the query image."""
    prediction: str
    """Predicted class."""
    known: bool
    confidence: float
    scores: Sequence[tuple[str, float]]
    """Classes and probabilities, highest first."""
    evidence: Evidence
    label: str
    """The class that is explained."""
    other: str | None = None
    """The class that it is compared with; None for all others."""
    images: int = 3
    """Support examples for the class, and against it, that are shown."""
    notes: Sequence[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The prediction in a few words."""
        label = shortened(self.prediction, 60)
        return f"{label} {self.confidence:.1%}" if self.known else f"unknown (closest {label})"

    @property
    def scores_title(self) -> str:
        """What the scores are: conditional on a known class if the prediction is unknown."""
        return "All scores" if self.known else "Scores if it were known"


def explanation_figure(card: ExplanationCard) -> Figure:
    """Draw the query image, its support examples and the scores side by side; of a text, `text_figure`."""
    if card.evidence.words is not None:
        return text_figure(card)
    query, examples = card.evidence.answer(card.label, card.other, card.images)
    images = [image for image in (query, *examples) if image.pixels is not None]
    query_scale, example_scale = (
        heatmaps.common_scale(image.shown_regions for image in x) for x in ([query], examples)
    )
    columns = len(images) + 1
    width = 2.5 * columns + 0.6
    title = wrap(card.title, width, 13)
    fig, axes = figure(1, columns, size=(width, 3.6 + 0.25 * title.count("\n")))
    fig.set_layout_engine("constrained", h_pad=0.12)
    fig.suptitle(title, color=COLORS["ink"] if card.known else UNKNOWN_COLOR, fontsize=13)
    for ax, image in zip(axes[0], images, strict=False):
        assert image.pixels is not None
        scale = query_scale if image is query else example_scale
        heatmaps.draw(ax, image.pixels, image.shown_regions, scale, FIGURE_SIDE)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.set_title(short_label(image.label, 24) or "query", color=COLORS["ink"], fontsize=10)
        if image.contribution is not None:
            side = "for" if image.contribution > 0 else "against"
            text = f"{short_label(image.name, 18)}\n{side}: {image.contribution:+.2f}"
            ax.set_xlabel(text, fontsize=9, color=COLORS["gray"])
    _draw_scores(axes[0, -1], card)
    return fig


def text_figure(card: ExplanationCard) -> Figure:
    """Draw the effects of the words of a text, those of its support texts, and the scores side by side."""
    query, examples = card.evidence.answer(card.label, card.other, card.images)
    effects = [] if query.regions is None else query.regions[0].tolist()
    words = list(zip(card.evidence.words or (), effects, strict=True))
    strongest = sorted(range(len(words)), key=lambda i: -abs(words[i][1]))[:MAX_FIGURE_WORDS]
    lines = [(textwrap.fill(shortened(f"{e.label}: {e.name}", 120), 40), e.contribution or 0.0) for e in examples]
    counts = (len(strongest), len(lines), len(card.scores[:MAX_SCORES]))
    row_height, width = 0.28 + 0.12 * max(text.count("\n") for text, _ in lines), 11.5
    title = wrap(f"{shortened(card.name, 200)}\n{card.title}", width, 13)
    fig, axes = figure(1, 3, size=(width, 1.3 + row_height * max(counts) + 0.25 * title.count("\n")))
    fig.suptitle(title, color=COLORS["ink"] if card.known else UNKNOWN_COLOR, fontsize=13)
    omitted = len(words) - len(strongest)
    words_title = f"Words ({omitted:,} with smaller effects not shown)" if omitted else "Words"
    _draw_effects(axes[0, 0], words_title, [(short_label(words[i][0], 24), words[i][1]) for i in sorted(strongest)])
    _draw_effects(axes[0, 1], "Support texts", [(escape(text), effect) for text, effect in lines])
    _draw_scores(axes[0, 2], card)
    for ax, count in zip(axes[0], counts, strict=True):
        bars = max(counts)
        low, high = (bars - 0.5, -0.5) if ax.yaxis_inverted() else (count - bars - 0.5, count - 0.5)
        ax.set_ylim(low, high)  # bars of one height, from the top
    return fig


def _draw_effects(ax: Axes, title: str, effects: Sequence[tuple[str, float]]) -> None:
    """Bars of effects on the log odds, the first one at the top, in the colors of the page."""
    values = [effect for _, effect in effects]
    colors = [COLORS["amber"] if value > 0 else COLORS["blue"] for value in values]
    ax.barh(range(len(values)), values, color=colors, height=0.6)
    ax.set_yticks(range(len(values)), [label for label, _ in effects])
    ax.invert_yaxis()
    ax.axvline(0, color=COLORS["gray"], linewidth=0.8)
    limit = 1.6 * max(map(abs, values), default=1.0) or 1.0
    ax.set(xlim=(-limit if min(values, default=0.0) < 0 else 0.0, limit), xticks=[])
    for i, value in enumerate(values):
        offset, side = (0.02 * limit, "left") if value >= 0 else (-0.02 * limit, "right")
        ax.text(value + offset, i, f"{value:+.2f}", va="center", ha=side, fontsize=8, color=COLORS["ink"])
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)
    ax.set_title(title, color=COLORS["ink"], fontsize=10)
    ax.set_xlabel("decrease of the log odds without it", fontsize=8, color=COLORS["gray"])


def _draw_scores(ax: Axes, card: ExplanationCard) -> None:
    """Bars of the probabilities, the most likely class at the top."""
    bars = list(card.scores[:MAX_SCORES])[::-1]
    colors = [COLORS["gray"]] * (len(bars) - 1) + [COLORS["blue"] if card.known else COLORS["amber"]]
    ax.barh([short_label(name, 18) for name, _ in bars], [score for _, score in bars], color=colors, height=0.7)
    ax.set(xlim=(0, 1.18), xticks=[])
    for i, (_, score) in enumerate(bars):
        ax.text(score + 0.02, i, f"{score:.0%}", va="center", fontsize=8, color=COLORS["ink"])
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)
    ax.set_title(card.scores_title, color=COLORS["ink"], fontsize=10)


def explanation_page(cards: Sequence[ExplanationCard], *, title: str = "Predictions") -> Page:
    """One self-contained page with a card for each prediction. It makes no network request."""
    check(cards, "cards must contain at least one prediction, got none")
    heading, subheading = shortened(title, 80), "Prediction and explanation"
    if len(cards) > 1:
        heading, subheading = f"{len(cards)} predictions", f"{sum(card.known for card in cards)} of {len(cards)} known"
    data = {"title": heading, "subtitle": subheading, **explanation_data(cards)}
    styles = ("heat-map.css", "explanation-card.css", "explanations.css")
    return cards_page("explanations", heading, data, styles)


def explanation_data(cards: Sequence[ExplanationCard]) -> dict[str, Any]:
    """The cards as plain values, with their images."""
    images = ImageTable()
    values = [_card(card, images) for card in cards]
    look = {"look": asdict(heatmaps.LOOK), "minRelative": MIN_RELATIVE_CONTRIBUTION}
    return {**look, "cards": values, "images": images.images}


def _card(card: ExplanationCard, images: ImageTable) -> dict[str, Any]:
    """A card as plain values. Classes that cannot be compared are merged into one, so that log odds remain exact."""
    e = card.evidence
    compared = _compared_classes(card)
    columns = [e.classes.index(name) for name in compared]
    rest = [i for i in range(len(e.classes)) if i not in set(columns)]

    def merged(log_probabilities: Array) -> Array:
        """(..., way) -> (..., classes), the last one for all others"""
        if not rest:
            return log_probabilities[..., columns]
        others = np.logaddexp.reduce(log_probabilities[..., rest], -1)[..., None]
        return np.concatenate((log_probabilities[..., columns], others), -1)

    base = merged(e.log_probabilities)
    regions = None if e.decreases is None else base - merged(e.log_probabilities - e.decreases)
    examples = []
    for i in _page_examples(card, compared):
        example = e.examples[i]
        examples.append(
            {
                "name": shortened(example.name, 48 if e.words is None else 160),
                "label": shortened(example.label, 48),
                "image": None if example.pixels is None else images.add(example.pixels, EXAMPLE_SIDE),
                "decreases": _rounded(base - merged(e.log_probabilities - example.decreases)),
                "shares": None if example.shares is None else _map(example.shares),
            }
        )
    return {
        "name": shortened(card.name, 60 if e.words is None else 200),
        "prediction": shortened(card.prediction, 48),
        "known": card.known,
        "confidence": round(card.confidence, 6),
        "scores": [[shortened(name, 48), round(score, 6)] for name, score in card.scores[:MAX_SCORES]],
        "more": max(0, len(card.scores) - MAX_SCORES),
        "scoresTitle": card.scores_title,
        "notes": list(card.notes),
        "classes": [shortened(name, 48) for name in compared],
        "label": compared.index(card.label),
        "other": None if card.other is None else compared.index(card.other),
        "logProbabilities": _rounded(base),
        "image": None if e.pixels is None else images.add(e.pixels, QUERY_SIDE),
        "regions": None if regions is None else _map(regions),
        "words": None if e.words is None else [shortened(word, 48) for word in e.words],
        "examples": examples,
        "count": card.images,
    }


def _compared_classes(card: ExplanationCard) -> list[str]:
    """The most likely classes, the predicted one first."""
    first = [card.prediction, card.label] + ([] if card.other is None else [card.other])
    order = np.argsort(-card.evidence.log_probabilities, kind="stable").tolist()
    names = dict.fromkeys([*first, *(card.evidence.classes[i] for i in order)])
    return list(names)[:MAX_COMPARED_CLASSES]


def _page_examples(card: ExplanationCard, compared: Sequence[str]) -> list[int]:
    """Indices of the examples that a page contains: those of the card, and the strongest of each compared class.

    Then those of other questions, about more likely classes first, up to `MAX_PAGE_EXAMPLES`.
    """
    e = card.evidence
    indices = dict.fromkeys(e.strongest(card.label, card.other, card.images))
    for name in compared:
        indices |= dict.fromkeys(e.strongest(name, None, 1)[:1])
    questions = sorted(product(range(len(compared)), range(-1, len(compared))), key=lambda pair: (sum(pair), pair))
    for label, other in questions:
        if len(indices) >= min(MAX_PAGE_EXAMPLES, len(e.examples)):
            break
        if label != other:
            indices |= dict.fromkeys(e.strongest(compared[label], None if other < 0 else compared[other], card.images))
    return list(indices)[: max(len(compared) + 2 * card.images, MAX_PAGE_EXAMPLES)]


def _map(values: Array) -> dict[str, Any]:
    """(rows, columns, ...) with its shape; one entry for each region."""
    return {
        "rows": values.shape[0],
        "columns": values.shape[1],
        "values": _rounded(values.reshape(-1, *values.shape[2:])),
    }


def _rounded(values: Array) -> Any:
    return np.round(values.astype(np.float64), 4).tolist()
