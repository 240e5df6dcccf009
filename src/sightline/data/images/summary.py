"""What a data set holds, in numbers and as a sheet of examples."""

import unicodedata
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ...errors import check_int
from ...names import shortened
from .class_pool import ClassSplits, groups_of
from .datasets import Images, ImageSet, Splits
from .statistics import histogram, mean_and_spread

MOST_READ = 500
"""Of images that stay in their files, how many are read for the mean and the spread."""
MOST_ROWS = 100
"""How many classes a contact sheet shows at most."""
MOST_LISTED = 20
"""How many classes the text of a summary counts one by one."""
LONGEST = 24
"""Letters of a name that are shown."""


@dataclass(frozen=True)
class SplitSummary:
    """What one split holds."""

    images: int
    size: int
    channels: int
    counts: dict[str, int]
    """How many images each class has."""
    mean: tuple[float, ...]
    """Of each channel, from 0 to 1."""
    std: tuple[float, ...]
    """Of each channel, from 0 to 1."""


@dataclass(frozen=True)
class Summary:
    """What a data set holds."""

    kind: str
    classes: tuple[str, ...]
    train: SplitSummary
    validation: SplitSummary | None
    test: SplitSummary | None

    def __str__(self) -> str:
        """As plain lines, for people."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        splits = {name: split for name, split in named.items() if split is not None}
        by_class = any(set(one.counts) != set(self.classes) for one in splits.values())
        sizes = [["split", "images", "size", "channels", "mean", "spread"]]
        for name, one in splits.items():
            color = "1, gray" if one.channels == 1 else f"{one.channels}, color"
            sizes.append(
                [name, f"{one.images:,}", f"{one.size} x {one.size}", color, _levels(one.mean), _levels(one.std)]
            )
        head = f"{shortened(self.kind, LONGEST)}, {len(self.classes):,} classes"
        if by_class:
            return "\n".join(
                [_grouped(head, self.classes), "", *_aligned(_with_classes(sizes, splits), right={1, 2, 3})]
            )
        counts = [["class", *splits]]
        for label in self.classes[:MOST_LISTED]:
            counts.append([shortened(label, LONGEST), *(f"{one.counts[label]:,}" for one in splits.values())])
        lines = [head, ""]
        lines += [*_aligned(sizes, right={1}), "", *_aligned(counts, right=set(range(1, len(splits) + 1)))]
        more = len(self.classes) - MOST_LISTED
        if more > 0:
            low, high = min(self.train.counts.values()), max(self.train.counts.values())
            spread = f"{low:,}" if low == high else f"from {low:,} to {high:,}"
            lines.append(f"and {more:,} more; each class has {spread} images to learn from")
        return "\n".join(lines)


def summary(splits: Splits | ClassSplits) -> Summary:
    """Count and measure; of images that stay in their files an even sample is measured."""
    validation = None if splits.validation is None else _describe(splits.validation)
    test = None if splits.test is None else _describe(splits.test)
    train = _describe(splits.train)
    classes = dict.fromkeys(name for one in (train, validation, test) if one is not None for name in one.counts)
    return Summary(splits.kind, tuple(classes), train, validation, test)


def contact_sheet(images: Images, per_class: int = 8) -> Image.Image:
    """A picture with a row for each class: its name and its first examples."""
    check_int(1, per_class=per_class)
    labels = images.labels.cpu().numpy()
    cell = images.size * max(1, 64 // images.size) if images.size <= 96 else 96
    font = ImageFont.load_default(13)
    names = [shortened(name, LONGEST) for name in images.classes[:MOST_ROWS]]
    margin = 12 + max(int(font.getlength(name)) for name in names)
    rows = [np.flatnonzero(labels == label)[:per_class] for label in range(len(names))]
    across = max(1, *(len(row) for row in rows))
    more = len(images.classes) - len(names)
    form = "L" if images.channels == 1 else "RGB"
    sheet = Image.new(form, (margin + across * (cell + 4), len(rows) * (cell + 4) + 4 + (20 if more else 0)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        top = 4 + number * (cell + 4)
        pen.text((6, top + cell / 2), name, fill="black", font=font, anchor="lm")
        for column, index in enumerate(row.tolist()):
            array = _read(images, index).cpu().numpy()
            picture = Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))
            sampling = Image.Resampling.NEAREST if cell >= images.size else Image.Resampling.BICUBIC
            sheet.paste(picture.resize((cell, cell), sampling), (margin + column * (cell + 4), top))
    if more:
        pen.text((6, sheet.height - 10), f"and {more:,} more classes", fill="black", font=font, anchor="lm")
    return sheet


def _grouped(head: str, classes: tuple[str, ...]) -> str:
    groups = groups_of(classes)
    return head if groups is None else f"{head} in {int(groups.max()) + 1:,} groups"


def _with_classes(sizes: list[list[str]], splits: dict[str, SplitSummary]) -> list[list[str]]:
    """Also how many classes a split has, and how many images they have each."""
    rows = [["classes", "each"]]
    for one in splits.values():
        low, high = min(one.counts.values()), max(one.counts.values())
        rows.append([f"{len(one.counts):,}", f"{low:,}" if low == high else f"{low:,} to {high:,}"])
    return [[row[0], classes, row[1], each, *row[2:]] for row, (classes, each) in zip(sizes, rows, strict=True)]


def _describe(images: Images) -> SplitSummary:
    found = torch.bincount(images.labels.cpu(), minlength=len(images.classes)).tolist()
    read = len(images) if isinstance(images, ImageSet) else min(len(images), MOST_READ)
    chosen = np.linspace(0, len(images) - 1, read).round().astype(int)
    mean, std = mean_and_spread(histogram(images, chosen))
    counts = dict(zip(images.classes, found, strict=True))
    return SplitSummary(len(images), images.size, images.channels, counts, tuple(mean.tolist()), tuple(std.tolist()))


def _read(images: Images, index: int) -> Tensor:
    return images.pixels[index] if isinstance(images, ImageSet) else images.read(index)


def _levels(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def _aligned(rows: list[list[str]], right: set[int]) -> list[str]:
    """Cells in columns as wide as their widest; those of `right` end together, the others begin together."""
    wide = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        pads = [" " * (room - _width(cell)) for cell, room in zip(row, wide, strict=True)]
        cells = [pad + cell if i in right else cell + pad for i, (cell, pad) in enumerate(zip(row, pads, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Columns of a terminal: letters of East Asia take two, marks upon letters none."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text
    )
