"""Data in: images read, drawn and changed; text read, cut and counted. Imports nothing of ours but files and checks."""

from . import augment, glyphs, images
from .images import ImageFiles, ImageSet, Splits, load, read_image

__all__ = ["ImageFiles", "ImageSet", "Splits", "augment", "glyphs", "images", "load", "read_image"]
