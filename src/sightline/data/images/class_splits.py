"""Class-disjoint splits for few-shot learning: no class is in two splits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ... import seeds
from ...errors import check, check_choice, check_fraction, check_int
from . import glyphs
from .class_lists import ROTATION_DEGREES, group_of, read_class_lists
from .datasets import ImageFiles, Images, ImageSet, Progress, Splits, check_memory, load_splits, select_classes
from .formats.cifar import superclass_names
from .loading import read_source
from .reading import check_image_options

Rotations = Literal["none", "train", "all"]


@dataclass(frozen=True, eq=False)
class ClassSplits(Splits):
    """Training, validation and test set with different classes, in memory."""

    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    class_disjoint: bool = True
    extra_sources: tuple[tuple[int, float], ...] = ()
    """The number of classes, and the fraction of episodes sampled from them, of each data set that was added; these
    are the last training classes."""
    embeddings: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Embeddings of the images, by the encoder and its options, kept so that they are computed once."""


def load_classes(
    source: str | Path,
    *,
    split: str | Path | None = None,
    size: int | None = None,
    channels: int | None = None,
    validation_fraction: float = 0.0,
    seed: int = 0,
    rotations: Rotations = "none",
    progress: Progress | None = None,
) -> ClassSplits:
    """Load a data set with class-disjoint splits.

    Args:
        source: Name or path, as for `load`.
        split: JSON lists of the classes of each split (see `read_class_lists`). By default the splits of the source if
            they have different classes, else all classes are training classes.
        size: Side length to resize images to (default: that of the images).
        channels: 1 for grayscale, 3 for color (default: those of the images).
        validation_fraction: Fraction of the training classes to hold out if there is no validation set. Groups of
            classes are held out as a whole.
        seed: Seed of the held-out classes.
        rotations: Splits whose classes are also rotated by 90, 180 and 270 degrees. Each rotation is a class.
        progress: Called with the number of decoded images and the total.
    """
    check_image_options(size, channels)
    check_fraction(validation_fraction=validation_fraction)
    check_int(0, seed=seed)
    check_choice("rotations", rotations, get_args(Rotations))
    if source == "glyphs":
        splits, format_name = glyphs.alphabet_splits(size, channels), "glyphs"
    else:
        splits, format_name = read_source(source, size, channels)
    renamed = superclass_names(dict.fromkeys(name for images in splits.values() for name in images.classes))
    classes = {name: _classes_with_images(images) for name, images in splits.items()}
    used = [name for names in classes.values() for name in names]
    if split is None and len(splits) > 1 and len(set(used)) == len(used):
        lists = {name: tuple(renamed[c] for c in _in_hold_out_order(names, splits)) for name, names in classes.items()}
        parts = {name: _rename(images, renamed) for name, images in splits.items()}
    else:
        pooled = _rename(_pool(splits), renamed)
        names = tuple(_classes_with_images(pooled))
        lists = {"train": names} if split is None else read_class_lists(Path(split).expanduser(), names)
        parts = dict.fromkeys(lists, pooled)
    if validation_fraction and "validation" not in lists:
        lists["train"], lists["validation"] = _hold_out(lists["train"], validation_fraction, seed)
        parts["validation"] = parts["train"]
    for name, names in lists.items():
        selected = set(names)
        parts[name] = select_classes(parts[name], [c for c in parts[name].classes if c in selected])
    factor = {name: 4 if rotations in ("all", name) else 1 for name in parts}
    count = sum(factor[name] * len(images) for name, images in parts.items())
    check_memory(count, parts["train"].channels, parts["train"].size)
    loaded = load_splits(parts, progress)
    loaded = {name: add_rotations(images) if factor[name] > 1 else images for name, images in loaded.items()}
    return ClassSplits(loaded["train"], loaded.get("validation"), loaded.get("test"), format=format_name)


def add_sources(splits: ClassSplits, extra: Mapping[str, tuple[ImageSet, float]]) -> ClassSplits:
    """Add training classes of other data sets, named "<data set>/<class>".

    `extra` maps the name of each data set to its images and the fraction of episodes sampled from it.
    """
    _check_not_held_out(splits, {name: images for name, (images, _) in extra.items()})
    sets = [splits.train, *(images for images, _ in extra.values())]
    check_memory(sum(map(len, sets)), splits.train.channels, splits.train.size)
    labels, classes = [splits.train.labels], list(splits.train.classes)
    for name, (images, _) in extra.items():
        labels.append(images.labels + len(classes))
        classes += [f"{name}/{class_name}" for class_name in images.classes]
    train = ImageSet(torch.cat([images.pixels for images in sets]), torch.cat(labels), tuple(classes))
    sources = tuple((len(images.classes), fraction) for images, fraction in extra.values())
    return replace(splits, train=train, extra_sources=sources)


