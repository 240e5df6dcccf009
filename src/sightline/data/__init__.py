"""Data sets: images, text and few-shot episodes. Imports only ground-level modules of the package."""

from .images import augmentation, glyphs
from .images.class_splits import ClassSplits, class_groups, load_classes
from .images.datasets import ImageFiles, ImageSet, Splits
from .images.loading import load
from .images.reading import read_image
from .sources import same_source

__all__ = [
    "ClassSplits",
    "ImageFiles",
    "ImageSet",
    "Splits",
    "augmentation",
    "class_groups",
    "glyphs",
    "load",
    "load_classes",
    "read_image",
    "same_source",
]
