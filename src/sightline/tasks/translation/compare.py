"""Comparison of translators on identical sentences, with paired bootstrap intervals."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ... import config
from ...comparison import RESAMPLES, Array, Comparison, Table, bootstrap_p_value, percentile_interval, resample_weights
from ...data.text.corpora import ParallelText
from ...errors import check
from ...names import printable
from ...predictor import SPLIT_NOTES, Progress
from .evaluate import TranslationEvaluation, score_translations, translations_of
from .predictor import TranslationPredictor


@dataclass(frozen=True)
class TranslationResult:
    """The metrics of one translator, and its difference to the first one on the same sentences."""

    name: str
    bleu_lowercase: float
    interval: tuple[float, float]
    """95% bootstrap interval of the lower-cased BLEU."""
    bleu: float
    """Cased BLEU."""
    chrf: float
    difference: float
    """Difference of the lower-cased BLEU."""
    difference_interval: tuple[float, float]
    """95% interval of the difference, by bootstrap resampling of the sentences."""
    p_value: float
    """Two-sided: twice the share of resamples in which the difference has the other sign or is 0, at most 1."""


@dataclass(frozen=True)
class TranslationComparison(Comparison):
    """Translators on identical sentences."""

    split: str
    pairs: int
    results: tuple[TranslationResult, ...]

    def title(self) -> str:
        note = SPLIT_NOTES.get(self.split, "")
        difference = "the paired difference of the lower-cased BLEU to the first model"
        return (
            f"{self.split} set, the same {self.pairs:,} pairs for all models{note}; {difference}, with 95% intervals "
            f"and p-value of {RESAMPLES:,} bootstrap resamples"
        )

    def table(self) -> Table:
        rows = [["", "BLEU, lower-cased", "95% interval", "BLEU", "chrF", "difference", "95% interval", "p-value"]]
        for i, result in enumerate(self.results):
            (low, high), (lower, upper) = result.interval, result.difference_interval
            paired = [f"{result.difference:+.2f}", f"{lower:+.2f} to {upper:+.2f}", f"{result.p_value:.2g}"]
            metrics = [f"{result.bleu_lowercase:.2f}", f"{low:.2f} to {high:.2f}", f"{result.bleu:.2f}"]
            rows.append([printable(result.name), *metrics, f"{result.chrf:.2f}", *(paired if i else [""] * 3)])
        return rows

    def to_records(self) -> list[dict[str, Any]]:
        """One record for each model. The reference has no difference."""
        records = []
        for i, result in enumerate(self.results):
            values = asdict(result)
            values |= {} if i else dict.fromkeys(("difference", "difference_interval", "p_value"))
            records.append({**values, "split": self.split, "pairs": self.pairs})
        return records


def compare(
    predictors: Sequence[TranslationPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> TranslationComparison:
    """Translate the test sentences of the runs' data, or of `data`, each run with the search of its config."""
    pairs, split = predictors[0].evaluation_pairs(data)
    evaluations, statistics, seconds = list[TranslationEvaluation](), list[Array](), dict[str, float]()
    for i, (name, predictor) in enumerate(zip(names, predictors, strict=True)):
        start = time.perf_counter()
        rule = "runs must be evaluated on the same sentences to be compared"
        is_same = predictor.evaluation_pairs(data)[0] == pairs
        check(is_same, f"{rule}, got others for {name} than for {names[0]}; pass --data PATH")
        texts = translations_of(predictor, pairs)
        seconds[name] = time.perf_counter() - start
        evaluations.append(score_translations(split, pairs, texts, **config.plain(predictor.config.search)))
        statistics.append(bleu_statistics(texts, pairs))
        if progress is not None:
            progress(i + 1, len(predictors))
    weights = resample_weights(len(pairs))
    scores = [corpus_bleu(weights @ statistic) for statistic in statistics]
    results = []
    for name, evaluation, resampled in zip(names, evaluations, scores, strict=True):
        differences = resampled - scores[0]
        results.append(
            TranslationResult(
                name=name,
                bleu_lowercase=evaluation.bleu_lowercase,
                interval=percentile_interval(resampled),
                bleu=evaluation.bleu,
                chrf=evaluation.chrf,
                difference=evaluation.bleu_lowercase - evaluations[0].bleu_lowercase,
                difference_interval=percentile_interval(differences),
                p_value=bootstrap_p_value(differences),
            )
        )
    return TranslationComparison(split=split, pairs=len(pairs), results=tuple(results), seconds=seconds)


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
