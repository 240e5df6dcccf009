"""What all decoding methods share: the model and the options they need, and the hypotheses they return.

Shapes: R rows (hypotheses in progress), V vocabulary, T tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import limits
from ..errors import check, check_int, check_max

MIN_FINISHED = 1 / 8
"""Fraction of rows that must have finished before they are dropped from the batch."""


class EncodedSources(Protocol):
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


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """The special tokens of the model's vocabulary, and the maximum length."""

    bos: int
    """Id of the first token."""
    eos: int
    """Id of the last token."""
    suppress_tokens: tuple[int, ...] = ()
    """Ids that are never predicted, such as padding."""
    max_tokens: int = 256

    def __post_init__(self) -> None:
        check_int(1, max_tokens=self.max_tokens)
        check_max(limits.MAX_DECODED_TOKENS, max_tokens=self.max_tokens)


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


def ranked(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """The best hypotheses first: finished ones, then by normalized score."""
    return sorted(hypotheses, key=lambda hypothesis: (hypothesis.finished, hypothesis.normalized_score), reverse=True)


def decoder_inputs(hypotheses: Sequence[Hypothesis], *, bos: int, pad: int) -> Tensor:
    """The decoder input that reproduces these hypotheses: (number of hypotheses, longest + 1), each after BOS.

    Run the model on it inside `record_attention` to get the attention of every hypothesis.
    """
    size = max((len(hypothesis.tokens) for hypothesis in hypotheses), default=0)
    rows = [[bos, *hypothesis.tokens, *[pad] * (size - len(hypothesis.tokens))] for hypothesis in hypotheses]
    return torch.tensor(rows, dtype=torch.int64).view(len(hypotheses), size + 1)


def check_mode(model: DecodingModel) -> None:
    """Raise an error if the model is in training mode."""
    is_training = getattr(model, "training", False)
    check(not is_training, "model must be in eval mode, got a model in training mode; call model.eval() first")
