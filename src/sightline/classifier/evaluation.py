"""Evaluation of a fitted classifier on labeled images: accuracy, calibration, rejection and mistakes."""

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
from ..names import printable, shortened
from ..output import aligned
from ..predictor import FailedPrediction, Predictor, Progress, merge_predictions
from ..view.page import Page
from ..view.reports import MAX_MATRIX_SIDE, Report, ReportImage
from .support import SupportSet, as_label, labeled_texts

MAX_MISTAKES = 24
"""Mistakes that are kept, the most confident first."""
MAX_TABLE_CLASSES = 12
"""Classes up to which the report in a terminal contains the confusion matrix."""
MAX_LISTED = 10
"""Confused pairs of classes, and unreadable files, in a terminal."""
REJECTED = "rejected"
BATCH_SIZE = 64


@dataclass(frozen=True)
class LabeledImage:
    """One labeled image."""

    label: str
    name: str
    read: Callable[[], Any]
    """Returns what `FewShotClassifier.predict` takes."""


@dataclass(frozen=True)
class Mistake:
    """An accepted image with a wrong class: another one of the classifier, or any class for an unknown image."""

    name: str
    label: str
    """The class of the image."""
    predicted: str
    confidence: float
    is_unknown: bool
    """Whether the classifier does not have the class of the image."""
    pixels: Tensor | None = None
    """uint8 (C, H, W), as the model receives the image."""


