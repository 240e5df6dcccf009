"""The support set of a classifier: labeled images or embeddings, and how they are read.

Shapes: S support images, C channels, T tokens per image, M embedding dimension.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..data.images import datasets
from ..data.images.datasets import ImageFiles, Images
from ..data.images.loading import UnknownSourceError, describe, load
from ..data.images.paths import check_not_image_file, list_images
from ..data.images.reading import read_image
from ..errors import SightlineError, check, one_of
from ..models.embedders import ImageEmbedder
from ..models.text_embedders import TextEmbedder, check_text
from ..names import printable
from ..predictor import Progress
from .texts import read_table

MIN_CLASSES = 2
NO_IMAGES = "must have at least one image, got none; add one or remove the class"
NO_ENCODER = "examples must be embeddings for a model without an image encoder"
USE_PRETRAINED = "use FewShotClassifier.pretrained(name) for images"


@dataclass(frozen=True, eq=False)
class SupportSet:
    """Labeled examples, ordered by class."""

    embeddings: Tensor
    """float32 (S, T, M)."""
    labels: Tensor
    """int64 (S,), indices into `classes`."""
    classes: tuple[str, ...]
    names: tuple[str, ...]
    """A name of each example for display: its file name, or its number."""
    images: Tensor | None = None
    """uint8 (S, C, side, side), at the input size of the model or smaller; None if embeddings were given."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Tensor:
        """Examples of each class: (way,)"""
        return torch.bincount(self.labels, minlength=len(self.classes))

    @property
    def has_estimate(self) -> bool:
        """Whether held-out examples show how well classes are told apart: two classes or more have several examples."""
        return int((self.counts > 1).sum()) > 1

    def positions_in_class(self) -> Tensor:
        """The position of each example within its class, from 0: (S,)"""
        starts = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self)) - starts[self.labels]

    def merged(self, other: "SupportSet") -> "SupportSet":
        """The examples of both, ordered by class."""
        shape, new_shape = (tuple(support.embeddings.shape[1:]) for support in (self, other))
        got = f"got {new_shape}; use one encoder for all"
        check(shape == new_shape, f"embeddings must have shape {shape}, as those before, {got}")
        kind = "embeddings" if self.images is None else "images"
        is_same = (self.images is None) == (other.images is None)
        check(is_same, f"examples must be {kind}, as those before, got the other kind")
        classes = tuple(dict.fromkeys((*self.classes, *other.classes)))
        new_labels = torch.tensor([classes.index(name) for name in other.classes])
        labels = torch.cat((self.labels, new_labels[other.labels]))
        images = None
        if self.images is not None and other.images is not None:
            side = min(self.images.shape[-1], other.images.shape[-1])
            images = torch.cat([_downscaled(x, side) for x in (self.images, other.images)])
        embeddings, names = torch.cat((self.embeddings, other.embeddings)), (*self.names, *other.names)
        return SupportSet(embeddings, labels, classes, names, images).select(labels.argsort(stable=True)).checked()

    def select(self, indices: Tensor) -> "SupportSet":
        """The examples at these indices, with the classes that they have."""
        classes, labels = self.labels[indices].unique(return_inverse=True)
        return SupportSet(
            self.embeddings[indices],
            labels,
            tuple(self.classes[i] for i in classes.tolist()),
            tuple(self.names[i] for i in indices.tolist()),
            None if self.images is None else self.images[indices],
        )

    def without_class(self, name: str) -> "SupportSet":
        """All examples but those of one class."""
        if name not in self.classes:
            raise SightlineError(f"a class to remove must be {one_of(str(name), self.classes)}")
        return self.select((self.labels != self.classes.index(name)).nonzero().flatten())

    def checked(self) -> "SupportSet":
        """The support set with its size checked, and its images downscaled to `MAX_STORED_IMAGE_BYTES`."""
        check_class_count(len(self.classes))
        check_example_count(len(self))
        if self.images is None:
            return self
        channels, side = self.images.shape[1], self.images.shape[-1]
        max_side = max(8, int((limits.MAX_STORED_IMAGE_BYTES / (len(self) * channels)) ** 0.5))
        return self if side <= max_side else replace(self, images=_downscaled(self.images, max_side))


