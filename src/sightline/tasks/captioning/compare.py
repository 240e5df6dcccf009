"""Comparison of captioners on identical images, with paired bootstrap intervals."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...comparison import RESAMPLES, Array, Comparison, Table, bootstrap_p_value, percentile_interval, resample_weights
from ...errors import check
from ...names import printable
from ...predictor import SPLIT_NOTES, Progress
from .metrics import CiderD, bleu, chrf
from .predictor import CaptioningPredictor


@dataclass(frozen=True)
class CaptionResult:
    """The metrics of one captioner, and its difference to the first one on the same images."""

    name: str
    cider: float
    """CIDEr-D."""
    interval: tuple[float, float]
    """95% bootstrap interval of CIDEr-D."""
    bleu_4: float
    chrf: float
    difference: float
    """Difference of CIDEr-D."""
    difference_interval: tuple[float, float]
    """95% interval of the difference, by bootstrap resampling of the images."""
    p_value: float
    """Two-sided: twice the share of resamples in which the difference has the other sign or is 0, at most 1."""


@dataclass(frozen=True)
class CaptionComparison(Comparison):
    """Captioners on identical images."""

    split: str
    images: int
    results: tuple[CaptionResult, ...]

    def title(self) -> str:
        note = SPLIT_NOTES.get(self.split, "")
        return (
            f"{self.split} set, the same {self.images:,} images for all models{note}; the paired difference of CIDEr-D "
            f"to the first model, with 95% intervals and p-value of {RESAMPLES:,} bootstrap resamples"
        )

    def table(self) -> Table:
        rows = [["", "CIDEr-D", "95% interval", "BLEU-4", "chrF", "difference", "95% interval", "p-value"]]
        for i, result in enumerate(self.results):
            (low, high), (lower, upper) = result.interval, result.difference_interval
            paired = [f"{result.difference:+.3f}", f"{lower:+.3f} to {upper:+.3f}", f"{result.p_value:.2g}"]
            metrics = [f"{result.cider:.3f}", f"{low:.3f} to {high:.3f}", f"{result.bleu_4:.1f}", f"{result.chrf:.1f}"]
            rows.append([printable(result.name), *metrics, *(paired if i else [""] * 3)])
        return rows

    def to_records(self) -> list[dict[str, Any]]:
        """One record for each model. The reference has no difference."""
        records = []
        for i, result in enumerate(self.results):
            values = asdict(result)
            values |= {} if i else dict.fromkeys(("difference", "difference_interval", "p_value"))
            records.append({**values, "split": self.split, "images": self.images})
        return records


def compare(
    predictors: Sequence[CaptioningPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> CaptionComparison:
    """Caption the test images of the runs' data, or of `data`, each run with the search of its config."""
    images, split = predictors[0].evaluation_images(data)
    cider, captions, seconds = CiderD(images.captions), list[list[str]](), dict[str, float]()
    for i, (name, predictor) in enumerate(zip(names, predictors, strict=True)):
        start = time.perf_counter()
        rule = "runs must be evaluated on the same images to be compared"
        is_same = predictor.evaluation_images(data)[0].digest() == images.digest()
        check(is_same, f"{rule}, got others for {name} than for {names[0]}; pass --data PATH")
        captions.append([caption.text for caption in predictor.caption_images(images)[1]])
        seconds[name] = time.perf_counter() - start
        if progress is not None:
            progress(i + 1, len(predictors))
    scores: list[Array] = [
        np.array([cider.score(*pair) for pair in zip(texts, images.captions, strict=True)]) for texts in captions
    ]
    weights = resample_weights(len(images)) / len(images)
    resampled = [weights @ score for score in scores]
    results = []
    for name, texts, score, means in zip(names, captions, scores, resampled, strict=True):
        differences = weights @ (score - scores[0])  # of equal captions exactly 0
        results.append(
            CaptionResult(
                name=name,
                cider=float(score.mean()),
                interval=percentile_interval(means),
                bleu_4=bleu(texts, images.captions)[-1],
                chrf=chrf(texts, images.captions),
                difference=float(score.mean() - scores[0].mean()),
                difference_interval=percentile_interval(differences),
                p_value=bootstrap_p_value(differences),
            )
        )
    return CaptionComparison(split=split, images=len(images), results=tuple(results), seconds=seconds)
