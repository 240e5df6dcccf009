"""Comparison of masked language models on identical sentences, with paired bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...comparison import (
    RESAMPLES,
    Array,
    PairedComparison,
    check_same_data,
    evaluate_each,
    percentile_interval,
    resample_weights,
)
from ...predictor import Progress
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


@dataclass(frozen=True, kw_only=True)
class MaskedLMComparison(PairedComparison):
    """Masked language models on identical sentences."""

    noun = "lines"
    description = (
        "the paired difference of the pseudo-perplexity per word to the first model, with its 95% interval of "
        f"{RESAMPLES:,} bootstrap resamples"
    )
    columns = ("masked accuracy", "95% interval", "pseudo-perplexity", "per word")
    paired = ("difference", "difference_interval")

    lines: int
    results: tuple[MaskedLMResult, ...]

    def metrics(self, result: MaskedLMResult) -> list[str]:
        low, high = result.interval
        values = [f"{result.accuracy:.2%}", f"{low:.2%} to {high:.2%}", f"{result.pseudo_perplexity:.2f}"]
        return [*values, f"{result.word_pseudo_perplexity:.2f}"]


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

    def evaluated(name: str, predictor: MaskedLMPredictor) -> tuple[MaskedLMEvaluation, Array]:
        check_same_data(predictor.evaluation_corpus(data)[0] == text, "sentences", name, names[0])
        return evaluate(predictor, text, split), scored_sentences(predictor, scored).numpy()

    outputs, seconds = evaluate_each(predictors, names, evaluated, progress)
    first = outputs[0][0]
    weights, words = resample_weights(len(scored)), count_words(scored).numpy()
    resampled = [np.exp(-(weights @ scores) / (weights @ words)) for _, scores in outputs]
    results = []
    for name, (evaluation, _), perplexities in zip(names, outputs, resampled, strict=True):
        results.append(
            MaskedLMResult(
                name=name,
                accuracy=evaluation.accuracy,
                interval=evaluation.interval,
                pseudo_perplexity=evaluation.pseudo_perplexity,
                word_pseudo_perplexity=evaluation.word_pseudo_perplexity,
                difference=evaluation.word_pseudo_perplexity - first.word_pseudo_perplexity,
                difference_interval=percentile_interval(perplexities - resampled[0]),
            )
        )
    return MaskedLMComparison(split=split, lines=len(text), results=tuple(results), seconds=seconds)