def read_support(
    source: Any,
    embedder: ImageEmbedder | None,
    embed_dim: int | None,
    progress: Progress | None = None,
    *,
    min_classes: int = 1,
) -> SupportSet:
    """Read examples from a data set by path or name, or from {label: images or embeddings}.

    `embed_dim` is the dimension that embeddings must have; None for any.
    """
    if isinstance(embedder, TextEmbedder):
        return read_texts(source, embedder, progress, min_classes=min_classes)
    if isinstance(source, str | Path):
        return _read_data_set(source, embedder, progress)
    is_mapping, kind = isinstance(source, Mapping), type(source).__name__
    check(is_mapping, f"examples must be a folder of class folders or {{label: images}}, got {kind}")
    check_class_count(len(source), min_classes)
    labeled = [(as_label(label), examples) for label, examples in source.items()]
    check_labels(label for label, _ in labeled)
    by_class = {label: _read_class(label, examples, embedder, embed_dim) for label, examples in labeled}
    tensors = [tensor for tensor, _ in by_class.values()]
    labels = torch.arange(len(by_class)).repeat_interleave(torch.tensor([len(tensor) for tensor in tensors]))
    names = tuple(name for _, names in by_class.values() for name in names)
    are_images = {tensor.dtype == torch.uint8 for tensor in tensors}
    check(len(are_images) == 1, "examples must be all images or all embeddings, got both")
    if True in are_images:
        assert embedder is not None
        pixels = torch.cat(tensors)
        return SupportSet(embedder.embed(pixels).cpu(), labels, tuple(by_class), names, pixels)
    shapes = {tuple(tensor.shape[1:]): label for label, tensor in zip(by_class, tensors, strict=True)}
    if len(shapes) > 1:
        got = " and ".join(f"{shape[-1]} for class {label!r}" for shape, label in list(shapes.items())[:2])
        raise SightlineError(f"embed_dim must be the same for all embeddings, got {got}; use one encoder for all")
    return SupportSet(torch.cat(tensors), labels, tuple(by_class), names)


def read_texts(
    source: Any, embedder: TextEmbedder, progress: Progress | None = None, *, min_classes: int = 1
) -> SupportSet:
    """Read a support set of texts; their names are the texts themselves."""
    labeled = labeled_texts(source)
    check_class_count(len(labeled), min_classes)
    check_labels(labeled)
    texts = [text for group in labeled.values() for text in group]
    check_example_count(len(texts))
    counts = torch.tensor([len(group) for group in labeled.values()])
    labels = torch.arange(len(labeled)).repeat_interleave(counts)
    return SupportSet(embedder.embed(texts, progress=progress).cpu(), labels, tuple(labeled), tuple(texts))


def labeled_texts(source: Any) -> dict[str, list[str]]:
    """Texts by label, from a tab-separated file (text, label) or from {label: texts}."""
    if isinstance(source, str | Path):
        groups: dict[Any, list[str]] = dict(read_table(source))
    else:
        rule = "examples must be a tab-separated file of texts and labels, or {label: texts}"
        check(isinstance(source, Mapping), f"{rule}, got {type(source).__name__}")
        groups = {label: [texts] if isinstance(texts, str) else list(texts) for label, texts in source.items()}
    check_labels(map(as_label, groups))
    read = {}
    for label, texts in groups.items():
        owner, limit = f"class {label!r}: ", limits.MAX_EXAMPLE_NAME_CHARS
        check(texts, f"{owner}must have at least one text, got none; add one or remove the class")
        for text in texts:
            check_not_image_file(text, owner)
        read[as_label(label)] = [check_text(text, owner)[:limit] for text in texts]
    return read


def check_class_count(count: int, minimum: int = MIN_CLASSES) -> None:
    """Check the number of classes."""
    if not minimum <= count <= limits.MAX_CLASSES:
        fix = "add another class" if count < minimum else "use fewer, or several classifiers"
        raise SightlineError(f"the number of classes must be {minimum} to {limits.MAX_CLASSES:,}, got {count:,}; {fix}")


