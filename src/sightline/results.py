"""What a trained model returns: predictions, explanations and evaluations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .names import shortened

if TYPE_CHECKING:
    from .view.page import Page


class Prediction(Protocol):
    """The prediction for one input."""

    @property
    def error(self) -> str | None:
        """Why the input has no prediction; None if it has one."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

    def summary(self, top: int | None = None) -> str:
        """One line for a terminal, with the `top` best alternatives."""


@dataclass(frozen=True)
class FailedPrediction:
    """Takes the place of the prediction of an input that cannot be used. The answer that others have is None."""

    error: str
    label: ClassVar[None] = None
    confidence: ClassVar[None] = None
    known: ClassVar[None] = None
    text: ClassVar[None] = None

    def to_dict(self) -> dict[str, Any]:
        return {"error": self.error}

    def summary(self, top: int | None = None) -> str:
        return f"error: {self.error}"

    def __str__(self) -> str:
        return self.summary()


class Evaluation(Protocol):
    """The result of `Predictor.evaluate`. `str(evaluation)` is a report for a terminal."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

    def summary(self) -> str:
        """One sentence for a model card."""


@dataclass(frozen=True)
class MetricsEvaluation:
    """An evaluation that consists of named metrics."""

    split: str
    metrics: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"split": self.split, **self.metrics}

    def summary(self) -> str:
        return f"On the {self.split} set: {', '.join(f'{name} {value:.4f}' for name, value in self.metrics.items())}."

    def __str__(self) -> str:
        return "\n".join([f"{self.split} set", *(f"{name}  {value:.4f}" for name, value in self.metrics.items())])


@dataclass(frozen=True, eq=False)
class Explanations:
    """Predictions, and a page that shows what the model attended to."""

    inputs: list[Any]
    predictions: list[Any]
    """One for each input; the page lists inputs with an error and their messages."""
    page: "Page | None"
    """None if every input has an error."""

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Every input with its prediction."""
        return zip(self.inputs, self.predictions, strict=True)


def merge_predictions(prepared: Iterable[Any], predictions: Iterable[Any]) -> Iterator[Any]:
    """The failed predictions among prepared inputs in their places, and the predictions of the others."""
    remaining = iter(predictions)
    return (item if isinstance(item, FailedPrediction) else next(remaining) for item in prepared)


def list_failures(inputs: Sequence[Any], prepared: Sequence[Any]) -> list[tuple[str, str]]:
    """The name and the message of each input that cannot be used."""
    return [
        (_input_name(item, i), failed.error)
        for i, (item, failed) in enumerate(zip(inputs, prepared, strict=True), start=1)
        if isinstance(failed, FailedPrediction)
    ]


def _input_name(item: Any, number: int) -> str:
    """The name of an input on a page: that of its file, its text, or its number."""
    if isinstance(item, Path):
        return item.name
    return shortened(item, 80) if isinstance(item, str) else f"input {number}"
