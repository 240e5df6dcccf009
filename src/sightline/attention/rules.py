"""What masks say once the sizes are known."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..errors import SightlineError


class Rules(NamedTuple):
    """What a mask says of Q queries and K keys; each part broadcasts to (B, H, Q, K), None changes nothing."""

    allowed: Tensor | None = None
    """bool, True = may look; it has the last word."""
    bias: Tensor | None = None
    """Added to the scores."""
    factor: Tensor | None = None
    """Multiplies the scores, before the bias."""

    def bend(self, scores: Tensor) -> Tensor:
        """scores (B, H, Q, K) -> scores (B, H, Q, K)"""
        if self.factor is not None:
            scores = scores * self.factor
        if self.bias is not None:
            scores = scores + self.bias
        return scores


def meet(operation: Callable[[Tensor, Tensor], Tensor], a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Both, or the one there is."""
    if a is None or b is None:
        return b if a is None else a
    if not all(x == y or 1 in (x, y) for x, y in zip(a.shape[::-1], b.shape[::-1], strict=False)):
        raise SightlineError(f"masks must fit one another, got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    return operation(a, b)


def broadcasts(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a tensor of the one shape serves where the other is wanted."""
    return len(part) <= len(whole) and all(a in (1, b) for a, b in zip(part[::-1], whole[::-1], strict=False))
