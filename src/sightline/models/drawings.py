"""Drawings as a model of drawings expects them: dark on white, whatever the paper, the pencil and the light."""

import torch
from torch import Tensor

WHITE, CLEAR = 0.92, 0.5
"""Paper above the first and ink that is darker than it by the second are left alone."""
LEAST = 0.04
"""A page whose levels differ by less is blank; its grain is not made into ink."""


def dark_on_white(images: Tensor) -> Tensor:
    """images (B, 1, height, width), from 0 to 1 -> the same with paper at 1 and ink at 0

    Paper is what most of an image is, ink the darkest thousandth of it. Light ink on dark paper is turned, what is gray
    or pale is stretched; what is dark on white already stays as it is.
    """
    paper = images.flatten(1).median(1).values.view(-1, 1, 1, 1)
    images, paper = (torch.where(paper < 0.5, 1 - x, x) for x in (images, paper))
    levels = images.flatten(1)
    ink = levels.kthvalue(1 + levels.shape[1] // 1000, 1).values.view(-1, 1, 1, 1)
    faint = (paper < WHITE) | (paper - ink < CLEAR)
    stretched = (1 - (paper - images) / (paper - ink).clamp_min(LEAST)).clamp(0, 1)
    return torch.where(faint, stretched, images)
