"""Words to vectors and back: the tables of both languages, apart or tie_embeddings, and what a wrong word costs.

Legend for all shapes: B batch, T tokens, N words that are labels, M model embed_dim, V target vocabulary.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check_int

TieEmbeddings = Literal["none", "target", "all"]
IGNORE_INDEX = -100
"""In place of a word where none is labels, as in torch's cross entropy."""
ROWS = 128
"""Words whose logits a CPU holds at a time: few enough to stay in its cache."""


class Words(nn.Module):
    """A table for reading each language, and one for writing.

    `tie_embeddings` says which are one and the same: `target` reads and writes by one table, `all` reads the source by it too.
    A table starts with rows of length about 1; what is read from it is stretched by the root of the embed_dim.
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
        self.stretch = math.sqrt(embed_dim)
        self.target_table = _table(target_vocab_size, embed_dim)
        self.source_table = None if tie_embeddings == "all" else _table(source_vocab_size, embed_dim)
        self.output_table = _table(target_vocab_size, embed_dim) if tie_embeddings == "none" else None

    def read_source(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, M)"""
        table = self.target_table if self.source_table is None else self.source_table
        return F.embedding(ids, table) * self.stretch

    def read_target(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, M)"""
        return F.embedding(ids, self.target_table) * self.stretch

    def write(self, x: Tensor) -> Tensor:
        """x (..., M) -> logits (..., V)"""
        return F.linear(x, self._output)

    def loss(self, x: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """The cross entropy of all labels words, summed: x (B, T, M), labels (B, T) -> ()

        A share of `label_smoothing` is spread over all words alike. Where -100 is labels, nothing is. On a CPU only labels
        words have their logits made, some at a time.
        """
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            logits = self.write(x).flatten(0, -2).float()
            return F.cross_entropy(logits, labels.flatten(), reduction="sum", label_smoothing=label_smoothing)
        there, table = labels != IGNORE_INDEX, self._output
        with torch.autocast("cpu", enabled=False):
            loss: Tensor = _InParts.apply(x[there].to(table.dtype), table, labels[there], label_smoothing)
        return loss

    @property
    def _output(self) -> Tensor:
        return self.target_table if self.output_table is None else self.output_table


class _InParts(torch.autograd.Function):
    """Cross entropy of x (N, M) written by a table (V, M): logits are made for some rows at a time, and their gradient
    at once, so that they are never all in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        loss, learns = x.new_zeros(()), any(ctx.needs_input_grad)
        x_gradient, table_gradient = (torch.empty_like(x), torch.zeros_like(table)) if learns else (None, None)
        for first in range(0, len(x), ROWS):
            part = slice(first, first + ROWS)
            words = labels[part].unsqueeze(1)
            logits = x[part] @ table.T
            total = logits.logsumexp(1, keepdim=True)
            loss += (total - (1 - label_smoothing) * logits.gather(1, words)).sum()
            if label_smoothing:
                loss -= label_smoothing * logits.mean(1).sum()
            if x_gradient is not None and table_gradient is not None:
                slope = logits.sub_(total).exp_()
                slope.scatter_add_(1, words, torch.full_like(total, label_smoothing - 1))
                slope = slope.sub_(label_smoothing / len(table)) if label_smoothing else slope
                torch.mm(slope, table, out=x_gradient[part])
                table_gradient.addmm_(slope.T, x[part])
        ctx.save_for_backward(x_gradient, table_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_gradient, table_gradient = ctx.saved_tensors
        return gradient * x_gradient, gradient * table_gradient, None, None


def _table(rows: int, embed_dim: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, embed_dim) / math.sqrt(embed_dim))
