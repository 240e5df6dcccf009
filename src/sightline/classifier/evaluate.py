"""How a fitted classifier is evaluated: labeled images are read, predicted in batches and counted."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.images.datasets import ImageFiles, Images, open_image_file
from ..data.images.loading import load
from ..errors import MissingDependencyError, SightlineError, check
from ..metrics import CONFIDENCE_BINS, auroc, wilson_interval
from ..models.embedders import ImageEmbedder
from ..models.text_embedders import TextEmbedder
from ..predictor import Predictor, Progress
from ..results import FailedPrediction, merge_predictions
from .evaluation import REJECTED, ClassifierEvaluation, Mistake
from .support import SupportSet, as_label, labeled_texts

MAX_MISTAKES = 24
"""Mistakes that are kept, the most confident first."""
BATCH_SIZE = 64
SIMULATIONS = 400
"""Outcomes that are drawn for the range of the calibration error."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LabeledImage:
    """One labeled image, or a text, which is its own name."""

    label: str
    name: str
    read: Callable[[], Any]
    """Returns what `FewShotClassifier.predict` takes."""


def evaluate(
    classifier: Predictor, support: SupportSet, embedder: ImageEmbedder | None, data: Any, progress: Progress | None
) -> ClassifierEvaluation:
    """Evaluate a fitted classifier on a data set by its path, or on {label: images or embeddings}."""
    images, total, split = labeled_images(data, embedder)
    originals: Iterable[Any] = support.names if isinstance(embedder, TextEmbedder) else ()
    counts = Counts(support.classes, originals if support.images is None else support.images)
    while batch := list(islice(images, BATCH_SIZE)):
        for image, (prepared, prediction) in zip(batch, _predict(classifier, batch), strict=True):
            counts.update(image, prepared, prediction)
        if progress is not None:
            progress(counts.images, total)
    return counts.evaluation(split, "text" if isinstance(embedder, TextEmbedder) else "image")


class Counts:
    """What is counted over the images of an evaluation."""

    def __init__(self, classes: Sequence[str], support: Iterable[Any]):
        self.classes, self.known = classes, frozenset(classes)
        self.images, self.unreadable = 0, list[str]()
        self._support = set(map(_digest, support))
        self._support_images = 0
        self._confusion: dict[str, Counter[str]] = {}
        self._scores: dict[bool, list[float]] = {True: [], False: []}
        self._totals, self._right, self._accepted_right = Counter[str](), Counter[str](), 0
        self._confidences, self._correct = list[float](), list[bool]()
        """Of the images of known classes."""
        self._worst: list[tuple[float, int, Mistake]] = []

    def update(self, image: LabeledImage, prepared: Any, prediction: Any) -> None:
        """Add an image with its prepared input and its prediction."""
        self.images += 1
        if prediction.error is not None:
            self.unreadable.append(f"{image.name}: {prediction.error}")
            return
        label = _matching_class(image.label, self.classes)
        is_known, is_right = label in self.known, prediction.label == label
        self._support_images += _digest(prepared) in self._support
        self._scores[is_known].append(prediction.known_score)
        self._confusion.setdefault(label, Counter())[prediction.label if prediction.known else REJECTED] += 1
        if is_known:
            self._totals[label] += 1
            self._right[label] += is_right
            self._accepted_right += is_right and prediction.known
            self._confidences.append(prediction.confidence)
            self._correct.append(is_right)
        if prediction.known and not is_right:
            kept = prepared if isinstance(prepared, Tensor) and prepared.dtype == torch.uint8 else None
            mistake = Mistake(image.name, label, prediction.label, prediction.confidence, not is_known, kept)
            heapq.heappush(self._worst, (prediction.confidence, -self.images, mistake))
            if len(self._worst) > MAX_MISTAKES:
                heapq.heappop(self._worst)

    def evaluation(self, split: str, noun: str = "image") -> ClassifierEvaluation:
        """The metrics; SightlineError without images of known classes. `noun` is what one input is."""
        confusion, totals, right, unknown = self._confusion, self._totals, self._right, len(self._scores[False])
        count, correct = sum(totals.values()), sum(right.values())
        got = ", ".join(map(repr, list(confusion)[:3])) or "none"
        rule = f"data must have {noun}s of the classes of the classifier"
        check(count, f"{rule}, {', '.join(self.classes[:3])} …, got {got}")
        rejected = sum(confusion[name][REJECTED] for name in totals)
        others = sorted(set(confusion) - self.known)
        order = [name for name in self.classes if name in confusion] + others
        calibration = _calibration_errors(np.array(self._confidences), np.array(self._correct))
        calibration_error, low_error, high_error = calibration
        worst = sorted(self._worst, key=lambda entry: (-entry[0], -entry[1]))
        return ClassifierEvaluation(
            split=split,
            images=count,
            accuracy=correct / count,
            interval=wilson_interval(correct, count),
            calibration_error=calibration_error,
            calibrated_error=(low_error, high_error),
            rejected=rejected,
            accepted_accuracy=self._accepted_right / (count - rejected) if rejected < count else None,
            unknown_images=unknown,
            wrongly_accepted=unknown - sum(confusion[name][REJECTED] for name in others),
            auroc=auroc(*(torch.tensor(self._scores[is_known]) for is_known in (True, False))) if unknown else None,
            per_class={name: right[name] / totals[name] for name in order if name in totals},
            confusion={name: dict(confusion[name]) for name in order},
            mistakes=tuple(mistake for _, _, mistake in worst),
            unreadable=tuple(self.unreadable),
            support_images=self._support_images,
            noun=noun,
        )


