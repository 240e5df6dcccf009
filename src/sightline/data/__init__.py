"""Data sets: images, text and few-shot episodes. Imports only ground-level modules of the package."""

from .images.class_splits import class_groups, load_classes
from .images.datasets import ImageFiles, ImageSet, Splits
from .images.loading import load
from .images.reading import read_image

__all__ = ["ImageFiles", "ImageSet", "Splits", "class_groups", "load", "load_classes", "read_image"]
