"""How bright images are: how often each of the 256 levels occurs, and what mean and spread that makes."""

import numpy as np
import torch
from torch import Tensor

from .datasets import Images, ImageSet, Indices, Progress, at_once


def histogram(images: Images, chosen: Indices, progress: Progress | None = None) -> Tensor:
    """How often each level occurs in each channel of the chosen images: (C, 256)"""
    found = torch.zeros(images.channels, 256, dtype=torch.int64)
    done, count = 0, len(chosen)
    for part in torch.as_tensor(chosen).split(at_once(images, 1024)):
        some = images.take(part)
        pixels = (some if isinstance(some, ImageSet) else some.loaded()).pixels
        for channel in range(images.channels):
            found[channel] += torch.bincount(pixels[:, channel].flatten().cpu(), minlength=256)
        done += len(part)
        if progress:
            progress(done, count)
    return found


def mean_and_spread(found: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel, from 0 to 1, of images with these levels: (C, 256) -> (C), (C)"""
    levels = torch.from_numpy(np.arange(256) / 255)
    shares = found.double() / found.sum(1, keepdim=True)
    mean = (shares * levels).sum(1)
    return mean, (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