def _calibration_errors(confidences: Array, correct: Array) -> tuple[float, float, float]:
    """The expected calibration error of images (N,), and the range that has 95% of it if the confidences are right."""
    bins = np.minimum((confidences * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    membership, random = (bins[:, None] == np.arange(CONFIDENCE_BINS)).astype(float), np.random.default_rng(0)

    def error(outcome: Array) -> float:
        return float(np.abs((confidences - outcome) @ membership).sum()) / len(confidences)

    drawn = [error(random.random(len(confidences)) < confidences) for _ in range(SIMULATIONS)]
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return error(correct), low, high


def labeled_images(data: Any, embedder: ImageEmbedder | None) -> tuple[Iterator[LabeledImage], int, str]:
    """All images of a data set or mapping, one at a time; their number; and the name of their split."""
    if isinstance(embedder, TextEmbedder):
        texts = [(label, text) for label, group in labeled_texts(data).items() for text in group]
        return (LabeledImage(label, text, partial(str, text)) for label, text in texts), len(texts), "full"
    if isinstance(data, Mapping):
        pairs = [
            LabeledImage(as_label(label), f"{label}, {i + 1}", partial(lambda item: item, item))
            for label, examples in data.items()
            for i, item in enumerate(examples)
        ]
        return iter(pairs), len(pairs), "full"
    is_source, kind = isinstance(data, str | Path), type(data).__name__
    check(is_source, f"data must be a folder of class folders or {{label: images}}, got {kind}")
    if embedder is None:
        raise SightlineError(f"data must be {{label: embeddings}} for a classifier of embeddings, got {str(data)!r}")
    splits = load(data, size=embedder.image_size, channels=embedder.channels, max_memory=0, class_disjoint=True)
    if splits.test is not None and not splits.class_disjoint:
        return _images_of(splits.test), len(splits.test), "test"
    sets = list(splits.available.values())
    return (image for images in sets for image in _images_of(images)), sum(map(len, sets)), "full"


def _images_of(images: Images) -> Iterator[LabeledImage]:
    labels = images.labels.tolist()
    if isinstance(images, ImageFiles):
        for path, label in zip(images.paths, labels, strict=True):
            name = f"{images.classes[label]}/{path.name}"
            yield LabeledImage(images.classes[label], name, partial(_open, path, images.archive))
        return
    for i, label in enumerate(labels):
        yield LabeledImage(images.classes[label], f"image {i + 1}", partial(images.read, i))


def _open(path: Path, archive: Path | None) -> Any:
    return open_image_file(path, archive)[0]


def _matching_class(name: str, classes: Sequence[str]) -> str:
    """The class of this name, or the only one that ends with it: `Latin/a` for `a`; else the name itself."""
    matches = [known for known in classes if known.endswith(f"/{name}")] if name not in classes else []
    return matches[0] if len(matches) == 1 else name


def _predict(classifier: Predictor, batch: Sequence[LabeledImage]) -> Iterable[tuple[Tensor, Any]]:
    """The prepared input and the prediction of each image; of one that cannot be read, a failed prediction."""
    prepared: list[Any] = []
    for image in batch:
        try:
            prepared.append(classifier.prepare(image.read()))
        except MissingDependencyError:
            raise
        except SightlineError as error:
            prepared.append(FailedPrediction(str(error)))
    usable = [item for item in prepared if not isinstance(item, FailedPrediction)]
    predictions = merge_predictions(prepared, classifier.predict_batch(usable) if usable else ())
    return zip(prepared, predictions, strict=True)


def _digest(item: Tensor | str) -> bytes:
    data = item.encode(errors="replace") if isinstance(item, str) else item.numpy().tobytes()
    return blake2b(data, digest_size=16).digest()
