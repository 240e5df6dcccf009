"""Images pooled and divided by class: what is judged by are classes that nobody learned from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ...errors import SightlineError
from ..episodes import check_apart
from .datasets import ImageSet, Splits

MOST_BYTES: Final = 1 << 33
"""No set that is divided by class takes more memory than this."""
TURNS: Final = (90, 180, 270)
"""By how many degrees a class may be turned to make another; its name then ends in @90, and so on."""


class Share(NamedTuple):
    """What one data set has among several that are learned from."""

    classes: int
    """How many of them are its own."""
    episodes: float
    """The share of them."""


@dataclass(frozen=True, eq=False)
class ClassSplits:
    """A data set whose parts have different classes: what to learn from, and what to choose and to judge by."""

    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    kind: str = "images"
    """Which format it was read from."""
    shares: tuple[Share, ...] = ()
    """Of the sets whose classes come last among those to learn from, in their order."""

    def __post_init__(self) -> None:
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        there = {role: part for role, part in parts.items() if part is not None}
        check_apart(**{role: part.classes for role, part in there.items()})
        for role, part in there.items():
            for what in ("size", "channels"):
                ours, theirs = getattr(self.train, what), getattr(part, what)
                if ours != theirs:
                    raise SightlineError(f"{role} must have the {what} of train, {ours}, got {theirs}")


@dataclass(frozen=True, eq=False)
class Pool:
    """All images of a data set, whichever part of it they stood in."""

    images: ImageSet
    parts: dict[str, tuple[str, ...]]
    """The classes of each part where no class is in two of them, else nothing."""
    kind: str


def pooled(splits: Splits) -> Pool:
    """All parts of a set in one."""
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    sets = {role: part for role, part in named.items() if isinstance(part, ImageSet)}
    classes = splits.train.classes
    found = {role: [classes[label] for label in part.labels.unique().tolist()] for role, part in sets.items()}
    if len(sets) == 1:
        return Pool(sets["train"], {}, splits.kind)
    check_memory(sum(len(part) for part in sets.values()), sets["train"].channels, sets["train"].size)
    pixels = torch.cat([part.pixels for part in sets.values()])
    labels = torch.cat([part.labels for part in sets.values()])
    return Pool(ImageSet(pixels, labels, classes), apart(found), splits.kind)


def with_others(first: ClassSplits, others: Mapping[str, tuple[ImageSet, float]]) -> ClassSplits:
    """The training classes of other sets, named by their set, beside those of the first; what to judge by stays.

    `others` are by their name images to learn from, and of which share of the episodes they are.
    """
    _check_unseen(first, {name: images for name, (images, _) in others.items()})
    sets = [first.train, *(images for images, _ in others.values())]
    check_memory(sum(map(len, sets)), first.train.channels, first.train.size)
    labels, classes = [first.train.labels], list(first.train.classes)
    for name, (images, _) in others.items():
        labels.append(images.labels + len(classes))
        classes += [f"{name}/{own}" for own in images.classes]
    train = ImageSet(torch.cat([part.pixels for part in sets]), torch.cat(labels), tuple(classes))
    shares = tuple(Share(len(images.classes), share) for images, share in others.values())
    return replace(first, train=train, shares=shares)


def _check_unseen(first: ClassSplits, others: Mapping[str, ImageSet]) -> None:
    """No image that is chosen or judged by is in these: the same classes may go by other names there."""
    held = {one for part in (first.validation, first.test) if part is not None for one in _digests(part)}
    for name, images in others.items():
        if seen := sum(one in held for one in _digests(images)):
            raise SightlineError(
                f"data.more must bring no image that is chosen or judged by, got {seen:,} of them in {name!r}; "
                f"leave it out, or name its classes to learn from by a split"
            )


def _digests(images: ImageSet) -> Iterator[bytes]:
    """The same for the same pixels."""
    for pixels in images.pixels.numpy():
        yield blake2b(pixels.tobytes(), digest_size=16).digest()


def apart(found: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """The parts as they are where their classes differ and there is one to learn from, else nothing."""
    parts = {role: tuple(names) for role, names in found.items()}
    alone = len({name for names in parts.values() for name in names}) == sum(len(names) for names in parts.values())
    return parts if alone and "train" in parts and len(parts) > 1 else {}


def check_memory(count: int, channels: int, size: int) -> None:
    """Whether so many images may be held in memory."""
    if (total := count * channels * size * size) > MOST_BYTES:
        raise SightlineError(
            f"images divided by class must take at most {MOST_BYTES:,} bytes of memory, got {total:,} for {count:,} "
            f"images of {size} x {size} x {channels}; give a smaller size, or fewer images"
        )


def group_of(name: str) -> str:
    """What stands before the last slash: "Latin" for "Latin/a", and "Latin@90" for "Latin/a@90"."""
    group, _, last = name.rpartition("/")
    turn = last.rpartition("@")[2] if "@" in last else ""
    return f"{group}@{turn}" if turn in {str(degrees) for degrees in TURNS} else group


def groups_of(classes: Sequence[str]) -> Tensor | None:
    """The number of each class's group, int64 (C), counted as they come; nothing where no name has a slash."""
    if not any("/" in name for name in classes):
        return None
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(group_of(name), len(numbers)) for name in classes])


def chosen(images: ImageSet, names: Iterable[str]) -> ImageSet:
    """The images of these classes alone, the classes in the order they had."""
    wanted = set(names)
    kept = [number for number, name in enumerate(images.classes) if name in wanted]
    if len(kept) == len(images.classes):
        return images
    renumbered = torch.full((len(images.classes),), -1)
    renumbered[kept] = torch.arange(len(kept))
    labels = renumbered[images.labels]
    rows = (labels >= 0).nonzero().flatten()
    return ImageSet(images.pixels[rows], labels[rows], tuple(images.classes[number] for number in kept))


def turned(images: ImageSet) -> ImageSet:
    """Each class also turned, counted as classes of their own: four times the images and the classes."""
    count, ways = len(images), 1 + len(TURNS)
    check_memory(ways * count, images.channels, images.size)
    pixels = torch.empty(ways * count, *images.pixels.shape[1:], dtype=torch.uint8)
    for quarter, part in enumerate(pixels.split(count)):
        part.copy_(torch.rot90(images.pixels, quarter, (2, 3)))
    labels = torch.cat([images.labels + quarter * len(images.classes) for quarter in range(ways)])
    names = [f"{name}@{degrees}" for degrees in TURNS for name in images.classes]
    return ImageSet(pixels, labels, (*images.classes, *names))
