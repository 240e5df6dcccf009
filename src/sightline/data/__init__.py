"""Data in: images read, drawn and changed; text read, cut and counted. Imports nothing of ours but files and checks."""

from . import augment, glyphs, images
from .class_splits import ClassSplits, groups_of, load_classes
from .images import ImageFiles, ImageSet, Splits, load, read_image

__all__ = [
    "ClassSplits",
    "ImageFiles",
    "ImageSet",
    "Splits",
    "augment",
    "glyphs",
    "groups_of",
    "images",
    "load",
    "load_classes",
    "read_image",
]
