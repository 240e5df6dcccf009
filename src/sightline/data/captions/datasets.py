"""Data sets of images with one or more captions each."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import limits, seeds
from ...errors import check, check_int, check_max, reraise
from ...files import digest
from ...progress import Progress
from ..images.datasets import ImageFiles, check_memory, open_image_file


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Images, as files or in memory, and the captions of each."""

    captions: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    """A name of each image for display and for splits: its file name, or its number."""
    paths: tuple[Path, ...] = ()
    """Image files, or entries of `archive`; empty if the images are in memory."""
    archive: Path | None = None
    """The zip file that holds the images."""
    pixels: Tensor | None = None
    """uint8 (N, C, side, side), if the images are in memory."""
    objects: tuple[Any, ...] = ()
    """What generated images show, for tests of attention maps; empty for others."""

    def __post_init__(self) -> None:
        check(self.captions, "captioned images must be at least one, got none")
        count = len(self.paths) if self.pixels is None else len(self.pixels)
        counts = (len(self.captions), len(self.names), count)
        check(len({*counts}) == 1, f"captions, names and images must be as many, got {counts}")

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def num_captions(self) -> int:
        """Captions of all images."""
        return sum(map(len, self.captions))

    def take(self, indices: Iterable[int]) -> "CaptionedImages":
        """The images at these indices."""
        rows = list(indices)

        def select(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[i] for i in rows) if values else ()

        pixels = None if self.pixels is None else self.pixels[rows]
        lists = (self.captions, self.names, self.paths, self.objects)
        captions, names, paths, objects = map(select, lists)
        return CaptionedImages(captions, names, paths, self.archive, pixels, objects)

    def load(self, size: int, channels: int, progress: Progress | None = None) -> Tensor:
        """All images as uint8 (N, C, size, size). One error lists the files that cannot be read."""
        if self.pixels is not None:
            shape = tuple(self.pixels.shape[1:])
            check(shape == (channels, size, size), f"images must have shape {(channels, size, size)}, got {shape}")
            return self.pixels
        check_memory(len(self), channels, size)
        labels = torch.zeros(len(self), dtype=torch.int64)
        return ImageFiles(self.paths, labels, ("image",), size, channels, self.archive).load(progress).pixels

    def content_digests(self) -> Iterator[str]:
        """SHA-256 of the content of each image."""
        if self.pixels is not None:
            yield from (digest(image.numpy().tobytes()) for image in self.pixels)
            return
        for path in self.paths:
            source, _ = open_image_file(path, self.archive)
            yield digest(source) if isinstance(source, bytes) else _file_digest(source)

    def digest(self) -> str:
        """SHA-256 of the names and captions in their order."""
        rows = ("\t".join((name, *texts)) for name, texts in zip(self.names, self.captions, strict=True))
        return digest("\n".join(rows).encode(errors="surrogateescape"))


@dataclass(frozen=True, eq=False)
class CaptionSplits:
    """Training, validation and test set of captioned images."""

    train: CaptionedImages
    validation: CaptionedImages | None = None
    test: CaptionedImages | None = None

    @property
    def available(self) -> dict[str, CaptionedImages]:
        """All splits that exist, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: images for name, images in splits.items() if images is not None}


def hold_out(images: CaptionedImages, count: int, seed: int) -> tuple[CaptionedImages, CaptionedImages]:
    """Split images at random into the rest and `count` held-out ones. All captions of an image stay together."""
    check_int(1, count=count)
    check_max(len(images) - 1, **{"held-out images": count})
    is_held_out = np.zeros(len(images), dtype=bool)
    is_held_out[seeds.make_generator(seed, seeds.DATA).permutation(len(images))[:count]] = True
    rest, held_out = (np.flatnonzero(part).tolist() for part in (~is_held_out, is_held_out))
    return images.take(rest), images.take(held_out)


def check_caption(text: str, where: str) -> str:
    """A caption without surrounding space."""
    check(isinstance(text, str), f"a caption must be text, got {type(text).__name__} for {where}")
    with reraise(f"the caption of {where} must be valid Unicode", UnicodeEncodeError):
        text.encode()
    maximum = limits.MAX_LINE_CHARS
    check(len(text) <= maximum, f"a caption must have at most {maximum:,} characters, got {len(text):,} for {where}")
    return " ".join(text.split())


def _file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
