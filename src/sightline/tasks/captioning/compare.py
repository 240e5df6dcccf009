"""Comparison of captioners on identical images, with paired bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
from ...predictor import Progress
from .metrics import CiderD, bleu, chrf
from .predictor import CaptioningPredictor


@dataclass(frozen=True)
class CaptionResult(BootstrapResult):
    """The metrics of one captioner, and its difference of CIDEr-D to the first one on the same images."""

    cider: float
    """CIDEr-D."""
    interval: tuple[float, float]
    """95% bootstrap interval of CIDEr-D."""
    bleu_4: float
    chrf: float


@dataclass(frozen=True, kw_only=True)
class CaptionComparison(PairedComparison):
    """Captioners on identical images."""

    noun = "images"
    description = bootstrap_description("CIDEr-D")
    columns = ("CIDEr-D", "95% interval", "BLEU-4", "chrF")
    digits = 3

    images: int
    results: tuple[CaptionResult, ...]

    def metrics(self, result: CaptionResult) -> list[str]:
        low, high = result.interval
        return [f"{result.cider:.3f}", f"{low:.3f} to {high:.3f}", f"{result.bleu_4:.1f}", f"{result.chrf:.1f}"]


def compare(
    predictors: Sequence[CaptioningPredictor],
    names: Sequence[str],
    *,
    data: str | None = None,
    progress: Progress | None = None,
) -> CaptionComparison:
    """Caption the test images of the runs' data, or of `data`, each run with the search of its config."""
    images, split = predictors[0].evaluation_images(data)

    def captions_of(name: str, predictor: CaptioningPredictor) -> list[str]:
        is_same = predictor.evaluation_images(data)[0].digest() == images.digest()
        check_same_data(is_same, "images", name, names[0])
        return [caption.text for caption in predictor.caption_images(images)[1]]

    captions, seconds = evaluate_each(predictors, names, captions_of, progress)
    cider = CiderD(images.captions)
    scores: list[Array] = [
        np.array([cider.score(*pair) for pair in zip(texts, images.captions, strict=True)]) for texts in captions
    ]
    weights = resample_weights(len(images)) / len(images)
    results = tuple(
        CaptionResult(
            name=name,
            cider=float(score.mean()),
            bleu_4=bleu(texts, images.captions)[-1],
            chrf=chrf(texts, images.captions),
            difference=float(score.mean() - scores[0].mean()),
            **bootstrap_intervals(weights @ score, weights @ (score - scores[0])),  # of equal captions exactly 0
        )
        for name, texts, score in zip(names, captions, scores, strict=True)
    )
    return CaptionComparison(split=split, images=len(images), results=results, seconds=seconds)