def check_example_count(count: int) -> None:
    """Check the number of examples."""
    rule = f"the number of examples must be at most {limits.MAX_EXAMPLES:,}"
    check(count <= limits.MAX_EXAMPLES, f"{rule}, got {count:,}; use fewer per class")


def as_label(label: Any) -> Any:
    """The label itself; an integer as text."""
    return str(label) if isinstance(label, int | np.integer) and not isinstance(label, bool) else label


def check_labels(names: Iterable[Any]) -> None:
    """Class names must be printable text and follow the rules of data sets."""
    names = tuple(names)
    for name in names:
        is_text = isinstance(name, str) and name.strip() and printable(name) == name
        rule = f"a class name must be printable text of 1 to {limits.MAX_CLASS_NAME_CHARS} characters"
        is_valid = is_text and len(name) <= limits.MAX_CLASS_NAME_CHARS
        check(is_valid, f"{rule}, got {name!r:.60}; convert it with str(...)")
    datasets.check_class_names(names)


def read_pixels(images: Sequence[Any], embedder: ImageEmbedder, owner: str = "") -> Tensor:
    """Images as the model takes them, uint8 (N, C, side, side); `owner` begins error messages."""
    try:
        return torch.stack([read_image(x, size=embedder.image_size, channels=embedder.channels) for x in images])
    except SightlineError as error:
        raise type(error)(f"{owner}{error}") from error


def load_examples(source: str | Path, size: int, channels: int, progress: Progress | None = None) -> Images:
    """The training images of a data set by path or name; image files are not decoded."""
    try:
        images = load(source, size=size, channels=channels, max_memory=0, class_disjoint=True, progress=progress).train
    except UnknownSourceError:
        rule = "examples must be a folder with one folder of images per class"
        raise SightlineError(f"{rule}, got {str(source)!r}, {describe(Path(source).expanduser())}") from None
    check_class_count(len(images.classes))
    check_labels(images.classes)
    check_example_count(len(images))
    return images


def _read_data_set(source: str | Path, embedder: ImageEmbedder | None, progress: Progress | None) -> SupportSet:
    if embedder is None:
        raise SightlineError(f"{NO_ENCODER}, got {str(source)!r}; {USE_PRETRAINED}")
    images = load_examples(source, embedder.image_size, embedder.channels, progress)
    order = images.labels.argsort(stable=True)
    labels, names = images.labels[order], tuple[str, ...]()
    if isinstance(images, ImageFiles):
        names = tuple(printable(images.paths[i].name) for i in order.tolist())
        images = images.load(progress)
    pixels = images.pixels if labels.equal(images.labels) else images.pixels[order]
    if empty := set(range(len(images.classes))) - set(labels.tolist()):
        raise SightlineError(f"class {images.classes[min(empty)]!r} {NO_IMAGES}")
    support = SupportSet(embedder.embed(pixels).cpu(), labels, tuple(images.classes), names, pixels)
    numbers = (f"image {i + 1}" for i in support.positions_in_class().tolist())
    return support if names else replace(support, names=tuple(numbers))


def _read_class(
    label: str, examples: Any, embedder: ImageEmbedder | None, embed_dim: int | None
) -> tuple[Tensor, list[str]]:
    """Pixels or embeddings of one class, and the name of each example."""
    owner = f"class {label!r}"
    if _is_array(examples) and examples.ndim and len(examples) and (embedder is None or _is_embedding(examples, 2)):
        vectors = examples
    else:
        items = list_examples(examples, owner)
        limit = limits.MAX_EXAMPLES
        check(items, f"{owner} {NO_IMAGES}")
        check(len(items) <= limit, f"{owner} must have at most {limit:,} examples, got more; use fewer")
        if embedder is not None and not all(_is_embedding(item, 1) for item in items):
            paths = [Path(item) if isinstance(item, str | Path) else None for item in items]
            names = [f"image {i + 1}" if path is None else printable(path.name) for i, path in enumerate(paths)]
            return read_pixels(items, embedder, f"{owner}: "), names
        vectors = _stacked(items, owner)
    return check_embeddings(vectors, embed_dim, owner), [f"example {i + 1}" for i in range(len(vectors))]


