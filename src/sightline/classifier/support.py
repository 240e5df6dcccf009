"""The examples a classifier has learned from, and how they are read from what people have.

Legend for all shapes: K support images, C channels, P tokens of an image, M model embed_dim.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import limits
from ..data.images.class_splits import divides_by_class, load_classes
from ..data.images.formats.folders import count_images, images_in
from ..data.images.loading import ImageFiles, NoDataSetError, Progress, load, read_image
from ..errors import SightlineError, one_of
from ..names import printable
from .embedding import Embeds, finite

MIN_CLASSES = 2
PICTURE_BYTES = 1 << 26
"""What the kept pictures of all examples may take together; beyond it they are kept smaller."""


@dataclass(frozen=True, eq=False)
class Support:
    """Labelled examples, class by class in the order of `classes`."""

    embeddings: Tensor
    """float32 (K, P, M)."""
    labels: Tensor
    """int64 (K,), the index of a class each."""
    classes: tuple[str, ...]
    names: tuple[str, ...]
    """What to call each example: the name of its file, or its number."""
    pictures: Tensor | None = None
    """uint8 (K, C, side, side), as the model saw them or smaller; None where embeddings came in."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Tensor:
        """(N,), examples of each class."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def places(self) -> Tensor:
        """(K,), which example of its class each is, from 0."""
        starts = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self)) - starts[self.labels]

    def and_(self, other: "Support") -> "Support":
        """Both; examples of a class that is in both stand together."""
        if self.embeddings.shape[1:] != other.embeddings.shape[1:]:
            ours, theirs = (tuple(x.embeddings.shape[1:]) for x in (self, other))
            raise SightlineError(
                f"examples must be embedded alike, {ours} each, got {theirs}; embed them with one model"
            )
        if (self.pictures is None) != (other.pictures is None):
            fed = "embeddings" if self.pictures is None else "images"
            raise SightlineError(f"examples must be {fed}, as those before were, got the other kind")
        classes = tuple(dict.fromkeys((*self.classes, *other.classes)))
        moved = torch.tensor([classes.index(name) for name in other.classes])
        labels = torch.cat((self.labels, moved[other.labels]))
        order = labels.argsort(stable=True)
        names = (*self.names, *other.names)
        pictures = None
        if self.pictures is not None and other.pictures is not None:
            side = min(self.pictures.shape[-1], other.pictures.shape[-1])
            pictures = torch.cat([_smaller(x, side) for x in (self.pictures, other.pictures)])[order]
        return Support(
            torch.cat((self.embeddings, other.embeddings))[order],
            labels[order],
            classes,
            tuple(names[i] for i in order.tolist()),
            pictures,
        ).fitting()

    def take(self, chosen: Tensor) -> "Support":
        """These examples, a bool or an index each, with the classes they have."""
        rows = chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen
        left, labels = self.labels[rows].unique(return_inverse=True)
        return Support(
            self.embeddings[rows],
            labels,
            tuple(self.classes[i] for i in left.tolist()),
            tuple(self.names[i] for i in rows.tolist()),
            None if self.pictures is None else self.pictures[rows],
        )

    def without(self, name: str) -> "Support":
        """All but one class."""
        if name not in self.classes:
            raise SightlineError(f"a class to remove must be {one_of(str(name), self.classes)}")
        return self.take(self.labels != self.classes.index(name))

    def fitting(self) -> "Support":
        """Itself, if a classifier can be made of it; pictures as small as they must be."""
        check_count(len(self.classes))
        if len(self) > limits.MAX_EXAMPLES:
            raise SightlineError(
                f"examples must be at most {limits.MAX_EXAMPLES:,}, got {len(self):,}; bring fewer of each class"
            )
        if self.pictures is None:
            return self
        channels, side = self.pictures.shape[1], self.pictures.shape[-1]
        most = max(8, int((PICTURE_BYTES / (len(self) * channels)) ** 0.5))
        return self if side <= most else replace(self, pictures=_smaller(self.pictures, most))


def read(
    source: Any, embeds: Embeds | None, embed_dim: int | None, progress: Progress | None = None, *, least: int = 1
) -> Support:
    """Examples from a data set by path or name, or from {label: images or embeddings}.

    `embed_dim` is that of the embeddings, where it is known. At least so many classes.
    """
    if isinstance(source, str | Path):
        return _from_disk(source, embeds, progress)
    if not isinstance(source, Mapping):
        raise SightlineError(
            f"examples must be a folder of class folders, or {{label: images}}, got {type(source).__name__}"
        )
    check_count(len(source), least)
    labelled = [(as_text(label), one) for label, one in source.items()]
    check_labels(label for label, _ in labelled)
    read_in = {label: _examples(label, one, embeds, embed_dim) for label, one in labelled}
    fed = {tensor.dtype == torch.uint8 for tensor, _ in read_in.values()}
    if len(fed) > 1:
        raise SightlineError("examples must be images alone or embeddings alone, got both")
    labels = torch.arange(len(read_in)).repeat_interleave(torch.tensor([len(t) for t, _ in read_in.values()]))
    names = tuple(name for _, own in read_in.values() for name in own)
    tensors = [tensor for tensor, _ in read_in.values()]
    if True in fed:
        assert embeds is not None
        pixels = torch.cat(tensors)
        return Support(embeds.embed(pixels).cpu(), labels, tuple(read_in), names, pixels)
    shapes = {tuple(tensor.shape[1:]): label for label, tensor in zip(read_in, tensors, strict=True)}
    if len(shapes) > 1:
        (one, a), (two, b) = list(shapes.items())[:2]
        raise SightlineError(
            f"embeddings must all have one embed_dim, got {one[-1]} for class {a!r} and {two[-1]} for class {b!r}; "
            f"embed all with one model"
        )
    return Support(torch.cat(tensors), labels, tuple(read_in), names)


def check_count(classes: int, least: int = MIN_CLASSES) -> None:
    """So many classes must be possible."""
    if not least <= classes <= limits.MAX_CLASSES:
        fix = "bring one more to tell it from" if classes < least else "bring fewer, or divide them among classifiers"
        raise SightlineError(f"classes must be {least} to {limits.MAX_CLASSES:,}, got {classes:,}; {fix}")


def as_text(label: Any) -> Any:
    """The label itself; an integer as its text."""
    return str(label) if isinstance(label, int | np.integer) and not isinstance(label, bool) else label


def check_labels(labels: Iterable[Any]) -> None:
    """Names of classes must be text, and differ by more than their spaces."""
    alike: dict[str, str] = {}
    for label in labels:
        if (
            not isinstance(label, str)
            or not label.strip()
            or len(label) > limits.MAX_CLASS_NAME_CHARS
            or printable(label) != label
        ):
            raise SightlineError(
                f"a class must have a name of 1 to {limits.MAX_CLASS_NAME_CHARS} letters, got {label!r:.60}; name it with str(...)"
            )
        plain = unicodedata.normalize("NFC", label).strip()
        if plain in alike:
            raise SightlineError(f"classes must have different names, got {alike[plain]!r} and {label!r}")
        alike[plain] = label


def pixels_of(images: Sequence[Any], embeds: Embeds, whose: str = "") -> Tensor:
    """Images as the model takes them: uint8 (n, C, side, side)"""
    try:
        return torch.stack([read_image(x, size=embeds.image_size, channels=embeds.channels) for x in images])
    except ValueError as error:
        raise SightlineError(f"{whose}{error}") from error


def _from_disk(source: str | Path, embeds: Embeds | None, progress: Progress | None) -> Support:
    if embeds is None:
        raise SightlineError(
            f"examples must be embeddings for this model, got {str(source)!r}; begin with a model that sees"
        )
    form: dict[str, Any] = {"size": embeds.image_size, "channels": embeds.channels, "progress": progress}
    try:
        apart = divides_by_class(source)
        images: Any = (load_classes(source, **form) if apart else load(source, keep_in_memory=0, **form)).train
    except NoDataSetError:
        raise SightlineError(
            f"examples must be a folder with one folder of images for each class, got {str(source)!r}, "
            f"{_found(Path(source).expanduser())}"
        ) from None
    check_count(len(images.classes))
    check_labels(images.classes)
    if len(images) > limits.MAX_EXAMPLES:
        raise SightlineError(
            f"examples must be at most {limits.MAX_EXAMPLES:,}, got {len(images):,}; bring fewer of each class"
        )
    files = [printable(path.name) for path in images.paths] if isinstance(images, ImageFiles) else None
    pixels = (images.loaded(progress) if isinstance(images, ImageFiles) else images).pixels
    order = images.labels.argsort(stable=True)
    labels = images.labels[order]
    if not labels.equal(images.labels):
        pixels = pixels[order]
    if len(empty := set(range(len(images.classes))) - set(labels.tolist())):
        name = images.classes[min(empty)]
        raise SightlineError(f"class {name!r} must have at least one image, got none; fill it or leave it out")
    support = Support(embeds.embed(pixels).cpu(), labels, tuple(images.classes), ("",) * len(labels), pixels)
    numbers = [f"image {i + 1}" for i in support.places().tolist()]
    names = numbers if files is None else [files[i] for i in order.tolist()]
    return replace(support, names=tuple(names))


def _found(path: Path) -> str:
    """What is there where class folders were wanted."""
    if not path.is_dir():
        return "which is a file" if path.exists() else "which is not there"
    images = count_images(path)
    if not images:
        return "which holds neither folders nor images"
    several = "s" if images > 1 else ""
    return f"which holds {images:,} image{several} and no folders; move each class into a folder of its name"


def _examples(label: str, given: Any, embeds: Embeds | None, embed_dim: int | None) -> tuple[Tensor, list[str]]:
    """Pixels or embeddings of one class, and what to call each."""
    whose = f"class {label!r}"
    if _is_array(given) and given.ndim and len(given) and (embeds is None or _is_embedding(given, 2)):
        return finite(given, embed_dim, whose), [f"example {i + 1}" for i in range(len(given))]
    several = _listed(given, whose)
    if not len(several):
        raise SightlineError(f"{whose} must have at least one image, got none; fill it or leave it out")
    if len(several) > limits.MAX_EXAMPLES:
        raise SightlineError(f"{whose} must have at most {limits.MAX_EXAMPLES:,} images, got more; bring fewer")
    if embeds is not None and not all(_is_embedding(one, 1) for one in several):
        names = [
            printable(Path(one).name) if isinstance(one, str | Path) else f"image {i + 1}"
            for i, one in enumerate(several)
        ]
        return pixels_of(several, embeds, f"{whose}: "), names
    return finite(_stacked(several, whose), embed_dim, whose), [f"example {i + 1}" for i in range(len(several))]


def _listed(given: Any, whose: str) -> list[Any]:
    """The images of one class, one by one: of a folder, an array, or whatever can be gone through."""
    if isinstance(given, str | Path) and Path(given).is_dir():
        return [Path(given) / name for name in images_in(Path(given))]
    if isinstance(given, Tensor) and given.ndim == 3 and 1 < len(given) <= 4:
        raise SightlineError(
            f"{whose} must be a list of images or an array (n, C, H, W), got shape {tuple(given.shape)}, which may be "
            f"one image or {len(given)}; write [image] for one"
        )
    if _is_array(given):
        alone = given.ndim == 3 and given.shape[0 if isinstance(given, Tensor) else 2] <= 4
        return [given] if given.ndim < 3 or alone else list(given)
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return [given]
    return list(islice(given, limits.MAX_EXAMPLES + 1))


def _stacked(vectors: Sequence[Any], whose: str) -> np.ndarray[Any, Any]:
    """Embeddings that were given one by one."""
    try:
        rows = [np.asarray(one.detach().cpu().float() if isinstance(one, Tensor) else one) for one in vectors]
    except ValueError:
        rows = []
    if not rows or not all(row.ndim and row.dtype.kind in "iuf" for row in rows):
        raise SightlineError(
            f"examples must be embeddings for this model, got {type(vectors[0]).__name__} in {whose}; "
            f"begin with pretrained(name) for images"
        )
    if len(shapes := {row.shape for row in rows}) > 1:
        raise SightlineError(f"embeddings must all have one embed_dim, got {sorted(shapes)} in {whose}")
    return np.stack(rows)


def _is_array(one: Any) -> bool:
    return isinstance(one, np.ndarray | Tensor)


def _is_embedding(one: Any, dimensions: int) -> bool:
    """Whether it is of so many dimensions, and of floats where these might be those of an image."""
    if not _is_array(one) or one.ndim != dimensions:
        return False
    return dimensions == 1 or (one.is_floating_point() if isinstance(one, Tensor) else one.dtype.kind == "f")


def _smaller(pictures: Tensor, side: int) -> Tensor:
    if pictures.shape[-1] <= side:
        return pictures
    parts = [
        torch.nn.functional.interpolate(some.float(), (side, side), mode="area").round().to(torch.uint8)
        for some in pictures.split(256)
    ]
    return torch.cat(parts)
