"""Recurrent layers: a sentence is read word by word, by one fused call for all its words.

Legend for all shapes: B batch, N tokens, S source tokens, W hidden_size.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check_fraction, check_int, one_of
from ..kernels.dropout import Dropout

Cell = Literal["gru", "lstm"]
Hidden = tuple[Tensor, ...]
"""What a recurrence remembers, each (num_layers, B, W): one tensor for a GRU, two for an LSTM."""


class Recurrence(nn.Module):
    """Layers of cells, one upon the other, in one direction; in full precision, for its errors add up word by word."""

    def __init__(
        self, input_size: int, hidden_size: int, *, cell: Cell = "gru", num_layers: int = 1, dropout: float = 0.0
    ):
        super().__init__()
        check_int(1, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_fraction(dropout=dropout)
        if cell not in get_args(Cell):
            raise SightlineError(f"cell must be {one_of(str(cell), get_args(Cell))}")
        self.kind = cell
        kind: type[nn.GRU] | type[nn.LSTM] = nn.GRU if cell == "gru" else nn.LSTM
        self.cells = kind(
            input_size, hidden_size, num_layers, batch_first=True, dropout=dropout if num_layers > 1 else 0.0
        )

    @property
    def memories(self) -> int:
        """How many tensors its hidden state is."""
        return 1 if self.kind == "gru" else 2

    def forward(self, x: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """x (B, N, input_size) -> states (B, N, W), and what is remembered after the last of them"""
        with torch.autocast(x.device.type, enabled=False):
            own = next(self.cells.parameters()).dtype
            before = None if hidden is None else tuple(part.to(own) for part in hidden)
            if self.kind == "lstm":
                states, after = self.cells(x.to(own), before)
                return states, after
            states, after = self.cells(x.to(own), None if before is None else before[0])
            return states, (after,)


class RecurrentEncoder(nn.Module):
    """Reads a sentence forwards, or both ways at once with half of the hidden_size for each.

    Padding stands after the attention_mask words. Backwards, each sentence begins at its own last word, so padding is never read
    before a attention_mask word and changes none.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        cell: Cell = "gru",
        num_layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        check_int(1, hidden_size=hidden_size, num_layers=num_layers)
        if bidirectional and hidden_size % 2:
            raise SightlineError(f"hidden_size must be even where the encoder is bidirectional, got {hidden_size}")
        self.share = hidden_size // 2 if bidirectional else hidden_size
        self.dropout = Dropout(dropout)
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.forwards = nn.ModuleList(Recurrence(size, self.share, cell=cell) for size in sizes)
        self.backwards = nn.ModuleList(Recurrence(size, self.share, cell=cell) for size in sizes if bidirectional)

    def forward(self, x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, S, input_size), attention_mask (B, S) -> states (B, S, W), the last of each direction (B, W)"""
        lengths = attention_mask.sum(1, keepdim=True)
        mirror = _mirror(lengths, x.shape[1])
        for i, forwards in enumerate(self.forwards):
            x = self.dropout(x) if i else x
            states = forwards(x)[0]
            if self.backwards:
                behind = self.backwards[i](_turned(x, mirror))[0]
                states = torch.cat((states, _turned(behind, mirror)), -1)
            x = states
        last = _turned(x, (lengths - 1).clamp_min(0))[:, 0, : self.share]
        return x, torch.cat((last, x[:, 0, self.share :]), -1)


def _mirror(lengths: Tensor, size: int) -> Tensor:
    """Where each word stands when its sentence is read from the end: lengths (B, 1) -> places (B, size)"""
    places = torch.arange(size, device=lengths.device)
    return torch.where(places < lengths, lengths - 1 - places, places)


def _turned(x: Tensor, places: Tensor) -> Tensor:
    """x (B, N, W), places (B, P) -> (B, P, W)"""
    return x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
