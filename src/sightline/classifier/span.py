"""Embeddings in the subspace that they span, where the methods without attention have the same logits.

Held-out images are classified many times. In the subspace, each embedding is normalized once and has at most as many
dimensions as there are images.

Shapes: N images, T tokens per image, M embedding dimension, D dimension of the subspace.
"""

import torch
from torch import Tensor, nn

from ..models.few_shot_head import FewShotHead
from .methods import Blend, Method

JITTER = 1e-10
"""Added to the squared lengths, as a fraction of their mean, since embeddings can be linearly dependent."""


class Part(nn.Module):
    """Some dimensions of the embeddings, in place of a normalization."""

    def __init__(self, part: slice):
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """x (..., M) -> (..., D)"""
        return x[..., self.part]


def in_span(method: Method, embeddings: Tensor) -> tuple[Method, Tensor]:
    """A method for embeddings (N, 1, D) with the same logits as a method for embeddings (N, T, M).

    Support and query images must be among them. A method with attention or patch matching, which compares tokens, is
    returned as it is.
    """
    heads = method.members if isinstance(method, Blend) else (method,)
    readouts, parts, start = list[FewShotHead](), list[Tensor](), 0
    for head in heads:
        if not isinstance(head, FewShotHead) or not head.is_readout:
            return method, embeddings
        x = _rotated(head.normalize(embeddings.to(head.device)).mean(1).double())
        readouts.append(head.for_normalized(Part(slice(start, start + x.shape[1]))))
        parts.append(x)
        start += x.shape[1]
    combined = Blend(readouts, method.scales) if isinstance(method, Blend) else readouts[0]
    return combined, torch.cat(parts, -1)[:, None].cpu()


def _rotated(x: Tensor) -> Tensor:
    """Vectors (N, M) with the same inner products in at most N dimensions: (N, D)"""
    if len(x) >= x.shape[1]:
        return x
    products = x @ x.mT
    products.diagonal().add_(JITTER * products.diagonal().mean())
    return torch.linalg.cholesky(products)
