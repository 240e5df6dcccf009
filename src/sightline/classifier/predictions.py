"""Predictions of a classifier, their explanations, and its estimated accuracy."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import SightlineError, check
from ..metrics import classification_sums, per_class_accuracy, update_classification_sums, wilson_interval
from ..names import printable
from ..view import figures
from ..view import page as view_page
from ..view.explanations import ExplainedImage, ExplanationCard, explanation_figure, explanation_page

if TYPE_CHECKING:
    from ..view.page import Page


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
    _explain: "Callable[..., Explanation] | None" = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the classifier. A prediction from another process cannot be explained."""
        return vars(self) | {"_explain": None}

    def explain(self, *, images: int = 3, grid: int = 6) -> "Explanation":
        """The support images that contribute most to the prediction, and the image regions it depends on.

        `images` is the largest number of support images. Regions are the cells of a `grid` x `grid` partition.
        """
        if self._explain is None:
            got = "got one without a classifier, such as one that was pickled"
            raise SightlineError(f"a prediction must come from `predict` to be explained, {got}")
        return self._explain(self, images=images, grid=grid)

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
    """A prediction with the support images and image regions that it depends on."""

    prediction: FewShotPrediction
    logit: float
    """The logit of the predicted class."""
    image: ExplainedImage
    """The image as the model receives it, with the decrease of the logit when each of its cells is occluded."""
    support: tuple[ExplainedImage, ...]
    """The support images with the largest contributions, in descending order; at least one. The contribution is the
    decrease of the logit when the image is removed from the support set."""
    num_candidates: int
    """Support images whose contribution was computed."""
    is_complete: bool
    """Whether these are all support images; otherwise the nearest ones."""

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
        image = self.image if name is None else replace(self.image, name=name)
        notes = []
        if not self.is_complete:
            notes.append(f"Computed for the {self.num_candidates} nearest support images.")
        if self.prediction.transductive:
            notes.append("Transductive: the prediction may depend on the other images of the call.")
        return ExplanationCard(
            name=image.name,
            label=self.prediction.label,
            known=self.prediction.known,
            confidence=self.prediction.confidence,
            scores=list(self.prediction.scores.items()),
            image=image,
            examples=self.support,
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

    @classmethod
    def from_logits(cls, classes: Sequence[str], held_out: Iterable[tuple[Tensor, Tensor]]) -> "Estimate":
        """From the logits (Q, way) and labels (Q,) of held-out images."""
        sums = classification_sums(len(classes), torch.device("cpu"))
        for logits, labels in held_out:
            update_classification_sums(sums, logits, labels)
        correct, total = float(sums["correct"].sum()), int(sums["total"].sum())
        rule, fix = "a class must have 2 images for an estimate", "add a second image of some class"
        check(total > 0, f"{rule}, got 1 of each; {fix}")
        per_class = sorted(per_class_accuracy(sums, classes).items(), key=lambda pair: pair[1])
        return cls(correct / total, wilson_interval(correct, total), total, dict(per_class))

    def __str__(self) -> str:
        low, high = self.interval
        return f"accuracy {self.accuracy:.1%} on {self.images:,} held-out images (95% interval {low:.1%} to {high:.1%})"
