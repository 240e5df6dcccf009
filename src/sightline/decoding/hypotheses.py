"""What all decoding methods share: the model they need and the hypotheses they return.

Shapes: R rows (hypotheses in progress), V vocabulary, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check_int, check_max

MIN_FINISHED = 1 / 8
"""Fraction of rows that must have finished before they are dropped from the batch."""


class EncoderOutput(Protocol):
    """The encoded sources of a batch; its length is the number of sources."""

    def __len__(self) -> int: ...
    @property
    def device(self) -> torch.device:
        """Device of the model."""


class DecodingModel(Protocol):
    """A model that predicts one token after another."""

    def start(self, encoder_output: Any, /) -> Any:
        """The state before the first token."""

    def step(self, state: Any, tokens: Tensor, /) -> tuple[Tensor, Any]:
        """Append a token to each row: tokens (R,) -> logits of the next token (R, V), new state.

        The old state is not used again and may be changed.
        """

    def reorder(self, state: Any, indices: Tensor, /, *, same_source: bool = False) -> Any:
        """Select rows of the state: indices (R',). With `same_source`, the source of every row stays the same."""


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence."""

    tokens: tuple[int, ...]
    """Token ids, without BOS and EOS."""
    score: float
    """Log-probability of all tokens, EOS included."""
    normalized_score: float
    """score / length ** length_penalty, by which hypotheses are ranked. EOS counts toward the length."""
    finished: bool
    """Whether it ended with EOS; False if it was cut off at `max_tokens`."""


def rank_key(hypothesis: Any) -> tuple[bool, float]:
    """The sort key of hypotheses, descending: finished ones first, then by normalized score."""
    return hypothesis.finished, hypothesis.normalized_score


def decoder_inputs(hypotheses: Sequence[Hypothesis], *, bos: int = 1, pad: int = 0) -> Tensor:
    """The decoder input that reproduces these hypotheses: (number of hypotheses, longest + 1), each after BOS.

    Run the model on it inside `record_attention` to get the attention of every hypothesis.
    """
    size = max((len(hypothesis.tokens) for hypothesis in hypotheses), default=0)
    rows = [[bos, *hypothesis.tokens, *[pad] * (size - len(hypothesis.tokens))] for hypothesis in hypotheses]
    return torch.tensor(rows, dtype=torch.int64).view(len(hypotheses), size + 1)


def as_ids(tokens: Sequence[int], device: torch.device) -> Tensor:
    """Token ids as a tensor on the model's device."""
    return torch.tensor(list(tokens), dtype=torch.int64, device=device)


def check_decoding(model: DecodingModel, max_tokens: int) -> None:
    """Raise an error if the model is in training mode or max_tokens is out of range."""
    check_int(1, max_tokens=max_tokens)
    check_max(limits.MAX_DECODED_TOKENS, max_tokens=max_tokens)
    if getattr(model, "training", False):
        raise SightlineError("model must be in eval mode, got a model in training mode; call model.eval() first")