def check_embeddings(x: Tensor | np.ndarray[Any, Any], embed_dim: int | None, owner: str) -> Tensor:
    """Embeddings given by a user as float32 (N, T, M); `owner` names them in error messages."""
    is_numeric = x.dtype != torch.bool and not x.is_complex() if isinstance(x, Tensor) else x.dtype.kind in "iuf"
    rule = f"embeddings of {owner} must be numbers of shape (n, embed_dim) or (n, tokens, embed_dim)"
    is_valid = is_numeric and x.ndim in (2, 3) and 0 not in x.shape
    check(is_valid, f"{rule}, got {x.dtype} of shape {tuple(x.shape)}")
    with np.errstate(over="ignore"):
        tensor = x.detach().cpu().float() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float32))
    tensor = tensor[:, None] if tensor.dim() == 2 else tensor
    rule = f"embed_dim of all embeddings must be {embed_dim}, got {tensor.shape[-1]} for {owner}"
    fix = "use one encoder for all, and FewShotClassifier() for an encoder without a trained head"
    check(embed_dim in (None, tensor.shape[-1]), f"{rule}; {fix}")
    rule = f"embeddings must be finite and at most {limits.MAX_EMBEDDING_VALUE:g}"
    is_finite = (tensor.abs() <= limits.MAX_EMBEDDING_VALUE).all()  # false for NaN
    check(is_finite, f"{rule}, got another value in {owner}; leave it out")
    return tensor.contiguous()


def list_examples(examples: Any, owner: str) -> list[Any]:
    """The examples of one class: the images of a folder, the entries of an array or an iterable, or one image."""
    if isinstance(examples, str | Path) and Path(examples).is_dir():
        return list(list_images(Path(examples)))
    if isinstance(examples, Tensor) and examples.ndim == 3 and 1 < len(examples) <= 4:
        rule = f"{owner} must be a list of images or an array (n, C, H, W)"
        got = f"got shape {tuple(examples.shape)}, which is ambiguous"
        raise SightlineError(f"{rule}, {got}; write [image] for one image")
    if _is_array(examples):
        is_single = examples.ndim == 3 and examples.shape[0 if isinstance(examples, Tensor) else 2] <= 4
        return [examples] if examples.ndim < 3 or is_single else list(examples)
    if isinstance(examples, str | bytes | Mapping) or not isinstance(examples, Iterable):
        return [examples]
    return list(islice(examples, limits.MAX_EXAMPLES + 1))


def _stacked(vectors: Sequence[Any], owner: str) -> np.ndarray[Any, Any]:
    """Embeddings from a list of vectors."""
    try:
        arrays = [np.asarray(x.detach().cpu().float() if isinstance(x, Tensor) else x) for x in vectors]
    except ValueError:
        arrays = []
    are_vectors = arrays and all(array.ndim and array.dtype.kind in "iuf" for array in arrays)
    check(are_vectors, f"{NO_ENCODER}, got {type(vectors[0]).__name__} in {owner}; {USE_PRETRAINED}")
    shapes = sorted({array.shape for array in arrays})
    check(len(shapes) == 1, f"embed_dim must be the same for all embeddings, got {shapes} in {owner}")
    return np.stack(arrays)


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray | Tensor)


def _is_embedding(x: Any, dimensions: int) -> bool:
    """Whether an array has this many dimensions; with 2, it must be of floats, or it may be an image."""
    if not _is_array(x) or x.ndim != dimensions:
        return False
    return dimensions == 1 or (x.is_floating_point() if isinstance(x, Tensor) else x.dtype.kind == "f")


def _downscaled(images: Tensor, side: int) -> Tensor:
    if images.shape[-1] <= side:
        return images
    batches = (F.interpolate(batch.float(), (side, side), mode="area").round() for batch in images.split(256))
    return torch.cat([batch.to(torch.uint8) for batch in batches])
