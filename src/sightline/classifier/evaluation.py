"""Evaluation of a fitted classifier on labeled images: accuracy, calibration, rejection and mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..data.images.datasets import as_array
from ..metrics import wilson_interval
from ..names import printable, shortened
from ..output import aligned
from ..view.page import Page
from ..view.reports import MAX_MATRIX_SIDE, Report, ReportImage

MAX_TABLE_CLASSES = 12
"""Classes up to which the report in a terminal contains the confusion matrix."""
MAX_LISTED = 10
"""Confused pairs of classes, and unreadable files, in a terminal."""
MAX_TEXT_CHARS = 120
"""Characters of a text in a list of mistakes."""
REJECTED, REJECTED_COLUMN = "", "(rejected)"
"""The predicted class of a rejected image, which is not the name of a class, and how a table shows it."""


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
    calibrated_error: tuple[float, float]
    """Where it is in 95% of the cases if the confidence is right: the fewer images, the farther from 0."""
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
    """Images by class and by predicted class; rejected images are counted under the empty text."""
    mistakes: tuple[Mistake, ...]
    """The most confident mistakes."""
    unreadable: tuple[str, ...] = ()
    """Errors of images that cannot be read, which are not counted."""
    support_images: int = 0
    """Images that are support images of the classifier, which make the results too good."""
    noun: str = "image"
    """What one input is, in texts for the user: image or text."""

    def to_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name not in ("mistakes", "unreadable", "noun")}
        names = ("name", "label", "predicted", "confidence", "is_unknown")
        mistakes = [{name: getattr(mistake, name) for name in names} for mistake in self.mistakes]
        return values | {"mistakes": mistakes, "unreadable": list(self.unreadable)}

    def summary(self) -> str:
        low, high = self.interval
        rejected = f"{self.rejected:,} rejected"
        unknown = f" {self.wrongly_accepted:,} of {self.unknown_images:,} unknown {self.noun}s are accepted."
        return (
            f"On the {self.split} set ({self._count}): accuracy {self.accuracy:.1%} "
            f"(95% interval {low:.1%} to {high:.1%}), calibration error {self.calibration_error:.3f}, {rejected}."
            f"{unknown if self.unknown_images else ''}"
        )

    def __str__(self) -> str:
        rows = [[name, value, f"({note})" if note else ""] for name, value, note in self._figures()]
        lines = [f"{self.split} set, {self._count} of {len(self.per_class):,} classes", *aligned(rows)]
        lines += self._notes()
        if len(self.confusion) <= MAX_TABLE_CLASSES:
            table = aligned(self._table(), right=range(1, MAX_TABLE_CLASSES + 2))
            lines += ["", "confusion matrix (rows: class, columns: prediction)", *table]
        elif pairs := self._confused_pairs():
            lines += ["", "most confused classes", *(f"  {count:5,}  {a} → {b}" for a, b, count in pairs[:MAX_LISTED])]
        if self.mistakes:
            lines += ["", "most confident mistakes"]
            lines += [
                f"  {m.confidence:6.1%}  {self._shown_name(m)}: {_verdict(m)}" for m in self.mistakes[:MAX_LISTED]
            ]
        return "\n".join(lines)

    def page(self) -> Page:
        """A page with the metrics, the confusion matrix as a picture and as a table, and the worst mistakes."""
        report = Report("Evaluation of a fitted classifier", f"{self.split} set, {self._count}")
        report.add_figures(self._figures())
        if notes := self._notes():
            rows = [[printable(error)] for error in self.unreadable[:MAX_LISTED]]
            report.add_table("; ".join(notes), ["file" if self.noun == "image" else self.noun] if rows else [], rows)
        names, shown = list(self.confusion), self._worst_classes()
        columns = [*(name for name in self._columns() if name in {*shown, REJECTED} or len(shown) == len(names))]
        counts = np.array([[self.confusion[name].get(column, 0) for column in columns] for name in shown])
        more = "" if len(shown) == len(names) else f" The {len(shown)} classes with most mistakes of {len(names):,}."
        note = f"Rows are the classes of the {self.noun}s, columns the predictions.{more}"
        expected = [name if name in self.per_class else REJECTED for name in shown]
        is_right = np.array([[column == name for column in columns] for name in expected])
        report.add_matrix("Confusion matrix", shown, [*map(_column, columns)], counts, is_right, note)
        report.add_table("Confusion matrix as numbers", *_split_header(self._table(shown, columns)))
        images = []
        for m in self.mistakes:
            pixels = None if m.pixels is None else as_array(m.pixels)
            images.append(ReportImage(pixels, [_verdict(m), f"{m.confidence:.1%}", self._shown_name(m)]))
        if images:
            report.add_images("Most confident mistakes", images, f"Accepted {self.noun}s with a wrong class.")
        return report.page()

    def _figures(self) -> list[tuple[str, str, str]]:
        """Name, value and note of each metric."""
        low, high = self.interval
        error_range = "{:.3f} to {:.3f} if calibrated".format(*self.calibrated_error)
        figures = [
            ("accuracy", f"{self.accuracy:.1%}", f"95% interval {low:.1%} to {high:.1%}"),
            ("calibration error", f"{self.calibration_error:.3f}", error_range),
            ("rejected", *_share(self.rejected, self.images)),
        ]
        if self.accepted_accuracy is not None:
            figures.append(
                ("accuracy if accepted", f"{self.accepted_accuracy:.1%}", f"of {self.noun}s that are not rejected")
            )
        if self.unknown_images:
            figures.append(
                ("wrongly accepted", *_share(self.wrongly_accepted, self.unknown_images, f"unknown {self.noun}s"))
            )
        if self.auroc is not None:
            figures.append(("AUROC", f"{self.auroc:.3f}", f"known against unknown {self.noun}s"))
        return figures

    def _notes(self) -> list[str]:
        notes = []
        if self.support_images:
            count = f"{self.noun}s among these: {self.support_images:,}"
            notes.append(f"support {count}, so expect less on new {self.noun}s")
        if self.unreadable:
            files = "files" if self.noun == "image" else f"{self.noun}s"
            notes.append(f"{files} that cannot be read, and are left out: {len(self.unreadable):,}")
        return notes

    @property
    def _count(self) -> str:
        """The number of inputs of known classes."""
        return f"{self.images:,} {self.noun}s"

    def _shown_name(self, mistake: Mistake) -> str:
        """The name of an image, or a text in quotes."""
        return printable(mistake.name) if self.noun == "image" else f"“{shortened(mistake.name, MAX_TEXT_CHARS)}”"

    def _columns(self) -> list[str]:
        """The predicted classes, in the order of the classes, and `REJECTED` last."""
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
        table = [["", *(shortened(_column(name), 24) for name in columns)]]
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


def _column(predicted: str) -> str:
    """How a table shows a predicted class."""
    return REJECTED_COLUMN if predicted == REJECTED else predicted


def _share(count: int, total: int, of: str = "") -> tuple[str, str]:
    low, high = wilson_interval(count, total)
    return f"{count / total:.1%}", f"{count:,} of {total:,}{of and f' {of}'}; 95% interval {low:.1%} to {high:.1%}"


def _verdict(mistake: Mistake) -> str:
    predicted, label = shortened(mistake.predicted, 40), shortened(mistake.label, 40)
    return f"{predicted}, not {label}{' (an unknown class)' if mistake.is_unknown else ''}"


def _split_header(table: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    return table[0], table[1:]
