"""Token embeddings and output projections over a vocabulary.

Shapes: B batch, T tokens, M embedding dimension, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check_int
from ..kernels.cross_entropy import linear_cross_entropy


class TokenEmbedding(nn.Module):
    """A table with one vector per token, for the input of a model, for its output, or for both (tied embeddings).

    The vectors that are looked up are scaled by sqrt(embed_dim) unless `scaled` is False, as in BERT.
    """

    def __init__(self, vocab_size: int, embed_dim: int, *, scaled: bool = True):
        super().__init__()
        self.scale = math.sqrt(embed_dim) if scaled else 1.0
        check_int(1, vocab_size=vocab_size, embed_dim=embed_dim)
        self.weight = nn.Parameter(torch.empty(vocab_size, embed_dim).normal_().div_(math.sqrt(embed_dim)))

    def forward(self, ids: Tensor) -> Tensor:
        """Look up tokens: ids (...) -> (..., M)"""
        x = F.embedding(ids, self.weight)
        return x if self.scale == 1.0 else x * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """x (..., M) -> logits (..., V)"""
        return F.linear(x, self.weight)

    def loss(self, x: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """The summed cross entropy of the logits of x; label -100 is ignored: x (..., M), labels (...) -> ()"""
        return linear_cross_entropy(x, self.weight, labels, label_smoothing=label_smoothing)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
