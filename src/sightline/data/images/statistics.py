"""Pixel statistics: histogram, mean and standard deviation."""

import numpy as np
import torch
from torch import Tensor

from ... import seeds
from .datasets import Images, ImageSet, Indices, Progress, chunk_size

NORMALIZATION_IMAGES = 10_000
"""Training images that the mean and standard deviation of a model's normalization are computed from."""


def histogram(images: Images, indices: Indices, progress: Progress | None = None) -> Tensor:
    """Counts of each of the 256 levels in each channel of some images: int64 (C, 256)."""
    counts = torch.zeros(images.channels, 256, dtype=torch.int64)
    done = 0
    for chunk in torch.as_tensor(indices).split(chunk_size(images, 1024)):
        taken = images.take(chunk)
        pixels = (taken if isinstance(taken, ImageSet) else taken.load()).pixels
        for channel in range(images.channels):
            counts[channel] += torch.bincount(pixels[:, channel].flatten().cpu(), minlength=256)
        done += len(chunk)
        if progress:
            progress(done, len(indices))
    return counts


def sample_histogram(images: Images, seed: int, progress: Progress | None = None) -> Tensor:
    """Histogram of a random sample of `NORMALIZATION_IMAGES` images: int64 (C, 256)."""
    sample = seeds.make_generator(seed, seeds.NORMALIZATION).permutation(len(images))[:NORMALIZATION_IMAGES]
    return histogram(images, np.sort(sample), progress)


def mean_and_std(histogram: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, from 0 to 1: (C, 256) -> (C,), (C,)."""
    levels = torch.from_numpy(np.arange(256) / 255)
    fractions = histogram.double() / histogram.sum(1, keepdim=True)
    mean = (fractions * levels).sum(1)
    return mean, (fractions * (levels - mean[:, None]).square()).sum(1).sqrt()