def class_groups(classes: Sequence[str]) -> Tensor | None:
    """Group index of each class, int64 (C,), in order of appearance. None if no name has a group."""
    if not any("/" in name for name in classes):
        return None
    indices: dict[str, int] = {}
    return torch.tensor([indices.setdefault(group_of(name), len(indices)) for name in classes])


def add_rotations(images: ImageSet) -> ImageSet:
    """Add each class rotated by 90, 180 and 270 degrees as classes of their own."""
    count, copies = len(images), 1 + len(ROTATION_DEGREES)
    pixels = torch.empty(copies * count, *images.pixels.shape[1:], dtype=torch.uint8)
    for quarter_turns, rotated in enumerate(pixels.split(count)):
        rotated.copy_(torch.rot90(images.pixels, quarter_turns, (2, 3)))
    labels = torch.cat([images.labels + i * len(images.classes) for i in range(copies)])
    names = [f"{name}@{degrees}" for degrees in ROTATION_DEGREES for name in images.classes]
    return ImageSet(pixels, labels, (*images.classes, *names))


def _classes_with_images(images: Images) -> list[str]:
    return [images.classes[label] for label in images.labels.unique().tolist()]


def _in_hold_out_order(names: Sequence[str], splits: Mapping[str, Images]) -> Sequence[str]:
    """Classes in the order that held-out classes are drawn from: that of their paths for image files."""
    return sorted(names, key=lambda name: f"{name}/") if isinstance(splits["train"], ImageFiles) else names


def _rename(images: Images, names: Mapping[str, str]) -> Images:
    return replace(images, classes=tuple(names[name] for name in images.classes))


def _pool(splits: Mapping[str, Images]) -> Images:
    """All images of a data set as one set. Files are sorted by class and path."""
    train = splits["train"]
    if len(splits) == 1:
        return train
    classes = train.classes
    if any(images.classes != classes for images in splits.values()):
        classes = tuple(sorted({name for images in splits.values() for name in images.classes}))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = torch.cat([torch.tensor([label_of[c] for c in x.classes])[x.labels] for x in splits.values()])
    files = [images for images in splits.values() if isinstance(images, ImageFiles)]
    if isinstance(train, ImageFiles):
        pairs = zip(labels.tolist(), (path for images in files for path in images.paths), strict=True)
        ordered = sorted(pairs, key=lambda pair: (pair[0], str(pair[1])))
        paths = tuple(path for _, path in ordered)
        return replace(train, paths=paths, labels=torch.tensor([label for label, _ in ordered]), classes=classes)
    check_memory(len(labels), train.channels, train.size)
    sets = [images.pixels for images in splits.values() if isinstance(images, ImageSet)]
    return ImageSet(torch.cat(sets), labels, classes)


def _hold_out(classes: Sequence[str], fraction: float, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The rest, and about this fraction of the classes: whole groups if there are several."""
    has_groups = len({group_of(name) for name in classes}) > 1
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(group_of(name) if has_groups else name, []).append(name)
    check(len(groups) > 1, f"validation_fraction must be 0 for a single training class, got {fraction}")
    goal = fraction * len(classes)
    held_out: list[str] = []
    for index in seeds.make_generator(seed, seeds.DATA).permutation(len(groups)).tolist():
        group = list(groups.values())[index]
        is_closer = abs(len(held_out) + len(group) - goal) < abs(len(held_out) - goal)
        if is_closer and len(held_out) + len(group) < len(classes):
            held_out += group
    held_out = held_out or min(groups.values(), key=len)
    excluded = set(held_out)
    return tuple(name for name in classes if name not in excluded), tuple(held_out)


def _check_not_held_out(splits: ClassSplits, extra: Mapping[str, ImageSet]) -> None:
    """No image of the validation or test set may be in an extra data set, also under another class name."""
    held_out = [images for images in (splits.validation, splits.test) if images is not None]
    digests = {digest for images in held_out for digest in _digests(images)}
    for name, images in extra.items():
        count = sum(digest in digests for digest in _digests(images))
        rule = f"data.extra_sources must not contain images of the validation or test set, got {count:,} in {name!r}"
        check(not count, f"{rule}; remove it, or select its training classes with a split")


def _digests(images: ImageSet) -> Iterator[bytes]:
    """A digest of the pixels of each image."""
    for pixels in images.pixels.numpy():
        yield blake2b(pixels.tobytes(), digest_size=16).digest()