@dataclass(frozen=True)
class ClassifierEvaluation:
    """Metrics of a fitted classifier. Images of classes that it does not have are the unknown images."""

    split: str
    images: int
    """Images of known classes."""
    accuracy: float
    """Share of these images whose most likely class is right, whether they are rejected or not."""
    interval: tuple[float, float]
    """95% Wilson interval of the accuracy."""
    calibration_error: float
    """Expected calibration error of the confidence."""
    rejected: int
    """Images of known classes that are rejected."""
    accepted_accuracy: float | None
    """Accuracy on the accepted images of known classes; None if all are rejected."""
    unknown_images: int
    wrongly_accepted: int
    """Unknown images that are accepted."""
    auroc: float | None
    """AUROC of the known score; None without unknown images."""
    per_class: dict[str, float]
    confusion: dict[str, dict[str, int]]
    """Images by class and by predicted class, or `rejected`."""
    mistakes: tuple[Mistake, ...]
    """The most confident mistakes."""
    unreadable: tuple[str, ...] = ()
    """Errors of images that cannot be read, which are not counted."""
    support_images: int = 0
    """Images that are support images of the classifier, which make the results too good."""

    def to_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name not in ("mistakes", "unreadable")}
        names = ("name", "label", "predicted", "confidence", "is_unknown")
        mistakes = [{name: getattr(mistake, name) for name in names} for mistake in self.mistakes]
        return values | {"mistakes": mistakes, "unreadable": list(self.unreadable)}

    def summary(self) -> str:
        low, high = self.interval
        rejected = f"{self.rejected:,} rejected"
        unknown = f" {self.wrongly_accepted:,} of {self.unknown_images:,} unknown images are accepted."
        return (
            f"On the {self.split} set ({self.images:,} images): accuracy {self.accuracy:.1%} "
            f"(95% interval {low:.1%} to {high:.1%}), calibration error {self.calibration_error:.3f}, {rejected}."
            f"{unknown if self.unknown_images else ''}"
        )

    def __str__(self) -> str:
        rows = [[name, value, f"({note})" if note else ""] for name, value, note in self._figures()]
        lines = [f"{self.split} set, {self.images:,} images of {len(self.per_class):,} classes", *aligned(rows)]
        lines += self._notes()
        if len(self.confusion) <= MAX_TABLE_CLASSES:
            table = aligned(self._table(), right=range(1, MAX_TABLE_CLASSES + 2))
            lines += ["", "confusion matrix (rows: class, columns: prediction)", *table]
        elif pairs := self._confused_pairs():
            lines += ["", "most confused classes", *(f"  {count:5,}  {a} → {b}" for a, b, count in pairs[:MAX_LISTED])]
        if self.mistakes:
            lines += ["", "most confident mistakes"]
            lines += [f"  {m.confidence:6.1%}  {printable(m.name)}: {_verdict(m)}" for m in self.mistakes[:MAX_LISTED]]
        return "\n".join(lines)

    def page(self) -> Page:
        """A page with the metrics, the confusion matrix as a picture and as a table, and the worst mistakes."""
        report = Report("Evaluation of a fitted classifier", f"{self.split} set, {self.images:,} images")
        report.add_figures(self._figures())
        if notes := self._notes():
            rows = [[printable(error)] for error in self.unreadable[:MAX_LISTED]]
            report.add_table("; ".join(notes), ["file"] if rows else [], rows)
        names, shown = list(self.confusion), self._worst_classes()
        columns = [*(name for name in self._columns() if name in {*shown, REJECTED} or len(shown) == len(names))]
        counts = np.array([[self.confusion[name].get(column, 0) for column in columns] for name in shown])
        more = "" if len(shown) == len(names) else f" The {len(shown)} classes with most mistakes of {len(names):,}."
        note = f"Rows are the classes of the images, columns the predictions.{more}"
        expected = [name if name in self.per_class else REJECTED for name in shown]
        is_right = np.array([[column == name for column in columns] for name in expected])
        report.add_matrix("Confusion matrix", shown, columns, counts, is_right, note)
        report.add_table("Confusion matrix as numbers", *_split_header(self._table(shown, columns)))
        images = [ReportImage(_array(m.pixels), [_verdict(m), f"{m.confidence:.1%}", m.name]) for m in self.mistakes]
        if images:
            report.add_images("Most confident mistakes", images, "Accepted images with a wrong class.")
        return report.page()

    def _figures(self) -> list[tuple[str, str, str]]:
        """Name, value and note of each metric."""
        low, high = self.interval
        figures = [
            ("accuracy", f"{self.accuracy:.1%}", f"95% interval {low:.1%} to {high:.1%}"),
            ("calibration error", f"{self.calibration_error:.3f}", "of the confidence"),
            ("rejected", *_share(self.rejected, self.images)),
        ]
        if self.accepted_accuracy is not None:
            figures.append(("accuracy if accepted", f"{self.accepted_accuracy:.1%}", "of images that are not rejected"))
        if self.unknown_images:
            figures.append(("wrongly accepted", *_share(self.wrongly_accepted, self.unknown_images, "unknown images")))
        if self.auroc is not None:
            figures.append(("AUROC", f"{self.auroc:.3f}", "known against unknown images"))
        return figures

    def _notes(self) -> list[str]:
        notes = []
        if self.support_images:
            notes.append(f"support images among these: {self.support_images:,}, so expect less on new images")
        if self.unreadable:
            notes.append(f"files that cannot be read, and are left out: {len(self.unreadable):,}")
        return notes

    def _columns(self) -> list[str]:
        """The predicted classes, in the order of the classes, and `rejected` last."""
        predicted = dict.fromkeys(name for row in self.confusion.values() for name in row)
        names = [name for name in self.confusion if name in predicted]
        names += sorted(set(predicted) - {*names, REJECTED})
        return [*names, REJECTED] if REJECTED in predicted else names

    def _worst_classes(self) -> list[str]:
        mistakes = {name: sum(row.values()) - row.get(name, 0) for name, row in self.confusion.items()}
        if len(mistakes) <= MAX_MATRIX_SIDE:
            return list(mistakes)
        worst = set(sorted(mistakes, key=lambda name: -mistakes[name])[:MAX_MATRIX_SIDE])
        return [name for name in mistakes if name in worst]

    def _table(self, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> list[list[str]]:
        rows, columns = list(self.confusion) if rows is None else rows, columns or self._columns()
        table = [["", *(shortened(name, 24) for name in columns)]]
        for name in rows:
            unknown = "" if name in self.per_class else " (unknown)"
            counts = (self.confusion[name].get(column, 0) for column in columns)
            table.append([f"{shortened(name, 24)}{unknown}", *(f"{count:,}" if count else "·" for count in counts)])
        return table

    def _confused_pairs(self) -> list[tuple[str, str, int]]:
        pairs = [
            (name, predicted, count)
            for name, row in self.confusion.items()
            for predicted, count in row.items()
            if predicted not in (name, REJECTED)
        ]
        return sorted(pairs, key=lambda pair: -pair[2])


def evaluate(
    classifier: Predictor, support: SupportSet, embedder: ImageEmbedder | None, data: Any, progress: Progress | None
) -> ClassifierEvaluation:
    """Evaluate a fitted classifier on a data set by its path, or on {label: images or embeddings}."""
    images, total, split = labeled_images(data, embedder)
    classes, known = support.classes, frozenset(support.classes)
    originals: Iterable[Any] = support.names if isinstance(embedder, TextEmbedder) else ()
    support_digests = set(map(_digest, originals if support.images is None else support.images))
    confusion: dict[str, Counter[str]] = {}
    scores: dict[bool, list[float]] = {True: [], False: []}
    right, accepted_right, totals = Counter[str](), 0, Counter[str]()
    gaps, done, repeated = np.zeros(CONFIDENCE_BINS), 0, 0
    unreadable: list[str] = []
    worst: list[tuple[float, int, Mistake]] = []
    while batch := list(islice(images, BATCH_SIZE)):
        for image, (pixels, prediction) in zip(batch, _predict(classifier, batch), strict=True):
            done, label = done + 1, _matching_class(image.label, classes)
            if prediction.error is not None:
                unreadable.append(f"{image.name}: {prediction.error}")
                continue
            is_known = label in known
            repeated += _digest(pixels) in support_digests
            scores[is_known].append(prediction.known_score)
            outcome = prediction.label if prediction.known else REJECTED
            confusion.setdefault(label, Counter())[outcome] += 1
            is_right = prediction.label == label
            if is_known:
                totals[label] += 1
                right[label] += is_right
                accepted_right += is_right and prediction.known
                index = min(int(prediction.confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
                gaps[index] += prediction.confidence - is_right
            if prediction.known and not is_right:
                kept = pixels if isinstance(pixels, Tensor) and pixels.dtype == torch.uint8 else None
                mistake = Mistake(image.name, label, prediction.label, prediction.confidence, not is_known, kept)
                heapq.heappush(worst, (prediction.confidence, -done, mistake))
                if len(worst) > MAX_MISTAKES:
                    heapq.heappop(worst)
        if progress is not None:
            progress(done, total)
    count = sum(totals.values())
    rule = "data must have images of the classes of the classifier"
    check(count, f"{rule}, {', '.join(classes[:3])} …, got {', '.join(map(repr, list(confusion)[:3])) or 'none'}")
    rejected = sum(confusion[name][REJECTED] for name in totals)
    unknown = len(scores[False])
    order = [name for name in classes if name in confusion] + sorted(set(confusion) - known)
    return ClassifierEvaluation(
        split=split,
        images=count,
        accuracy=sum(right.values()) / count,
        interval=wilson_interval(sum(right.values()), count),
        calibration_error=float(np.abs(gaps).sum()) / count,
        rejected=rejected,
        accepted_accuracy=accepted_right / (count - rejected) if rejected < count else None,
        unknown_images=unknown,
        wrongly_accepted=unknown - sum(confusion[name][REJECTED] for name in set(confusion) - known),
        auroc=auroc(torch.tensor(scores[True]), torch.tensor(scores[False])) if unknown else None,
        per_class={name: right[name] / totals[name] for name in order if name in totals},
        confusion={name: dict(confusion[name]) for name in order},
        mistakes=tuple(mistake for _, _, mistake in sorted(worst, key=lambda entry: (-entry[0], -entry[1]))),
        unreadable=tuple(unreadable),
        support_images=repeated,
    )


def labeled_images(data: Any, embedder: ImageEmbedder | None) -> tuple[Iterator[LabeledImage], int, str]:
    """All images of a data set or mapping, one at a time; their number; and the name of their split."""
    if isinstance(embedder, TextEmbedder) and not isinstance(data, Mapping):
        data = labeled_texts(data)
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


def _share(count: int, total: int, of: str = "") -> tuple[str, str]:
    low, high = wilson_interval(count, total)
    return f"{count / total:.1%}", f"{count:,} of {total:,}{of and f' {of}'}; 95% interval {low:.1%} to {high:.1%}"


def _verdict(mistake: Mistake) -> str:
    predicted, label = shortened(mistake.predicted, 40), shortened(mistake.label, 40)
    return f"{predicted}, not {label}{' (an unknown class)' if mistake.is_unknown else ''}"


def _array(pixels: Tensor | None) -> Any:
    return None if pixels is None else pixels.permute(1, 2, 0).squeeze(-1).numpy()


def _split_header(table: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    return table[0], table[1:]
