"""Comparison of text classifiers on identical texts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import check
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
    outputs, seconds = [], dict[str, float]()
    for i, (name, predictor) in enumerate(zip(names, predictors, strict=True)):
        start = time.perf_counter()
        rule = "runs must be evaluated on the same texts and classes to be compared"
        has_same = predictor.evaluation_corpus(data)[0] == text and predictor.classes == predictors[0].classes
        check(has_same, f"{rule}, got others for {name} than for {names[0]}; pass --data PATH")
        logits, labels = predictor.logits_and_labels(text)
        outputs.append((logits.double(), labels))
        seconds[name] = time.perf_counter() - start
        if progress is not None:
            progress(i + 1, len(predictors))
    return TextComparison(split=split, texts=len(text), results=classifier_results(names, outputs), seconds=seconds)
