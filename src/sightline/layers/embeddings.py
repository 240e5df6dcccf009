"""Token embeddings and output projections over a vocabulary.

Shapes: B batch, T tokens, M embedding dimension, V vocabulary.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check_int
from ..kernels.cross_entropy import linear_cross_entropy

TieEmbeddings = Literal["none", "target", "all"]


class TokenEmbedding(nn.Module):
    """A table with one vector per token, for the input of a model, for its output, or for both (tied embeddings)."""

    def __init__(self, vocab_size: int, embed_dim: int):
        super().__init__()
        check_int(1, vocab_size=vocab_size, embed_dim=embed_dim)
        self.weight = nn.Parameter(torch.randn(vocab_size, embed_dim) / math.sqrt(embed_dim))

    def forward(self, ids: Tensor) -> Tensor:
        """Look up tokens, scaled by sqrt(M): ids (...) -> (..., M)"""
        return F.embedding(ids, self.weight) * math.sqrt(self.weight.shape[1])

    def logits(self, x: Tensor) -> Tensor:
        """x (..., M) -> logits (..., V)"""
        return F.linear(x, self.weight)

    def loss(self, x: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """The summed cross entropy of the logits of x; label -100 is ignored: x (..., M), labels (...) -> ()"""
        return linear_cross_entropy(x, self.weight, labels, label_smoothing=label_smoothing)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class Words(nn.Module):
    """The embeddings of a translator: source, target and output.

    `tie_embeddings` says which share a table: target and output (`target`), all three (`all`) or none.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        embed_dim: int,
        *,
        tie_embeddings: TieEmbeddings = "target",
    ):
        super().__init__()
        check_int(1, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size, embed_dim=embed_dim)
        if tie_embeddings == "all" and source_vocab_size != target_vocab_size:
            raise SightlineError(
                f"tie_embeddings must be target or none where the vocabularies differ, {source_vocab_size} and "
                f"{target_vocab_size}, got all"
            )
        self.scale = math.sqrt(embed_dim)
        self.target_table = _table(target_vocab_size, embed_dim)
        self.source_table = None if tie_embeddings == "all" else _table(source_vocab_size, embed_dim)
        self.output_table = _table(target_vocab_size, embed_dim) if tie_embeddings == "none" else None

    def read_source(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, M)"""
        table = self.target_table if self.source_table is None else self.source_table
        return F.embedding(ids, table) * self.scale

    def read_target(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, M)"""
        return F.embedding(ids, self.target_table) * self.scale

    def write(self, x: Tensor) -> Tensor:
        """x (..., M) -> logits (..., V)"""
        return F.linear(x, self._output)

    def loss(self, x: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """The summed cross entropy: x (B, T, M), labels (B, T) -> ()"""
        return linear_cross_entropy(x, self._output, labels, label_smoothing=label_smoothing)

    @property
    def _output(self) -> Tensor:
        return self.target_table if self.output_table is None else self.output_table


def _table(vocab_size: int, embed_dim: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(vocab_size, embed_dim) / math.sqrt(embed_dim))
