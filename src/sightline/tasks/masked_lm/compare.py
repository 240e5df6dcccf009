"""Comparison of masked language models on identical sentences, with paired bootstrap intervals."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...comparison import RESAMPLES, Comparison, Table, percentile_interval, resample_weights
from ...errors import check
from ...names import printable
from ...predictor import SPLIT_NOTES, Progress
from .evaluate import MaskedLMEvaluation, count_words, evaluate, scored_indices, scored_sentences
from .predictor import MaskedLMPredictor


@dataclass(frozen=True)
class MaskedLMResult:
    """The metrics of one model, and its difference to the first one on the same sentences."""

    name: str
    accuracy: float
    interval: tuple[float, float]
    """95% Wilson interval of the masked accuracy."""
    pseudo_perplexity: float
    """Per token of the model's own tokenizer."""
    word_pseudo_perplexity: float
    """Per word, which does not depend on the tokenizer."""
    difference: float
    """Difference of the pseudo-perplexity per word."""
    difference_interval: tuple[float, float]
    """95% interval of the difference, by bootstrap resampling of the sentences."""


@dataclass(frozen=True)
class MaskedLMComparison(Comparison):
    """Masked language models on identical sentences."""

    split: str
    lines: int
    results: tuple[MaskedLMResult, ...]

    def title(self) -> str:
        note = SPLIT_NOTES.get(self.split, "")
        return (
            f"{self.split} set, the same {self.lines:,} lines for all models{note}; the paired difference of the "
            f"pseudo-perplexity per word to the first model, with its 95% interval of {RESAMPLES:,} bootstrap resamples"
        )

    def table(self) -> Table:
        head = ["", "masked accuracy", "95% interval", "pseudo-perplexity", "per word", "difference", "95% interval"]
        rows = [head]
        for i, result in enumerate(self.results):
            (low, high), (lower, upper) = result.interval, result.difference_interval
            values = [f"{result.accuracy:.2%}", f"{low:.2%} to {high:.2%}", f"{result.pseudo_perplexity:.2f}"]
            paired = [f"{result.difference:+.2f}", f"{lower:+.2f} to {upper:+.2f}"] if i else ["", ""]
            rows.append([printable(result.name), *values, f"{result.word_pseudo_perplexity:.2f}", *paired])
        return rows

    def to_records(self) -> list[dict[str, Any]]:
        """One record for each model. The reference has no difference."""
        records = []
        for i, result in enumerate(self.results):
            values = asdict(result) | ({} if i else dict.fromkeys(("difference", "difference_interval")))
            records.append({**values, "split": self.split, "lines": self.lines})
        return records


def compare(
    predictors: Sequence[MaskedLMPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> MaskedLMComparison:
    """Evaluate masked language models on the test sentences of the runs' data, or of `data`."""
    text, split = predictors[0].evaluation_corpus(data)
    scored = text.take(scored_indices(predictors, text))
    evaluations, scores, seconds = list[MaskedLMEvaluation](), list[Any](), dict[str, float]()
    for i, (name, predictor) in enumerate(zip(names, predictors, strict=True)):
        start = time.perf_counter()
        rule = "runs must be evaluated on the same sentences to be compared"
        is_same = predictor.evaluation_corpus(data)[0] == text
        check(is_same, f"{rule}, got others for {name} than for {names[0]}; pass --data PATH")
        evaluations.append(evaluate(predictor, text, split))
        scores.append(scored_sentences(predictor, scored).numpy())
        seconds[name] = time.perf_counter() - start
        if progress is not None:
            progress(i + 1, len(predictors))
    weights, words = resample_weights(len(scored)), count_words(scored).numpy()
    resampled = [np.exp(-(weights @ score) / (weights @ words)) for score in scores]
    results = []
    for name, evaluation, perplexities in zip(names, evaluations, resampled, strict=True):
        results.append(
            MaskedLMResult(
                name=name,
                accuracy=evaluation.accuracy,
                interval=evaluation.interval,
                pseudo_perplexity=evaluation.pseudo_perplexity,
                word_pseudo_perplexity=evaluation.word_pseudo_perplexity,
                difference=evaluation.word_pseudo_perplexity - evaluations[0].word_pseudo_perplexity,
                difference_interval=percentile_interval(perplexities - resampled[0]),
            )
        )
    return MaskedLMComparison(split=split, lines=len(text), results=tuple(results), seconds=seconds)
