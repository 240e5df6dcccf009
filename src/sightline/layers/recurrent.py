"""Recurrent layers: GRU and LSTM.

Shapes: B batch, T tokens, M hidden size.
"""

from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check, check_choice, check_fraction, check_int
from ..kernels.dropout import Dropout

Cell = Literal["gru", "lstm"]
Hidden = tuple[Tensor, ...]
"""Hidden state, each tensor (num_layers, B, M): one tensor for a GRU, two for an LSTM."""


class RNN(nn.Module):
    """A unidirectional GRU or LSTM. It runs in full precision, since rounding errors accumulate over tokens."""

    def __init__(
        self, input_size: int, hidden_size: int, *, cell: Cell = "gru", num_layers: int = 1, dropout: float = 0.0
    ):
        super().__init__()
        check_int(1, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_fraction(dropout=dropout)
        check_choice("cell", cell, get_args(Cell))
        self.num_states = 1 if cell == "gru" else 2
        """Tensors in the hidden state."""
        rnn: type[nn.GRU] | type[nn.LSTM] = nn.GRU if cell == "gru" else nn.LSTM
        dropout = dropout if num_layers > 1 else 0.0
        self.cells = rnn(input_size, hidden_size, num_layers, batch_first=True, dropout=dropout)

    def forward(self, x: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """x (B, T, input_size) -> outputs (B, T, M), and the hidden state after the last token"""
        if torch.compiler.is_exporting():
            return self._scan(x, hidden)
        with torch.autocast(x.device.type, enabled=False):
            dtype = next(self.cells.parameters()).dtype
            before = None if hidden is None else tuple(state.to(dtype) for state in hidden)
            outputs, after = self.cells(x.to(dtype), before[0] if before and self.num_states == 1 else before)
            return outputs, (after,) if self.num_states == 1 else after

    def _scan(self, x: Tensor, hidden: Hidden | None) -> tuple[Tensor, Hidden]:
        """`forward` as one loop over the tokens, for an export: torch's own operation fixes the length."""
        from torch._higher_order_ops.scan import scan

        cells, finals = self.cells, list[tuple[Tensor, ...]]()
        step = _gru_step if self.num_states == 1 else _lstm_step
        for i in range(cells.num_layers):
            w_input, w_hidden, b_input, b_hidden = (
                getattr(cells, f"{name}_l{i}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            zeros = x.new_zeros(x.shape[0], cells.hidden_size)
            before = [zeros] * self.num_states if hidden is None else [states[i] for states in hidden]
            state = tuple(tensor.clone() for tensor in before)
            gates = F.linear(x, w_input, b_input).transpose(0, 1)
            final, outputs = scan(partial(step, w_hidden, b_hidden), state, gates)
            x = outputs.transpose(0, 1)
            finals.append(final)
        return x, tuple(torch.stack(states) for states in zip(*finals, strict=True))


class RecurrentEncoder(nn.Module):
    """A stack of GRUs or LSTMs over padded sequences, in one or both directions.

    Both directions have half of `hidden_size` each. Padding must follow the tokens. The backward direction starts at
    the last token of each row, so padding never affects the output at tokens.
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
        is_valid = not bidirectional or hidden_size % 2 == 0
        check(is_valid, f"hidden_size must be even where the encoder is bidirectional, got {hidden_size}")
        self.direction_size = hidden_size // 2 if bidirectional else hidden_size
        self.dropout = Dropout(dropout)
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.forwards = nn.ModuleList(RNN(size, self.direction_size, cell=cell) for size in sizes)
        self.backwards = nn.ModuleList(RNN(size, self.direction_size, cell=cell) for size in sizes if bidirectional)

    def forward(self, x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, input_size), attention_mask (B, T) -> outputs (B, T, M), final output of each direction (B, M)"""
        lengths = attention_mask.sum(1, keepdim=True)
        reversal = _reversal(lengths, x.shape[1])
        for i, forwards in enumerate(self.forwards):
            x = self.dropout(x) if i else x
            outputs = forwards(x)[0]
            if self.backwards:
                backward_outputs = self.backwards[i](_gather_tokens(x, reversal))[0]
                outputs = torch.cat((outputs, _gather_tokens(backward_outputs, reversal)), -1)
            x = outputs
        last = _gather_tokens(x, (lengths - 1).clamp_min(0))[:, 0, : self.direction_size]
        return x, torch.cat((last, x[:, 0, self.direction_size :]), -1)


def _gru_step(weight: Tensor, bias: Tensor, state: Hidden, gates: Tensor) -> tuple[Hidden, Tensor]:
    """One token of a GRU: gates (B, 3 M) of the input -> the new state (B, M), and a copy of it"""
    reset_input, update_input, new_input = gates.chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = F.linear(state[0], weight, bias).chunk(3, 1)
    update = torch.sigmoid(update_input + update_hidden)
    new = torch.tanh(new_input + torch.sigmoid(reset_input + reset_hidden) * new_hidden)
    after = new + update * (state[0] - new)
    return (after,), after.clone()


def _lstm_step(weight: Tensor, bias: Tensor, state: Hidden, gates: Tensor) -> tuple[Hidden, Tensor]:
    """One token of an LSTM: gates (B, 4 M) of the input -> the new states (B, M), and a copy of the hidden one"""
    hidden, cell = state
    opened, forget, new, shown = (gates + F.linear(hidden, weight, bias)).chunk(4, 1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(opened) * torch.tanh(new)
    hidden = torch.sigmoid(shown) * torch.tanh(cell)
    return (hidden, cell), hidden.clone()


def _reversal(lengths: Tensor, size: int) -> Tensor:
    """Indices that reverse the tokens of each row and keep its padding: lengths (B, 1) -> (B, size)"""
    positions = torch.arange(size, device=lengths.device)
    return torch.where(positions < lengths, lengths - 1 - positions, positions)


def _gather_tokens(x: Tensor, indices: Tensor) -> Tensor:
    """x (B, T, M), indices (B, N) -> (B, N, M)"""
    return x.gather(1, indices.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
