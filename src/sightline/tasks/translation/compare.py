"""Comparison of translators on identical sentences, with paired bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import config
from ...comparison import (
    Array,
    BootstrapResult,
    PairedComparison,
    bootstrap_description,
    bootstrap_intervals,
    check_same_data,
    evaluate_each,
    resample_weights,
)
from ...data.text.corpora import ParallelText
from ...predictor import Progress
from .evaluate import score_translations, translations_of
from .predictor import TranslationPredictor


@dataclass(frozen=True)
class TranslationResult(BootstrapResult):
    """The metrics of one translator, and its difference of lower-cased BLEU to the first one on the same sentences."""

    bleu_lowercase: float
    interval: tuple[float, float]
    """95% bootstrap interval of the lower-cased BLEU."""
    bleu: float
    """Cased BLEU."""
    chrf: float


@dataclass(frozen=True, kw_only=True)
class TranslationComparison(PairedComparison):
    """Translators on identical sentences."""

    noun = "pairs"
    description = bootstrap_description("the lower-cased BLEU")
    columns = ("BLEU, lower-cased", "95% interval", "BLEU", "chrF")

    pairs: int
    results: tuple[TranslationResult, ...]

    def metrics(self, result: TranslationResult) -> list[str]:
        low, high = result.interval
        values = [f"{result.bleu_lowercase:.2f}", f"{low:.2f} to {high:.2f}", f"{result.bleu:.2f}"]
        return [*values, f"{result.chrf:.2f}"]


def compare(
    predictors: Sequence[TranslationPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> TranslationComparison:
    """Translate the test sentences of the runs' data, or of `data`, each run with the search of its config."""
    pairs, split = predictors[0].evaluation_pairs(data)

    def translate(name: str, predictor: TranslationPredictor) -> list[str]:
        check_same_data(predictor.evaluation_pairs(data)[0] == pairs, "sentences", name, names[0])
        return translations_of(predictor, pairs)

    translations, seconds = evaluate_each(predictors, names, translate, progress)
    evaluations = [
        score_translations(split, pairs, texts, **config.plain(predictor.config.search))
        for predictor, texts in zip(predictors, translations, strict=True)
    ]
    weights = resample_weights(len(pairs))
    scores = [corpus_bleu(weights @ bleu_statistics(texts, pairs)) for texts in translations]
    results = tuple(
        TranslationResult(
            name=name,
            bleu_lowercase=evaluation.bleu_lowercase,
            bleu=evaluation.bleu,
            chrf=evaluation.chrf,
            difference=evaluation.bleu_lowercase - evaluations[0].bleu_lowercase,
            **bootstrap_intervals(resampled, resampled - scores[0]),
        )
        for name, evaluation, resampled in zip(names, evaluations, scores, strict=True)
    )
    return TranslationComparison(split=split, pairs=len(pairs), results=results, seconds=seconds)


def bleu_statistics(translations: Sequence[str], pairs: ParallelText) -> Array:
    """Counts of the lower-cased BLEU of each sentence: float64 (N, 10), of which 4 are matches, 4 are n-grams of the
    translation, and 2 are the lengths of translation and reference.
    """
    from sacrebleu import BLEU

    metric = BLEU(lowercase=True, effective_order=True)
    rows = []
    for text, reference in zip(translations, pairs.target, strict=True):
        score = metric.sentence_score(text, [reference])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, dtype=np.float64)


def corpus_bleu(sums: Array) -> Array:
    """Corpus BLEU of sums of statistics (R, 10): (R,)"""
    from sacrebleu import BLEU

    return np.array(
        [
            BLEU.compute_bleu([*map(int, row[:4])], [*map(int, row[4:8])], int(row[8]), int(row[9])).score
            for row in sums.round()
        ]
    )
