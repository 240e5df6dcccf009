"""Words to vectors and back: the tables of both languages, apart or tied.

Legend for all shapes: B batch, N tokens, M model width, V target vocabulary.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_whole

Tied = Literal["none", "target", "all"]


class Words(nn.Module):
    """A table for reading each language, and one for writing.

    `tied` says which are one and the same: `target` reads and writes by one table, `all` reads the source by it too.
    A table starts with rows of length about 1; what is read from it is stretched by the root of the width.
    """

    def __init__(self, source_vocabulary: int, target_vocabulary: int, width: int, *, tied: Tied = "target"):
        super().__init__()
        check_whole(1, source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary, width=width)
        if tied == "all" and source_vocabulary != target_vocabulary:
            raise ValueError(
                f"tied must not be all where vocabularies differ, {source_vocabulary} and {target_vocabulary}"
            )
        self.stretch = math.sqrt(width)
        self.target_table = _table(target_vocabulary, width)
        self.source_table = None if tied == "all" else _table(source_vocabulary, width)
        self.output_table = _table(target_vocabulary, width) if tied == "none" else None

    def read_source(self, ids: Tensor) -> Tensor:
        """ids (B, N) -> (B, N, M)"""
        table = self.target_table if self.source_table is None else self.source_table
        return F.embedding(ids, table) * self.stretch

    def read_target(self, ids: Tensor) -> Tensor:
        """ids (B, N) -> (B, N, M)"""
        return F.embedding(ids, self.target_table) * self.stretch

    def write(self, x: Tensor) -> Tensor:
        """x (..., M) -> logits (..., V)"""
        return F.linear(x, self.target_table if self.output_table is None else self.output_table)


def _table(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, width) / math.sqrt(width))
