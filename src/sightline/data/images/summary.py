"""Summary of a data set as text, and a contact sheet of its classes."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ...errors import check_int
from ...names import shortened
from ...output import aligned
from .class_splits import ClassSplits, class_groups
from .datasets import Images, ImageSet, Splits, as_array
from .statistics import histogram, mean_and_std

MAX_READ = 500
"""Image files that are read for mean and standard deviation."""
MAX_SHEET_CLASSES = 100
"""Classes on a contact sheet."""
MAX_LISTED_CLASSES = 20
"""Classes listed in the text."""
MAX_NAME_CHARS = 24
"""Characters of a name that are shown."""


@dataclass(frozen=True)
class SplitSummary:
    """Summary of one split."""

    num_images: int
    size: int
    channels: int
    counts: dict[str, int]
    """Number of images of each class."""
    mean: tuple[float, ...]
    """Mean of each channel, from 0 to 1."""
    std: tuple[float, ...]
    """Standard deviation of each channel, from 0 to 1."""


@dataclass(frozen=True)
class DataSummary:
    """Summary of a data set."""

    format: str
    classes: tuple[str, ...]
    splits: dict[str, SplitSummary]
    """Summary of each split by name."""

    def __str__(self) -> str:
        """Tables of splits and classes."""
        title = f"{shortened(self.format, MAX_NAME_CHARS)}, {len(self.classes):,} classes"
        if any(set(split.counts) != set(self.classes) for split in self.splits.values()):
            groups = class_groups(self.classes)
            title += "" if groups is None else f" in {int(groups.max()) + 1:,} groups"
            return "\n".join([title, "", *aligned(self._split_rows(class_counts=True), right={1, 2, 3})])
        lines = [title, "", *aligned(self._split_rows(class_counts=False), right={1}), ""]
        counts = [["class", *self.splits]]
        for name in self.classes[:MAX_LISTED_CLASSES]:
            row = [f"{split.counts[name]:,}" for split in self.splits.values()]
            counts.append([shortened(name, MAX_NAME_CHARS), *row])
        lines += aligned(counts, right=set(range(1, len(self.splits) + 1)))
        if (more := len(self.classes) - MAX_LISTED_CLASSES) > 0:
            images = _range(self.splits["train"], prefix="from ")
            lines.append(f"and {more:,} more; each class has {images} training images")
        return "\n".join(lines)

    def _split_rows(self, class_counts: bool) -> list[list[str]]:
        rows = [["split", "classes", "images", "per class", "size", "channels", "mean", "std"]]
        for name, split in self.splits.items():
            color = "1, gray" if split.channels == 1 else f"{split.channels}, color"
            size = f"{split.size} x {split.size}"
            levels = [" ".join(f"{value:.3f}" for value in values) for values in (split.mean, split.std)]
            rows.append([name, f"{len(split.counts):,}", f"{split.num_images:,}", _range(split), size, color, *levels])
        if not class_counts:
            rows = [[row[0], row[2], *row[4:]] for row in rows]
        return rows


def summarize(splits: Splits | ClassSplits) -> DataSummary:
    """Count images and compute pixel statistics, of image files from an evenly spaced sample."""
    summaries = {name: _summarize_split(images) for name, images in splits.available.items()}
    classes = dict.fromkeys(name for split in summaries.values() for name in split.counts)
    return DataSummary(splits.format, tuple(classes), summaries)


def contact_sheet(images: Images, per_class: int = 8) -> Image.Image:
    """An image with one row for each class: its name and its first images."""
    check_int(1, per_class=per_class)
    labels = images.labels.cpu().numpy()
    cell = images.size * max(1, 64 // images.size) if images.size <= 96 else 96
    font = ImageFont.load_default(13)
    names = [shortened(name, MAX_NAME_CHARS) for name in images.classes[:MAX_SHEET_CLASSES]]
    margin = 12 + max(int(font.getlength(name)) for name in names)
    rows = [np.flatnonzero(labels == label)[:per_class] for label in range(len(names))]
    columns = max(1, *(len(row) for row in rows))
    more = len(images.classes) - len(names)
    mode = "L" if images.channels == 1 else "RGB"
    sheet = Image.new(mode, (margin + columns * (cell + 4), len(rows) * (cell + 4) + 4 + (20 if more else 0)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        top = 4 + number * (cell + 4)
        draw.text((6, top + cell / 2), name, fill="black", font=font, anchor="lm")
        for column, index in enumerate(row.tolist()):
            image = Image.fromarray(as_array(images.read(index)))
            resampling = Image.Resampling.NEAREST if cell >= images.size else Image.Resampling.BICUBIC
            sheet.paste(image.resize((cell, cell), resampling), (margin + column * (cell + 4), top))
    if more:
        draw.text((6, sheet.height - 10), f"and {more:,} more classes", fill="black", font=font, anchor="lm")
    return sheet


def _summarize_split(images: Images) -> SplitSummary:
    counts = torch.bincount(images.labels.cpu(), minlength=len(images.classes)).tolist()
    num_read = len(images) if isinstance(images, ImageSet) else min(len(images), MAX_READ)
    indices = np.linspace(0, len(images) - 1, num_read).round().astype(int)
    mean, std = (tuple(values.tolist()) for values in mean_and_std(histogram(images, indices)))
    by_class = dict(zip(images.classes, counts, strict=True))
    return SplitSummary(len(images), images.size, images.channels, by_class, mean, std)


def _range(split: SplitSummary, prefix: str = "") -> str:
    """Smallest and largest number of images per class."""
    low, high = min(split.counts.values()), max(split.counts.values())
    return f"{low:,}" if low == high else f"{prefix}{low:,} to {high:,}"
