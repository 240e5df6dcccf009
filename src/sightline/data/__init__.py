"""Data in: images read, drawn and changed; text read, cut and counted. Imports nothing of ours but files and checks."""

from .images import augmentation as augment
from .images import glyphs
from .images.class_splits import ClassSplits, groups_of, load_classes
from .images.loading import ImageFiles, ImageSet, Splits, load, read_image

__all__ = [
    "ClassSplits",
    "ImageFiles",
    "ImageSet",
    "Splits",
    "augment",
    "glyphs",
    "groups_of",
    "load",
    "load_classes",
    "read_image",
]
