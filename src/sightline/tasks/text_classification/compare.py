"""Comparison of text classifiers on identical texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...comparison import check_same_data, evaluate_each
from ...predictor import Progress
from ..classification import ClassifierComparison, classifier_results
from .predictor import TextClassificationPredictor


@dataclass(frozen=True, kw_only=True)
class TextComparison(ClassifierComparison):
    """Text classifiers on identical texts."""

    noun = "texts"
    texts: int


def compare(
    predictors: Sequence[TextClassificationPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> TextComparison:
    """Evaluate text classifiers on the test texts of their data, or of `data`."""
    text, split = predictors[0].evaluation_corpus(data)

    def outputs_of(name: str, predictor: TextClassificationPredictor) -> tuple[Tensor, Tensor]:
        is_same = predictor.evaluation_corpus(data)[0] == text and predictor.classes == predictors[0].classes
        check_same_data(is_same, "texts and classes", name, names[0])
        logits, labels = predictor.logits_and_labels(text)
        return logits.double(), labels

    outputs, seconds = evaluate_each(predictors, names, outputs_of, progress)
    return TextComparison(split=split, texts=len(text), results=classifier_results(names, outputs), seconds=seconds)
