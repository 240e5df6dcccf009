"""What decoding is made of: the model that takes steps, the hypotheses that come of them.

Legend for all shapes: B sentences, A sentences still running, R rows of the model's state, K beams, N candidates,
V vocabulary, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check_int, check_max

WORTH = 1 / 8
"""The share of rows that must have finished before it pays to drop them."""
NOTHING = float("-inf")


class Memory(Protocol):
    """What was read: as many sentences as it is long."""

    def __len__(self) -> int: ...
    @property
    def device(self) -> torch.device:
        """Where it lies."""


class Stepper(Protocol):
    """A model that writes one token after another."""

    def start(self, memory: Any, /) -> Any:
        """The state before the first token."""

    def step(self, state: Any, tokens: Tensor, /) -> tuple[Tensor, Any]:
        """tokens (R,) -> logits of the next (R, V), and the state after them; the state given may be spent"""

    def reorder(self, state: Any, rows: Tensor, /, *, within: bool = False) -> Any:
        """The state of these rows (R',), in this order; `within`: every row stands for the sentence it stood for."""


@dataclass(frozen=True)
class Hypothesis:
    """One way to write a sentence."""

    tokens: tuple[int, ...]
    """Without begin and end."""
    score: float
    """The log-probability of all its tokens, the end among them."""
    normalized: float
    """The score over length ** length_penalty, by which hypotheses are compared; the end counts."""
    finished: bool
    """Whether it came to its end, or was cut off at `max_tokens`."""


def as_targets(hypotheses: Sequence[Hypothesis], *, begin: int = 1, pad: int = 0) -> Tensor:
    """What a model reads to write these again, as it was taught: (number of them, longest + 1), each after `begin`.

    Run the model on it inside `record_attention`, and the attention of every hypothesis comes back.
    """
    size = max((len(one.tokens) for one in hypotheses), default=0)
    rows = [[begin, *one.tokens, *[pad] * (size - len(one.tokens))] for one in hypotheses]
    return torch.tensor(rows, dtype=torch.int64).view(len(hypotheses), size + 1)


def as_ids(never: Sequence[int], device: torch.device) -> Tensor:
    """Tokens that are not to be written, as a tensor where the model is."""
    return torch.tensor(list(never), dtype=torch.int64, device=device)


def check_ready(model: Stepper, max_tokens: int) -> None:
    """Whether decoding may begin."""
    check_int(1, max_tokens=max_tokens)
    check_max(limits.MAX_DECODED_TOKENS, max_tokens=max_tokens)
    if getattr(model, "training", False):
        raise SightlineError("model must not be training while it decodes, got one that is; call model.eval() first")
