"""Predictions of a classifier, their explanations, and its estimated accuracy."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import SightlineError, check
from ..metrics import classification_sums, per_class_accuracy, update_classification_sums, wilson_interval
from ..names import printable
from ..view import figures
from ..view import page as view_page
from ..view.explanations import Evidence, ExplainedImage, ExplanationCard, explanation_figure, explanation_page

if TYPE_CHECKING:
    from ..view.page import Page

IMAGES, GRID, CELLS = 3, 6, 12
"""Defaults of `FewShotPrediction.explain`."""


@dataclass(frozen=True)
class FewShotPrediction:
    """The prediction for one image or embedding."""

    label: str
    """The most likely class, also if the image is unknown."""
    confidence: float
    """The probability of this class, given that the image is of one of the classes."""
    known: bool
    """Whether the image is of one of the classes."""
    scores: dict[str, float]
    """The probability of each class, the most likely first."""
    known_score: float
    """From 0 to 1; the image is known from 0.5 on."""
    transductive: bool = False
    """Whether the prediction may depend on the other images of the call."""
    error: None = None
    _explain: "Callable[..., list[Explanation]] | None" = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the classifier. A prediction from another process cannot be explained."""
        return vars(self) | {"_explain": None}

    def explain(
        self,
        *,
        label: str | None = None,
        other: str | None = None,
        images: int = IMAGES,
        grid: int = GRID,
        cells: int = CELLS,
    ) -> "Explanation":
        """Why this class: the support examples and image regions that speak for it and against it.

        `label` is the class to explain (default: the predicted one), `other` a class to compare it with (default: all
        others). `images` is the largest number of support examples for the class, and against it. Regions are the cells
        of a `grid` x `grid` partition. Those `cells` with the largest estimated effects are occluded; `grid**2` is all.
        """
        if self._explain is None:
            got = "got one without a classifier, such as one that was pickled"
            raise SightlineError(f"a prediction must come from `predict` to be explained, {got}")
        return self._explain([self], label=label, other=other, images=images, grid=grid, cells=cells)[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. The label of an unknown image is None; `closest` is its most likely class."""
        names = ("confidence", "known", "known_score", "scores", "transductive", "error")
        label = self.label if self.known else None
        return {"label": label, "closest": self.label} | {name: getattr(self, name) for name in names}

    def summary(self, top: int | None = None) -> str:
        best = list(self.scores.items())[: top or 1]
        if not self.known:
            return printable(f"unknown (closest {', '.join(name for name, _ in best)})")
        return printable(", ".join((str(self), *(f"{name} {score:.1%}" for name, score in best[1:]))))

    def __str__(self) -> str:
        return f"{self.label} {self.confidence:.1%}" if self.known else f"unknown (closest {self.label})"


@dataclass(frozen=True, eq=False)
class Explanation:
    """A prediction with the support examples and image regions that it depends on.

    Effects are decreases of the log odds of `label` without a part: against `other`, or against all other classes.
    """

    prediction: FewShotPrediction
    label: str
    other: str | None
    images: int
    evidence: Evidence = field(repr=False)
    """The effects on all classes."""
    num_examples: int
    """Support examples of the classifier."""

    @property
    def log_odds(self) -> float:
        """The log odds of the class."""
        return self.evidence.log_odds(self.label, self.other)

    @cached_property
    def _answer(self) -> tuple[ExplainedImage, tuple[ExplainedImage, ...]]:
        return self.evidence.answer(self.label, self.other, self.images)

    @property
    def image(self) -> ExplainedImage:
        """The image as the model receives it, with the effect of each of its cells; 0 for those not occluded."""
        return self._answer[0]

    @property
    def words(self) -> tuple[tuple[str, float], ...]:
        """The words of a text with the decrease of the log odds without each; empty for other inputs."""
        regions = self.image.regions
        if self.evidence.words is None or regions is None:
            return ()
        return tuple(zip(self.evidence.words, map(float, regions[0]), strict=True))

    @property
    def support(self) -> tuple[ExplainedImage, ...]:
        """The support examples that speak most for the class and against it, in descending order; at least one."""
        return self._answer[1]

    @property
    def is_complete(self) -> bool:
        """Whether all support examples were left out in turn; otherwise the nearest ones."""
        return len(self.evidence.examples) == self.num_examples

    def save(self, path: str | Path) -> Path:
        """Write a figure (.png or .svg) or a page (.html)."""
        path = Path(path)
        if path.suffix in view_page.SUFFIXES:
            return self.page().save(path)
        check(path.suffix in figures.SUFFIXES, f"path must end in .png, .svg or .html, got {path.name!r}")
        return figures.save(explanation_figure(self.card()), path)

    def page(self, *, name: str | None = None) -> "Page":
        """A self-contained page."""
        return explanation_page([self.card(name=name)], title=str(self.prediction))

    def card(self, *, name: str | None = None) -> ExplanationCard:
        """The explanation for the viewer; `name` is the name of the image."""
        evidence = self.evidence if name is None else replace(self.evidence, name=name)
        notes = []
        if not self.prediction.known:
            notes.append(f"Known score {self.prediction.known_score:.2f}, below the threshold of 0.5.")
        if not self.is_complete:
            notes.append(f"Computed for the {len(evidence.examples)} nearest support examples.")
        if self.prediction.transductive:
            notes.append("Transductive: the prediction may depend on the other images of the call.")
        return ExplanationCard(
            name=evidence.name,
            prediction=self.prediction.label,
            known=self.prediction.known,
            confidence=self.prediction.confidence,
            scores=list(self.prediction.scores.items()),
            evidence=evidence,
            label=self.label,
            other=self.other,
            images=self.images,
            notes=notes,
        )


@dataclass(frozen=True)
class Estimate:
    """The accuracy of a classifier, estimated by cross-validation on its support images."""

    accuracy: float
    interval: tuple[float, float]
    """95% Wilson interval of the accuracy."""
    images: int
    """Held-out images: those of classes with at least 2 images."""
    per_class: dict[str, float]
    """Accuracy of each class, the lowest first."""
    counts: dict[str, int]
    """Held-out images of each of these classes."""

    @classmethod
    def from_logits(cls, classes: Sequence[str], held_out: Iterable[tuple[Tensor, Tensor]]) -> "Estimate":
        """From the logits (Q, way) and labels (Q,) of held-out images."""
        sums = classification_sums(len(classes), torch.device("cpu"))
        for logits, labels in held_out:
            update_classification_sums(sums, logits, labels)
        correct, total = float(sums["correct"].sum()), int(sums["total"].sum())
        per_class = sorted(per_class_accuracy(sums, classes).items(), key=lambda pair: pair[1])
        counts = {name: int(count) for name, count in zip(classes, sums["total"].tolist(), strict=True) if count}
        return cls(correct / total, wilson_interval(correct, total), total, dict(per_class), counts)

    def __str__(self) -> str:
        return self.describe()

    def describe(self, noun: str = "image") -> str:
        """The accuracy on one line; `noun` is what one example is."""
        low, high = self.interval
        interval = f"95% interval {low:.1%} to {high:.1%}"
        return f"accuracy {self.accuracy:.1%} on {self.images:,} held-out {noun}s ({interval})"
