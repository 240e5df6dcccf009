"""Comparison of masked language models on identical sentences, with paired bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...comparison import (
    RESAMPLES,
    Array,
    PairedComparison,
    PairedResult,
    check_same_data,
    evaluate_each,
    percentile_interval,
    resample_weights,
)
from ...errors import check
from ...predictor import Progress
from .evaluate import LineScores, MaskedLMEvaluation, evaluate, score_lines, shared_indices, shown
from .predictor import MaskedLMPredictor


@dataclass(frozen=True)
class MaskedLMResult(PairedResult):
    """The metrics of one model, and its difference of pseudo-perplexity per word to the first one.

    Its interval is by bootstrap resampling of the sentences.
    """

    accuracy: float
    interval: tuple[float, float]
    """95% Wilson interval of the masked accuracy."""
    pseudo_perplexity: float | None
    """Per token of the model's own tokenizer."""
    word_pseudo_perplexity: float
    """Per word, which does not depend on the tokenizer."""


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
    scored_lines: int
    """The first lines that no model cuts and whose tokens all models know: those that are scored."""
    results: tuple[MaskedLMResult, ...]

    def metrics(self, result: MaskedLMResult) -> list[str]:
        low, high = result.interval
        values = [f"{result.accuracy:.2%}", f"{low:.2%} to {high:.2%}", shown(result.pseudo_perplexity)]
        return [*values, f"{result.word_pseudo_perplexity:.2f}"]

    def title(self) -> str:
        rule = "that no model cuts and whose tokens all models know"
        return f"{super().title()}; scored are the first {self.scored_lines:,} {rule}"


def compare(
    predictors: Sequence[MaskedLMPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> MaskedLMComparison:
    """Evaluate masked language models on the test sentences of the runs' data, or of `data`."""
    text, split = predictors[0].evaluation_corpus(data)
    for name, predictor in zip(names, predictors, strict=True):
        check_same_data(predictor.evaluation_corpus(data)[0] == text, "sentences", name, names[0])
    indices = shared_indices(predictors, text)
    rule = "data must have lines that no model cuts (data.max_tokens) and whose tokens all models know"
    check(indices, f"{rule}, got none in {len(text):,} lines; pass others with --data PATH")

    shared = text.take(indices)  # masked tokens of lines that a model cuts would be others

    def evaluated(name: str, predictor: MaskedLMPredictor) -> tuple[MaskedLMEvaluation, LineScores]:
        scores = score_lines(predictor, text, indices)
        return evaluate(predictor, shared, split, scores=scores), scores

    outputs, seconds = evaluate_each(predictors, names, evaluated, progress)
    weights = resample_weights(len(indices))
    resampled = [_word_perplexities(scores, weights) for _, scores in outputs]
    values = [float(_word_perplexities(scores, np.ones(len(indices)))) for _, scores in outputs]
    results = []
    for name, (evaluation, _), value, perplexities in zip(names, outputs, values, resampled, strict=True):
        results.append(
            MaskedLMResult(
                name=name,
                accuracy=evaluation.accuracy,
                interval=evaluation.interval,
                pseudo_perplexity=evaluation.pseudo_perplexity,
                word_pseudo_perplexity=value,
                difference=value - values[0],
                difference_interval=percentile_interval(perplexities - resampled[0]),
            )
        )
    return MaskedLMComparison(
        split=split, lines=len(text), scored_lines=len(indices), results=tuple(results), seconds=seconds
    )


def _word_perplexities(scores: LineScores, weights: Array) -> Array:
    """Pseudo-perplexities per word of lines with these weights, (lines,) or (resamples, lines)."""
    log_likelihoods, words = scores.log_likelihoods.numpy(), scores.words.numpy()
    return np.asarray(np.exp(np.minimum(100.0, -(weights @ log_likelihoods) / (weights @ words))))
