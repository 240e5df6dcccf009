"""How alike a query and a key are.

Every score maps q (B, H, Q, D) and k (B, H, K, D) to scores (B, H, Q, K). Most are a dot product once the vectors are
*folded* (scaled, normalised or turned); those run on torch's fused attention when nobody watches. A new score is one
class here and its line in `SCORES`.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..naming import nearest


class Score(nn.Module):
    """forward: q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""

    @classmethod
    def sized(cls, width: int, heads: int) -> "Score":
        """This score for `heads` heads of `width` channels each."""
        return cls()


class FoldedScore(Score, ABC):
    """A score that is a plain dot product of folded vectors."""

    @abstractmethod
    def fold(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        """Vectors q', k' and a factor with score = factor * q' . k'; `heads` says which heads q and k hold."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        q, k, factor = self.fold(q, k)
        return factor * (q @ k.mT)


class DotScore(FoldedScore):
    """q . k / sqrt(D): the product grows with the length of both vectors and its variance with D, hence the root."""

    def __init__(self, *, scaled: bool = True):
        super().__init__()
        self.scaled = scaled

    def fold(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_same_width(q, k)
        return q, k, 1 / math.sqrt(q.shape[-1]) if self.scaled else 1.0


class CosineScore(FoldedScore):
    """The angle alone, sharpened by a temperature: cos(q, k) / temperature.

    The temperature is floor * e^|r| with r learnt: it never falls below its floor, r = 0 reaches the floor exactly, and
    the gradient there is as large as anywhere, so a temperature that was pushed down can rise again at once.
    """

    def __init__(self, *, temperature: float = 0.05, floor: float = 0.01, heads: int = 1, learn: bool = True):
        super().__init__()
        if not 0 < floor < math.inf:
            raise ValueError(f"floor must be positive and finite, got {floor}")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        if temperature < floor:
            raise ValueError(f"temperature must be at least the floor {floor}, got {temperature}")
        if heads < 1:
            raise ValueError(f"heads must be at least 1, got {heads}")
        self.floor = floor
        start = torch.full((heads, 1, 1), math.log(temperature / floor))
        self.above_floor = nn.Parameter(start, requires_grad=learn)

    @classmethod
    def sized(cls, width: int, heads: int) -> "CosineScore":
        return cls(heads=heads)

    def temperature(self) -> Tensor:
        """One temperature for all heads, or one per head: (heads, 1, 1)"""
        size = F.leaky_relu(self.above_floor, -1.0)  # |r| with a slope at 0, where torch.abs has none
        return self.floor * size.exp()

    def fold(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_same_width(q, k)
        temperature = _of_heads(self.temperature(), heads, q)
        return _Direction.apply(q, temperature), _Direction.apply(k, torch.ones_like(temperature)), 1.0


class GeneralScore(FoldedScore):
    """q W_a k: the query is turned into the keys' space first (Luong)."""

    def __init__(self, width: int, *, key_width: int | None = None, heads: int = 1):
        super().__init__()
        key_width = _checked_width(width, key_width, heads)
        self.turn = nn.Parameter(torch.empty(heads, width, key_width))
        _start_linear(self.turn)

    @classmethod
    def sized(cls, width: int, heads: int) -> "GeneralScore":
        return cls(width, heads=heads)

    def fold(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_width("query", q, self.turn.shape[1])
        _check_width("key", k, self.turn.shape[2])
        return q @ _of_heads(self.turn, heads, q), k, 1.0


class AdditiveScore(Score):
    """v . tanh(W_q q + W_k k + b): a small network compares them (Bahdanau). Memory is Q x K x hidden."""

    def __init__(self, width: int, *, key_width: int | None = None, hidden: int | None = None, heads: int = 1):
        super().__init__()
        key_width = _checked_width(width, key_width, heads)
        hidden = width if hidden is None else hidden
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        self.query = nn.Parameter(torch.empty(heads, width, hidden))
        self.key = nn.Parameter(torch.empty(heads, key_width, hidden))
        self.bias = nn.Parameter(torch.zeros(heads, 1, hidden))
        self.sum = nn.Parameter(torch.empty(heads, hidden, 1))
        for weight in (self.query, self.key, self.sum):
            _start_linear(weight)

    @classmethod
    def sized(cls, width: int, heads: int) -> "AdditiveScore":
        return cls(width, heads=heads)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        _check_width("query", q, self.query.shape[1])
        _check_width("key", k, self.key.shape[1])
        every = slice(None)
        left = q @ _of_heads(self.query, every, q) + _of_heads(self.bias, every, q)
        right = k @ _of_heads(self.key, every, q)
        compared = torch.tanh(left.unsqueeze(-2) + right.unsqueeze(-3))  # (B, H, Q, K, hidden)
        return (compared @ _of_heads(self.sum, every, q).unsqueeze(-3)).squeeze(-1)


SCORES: dict[str, type[Score]] = {
    "dot": DotScore,
    "cosine": CosineScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
}


def make_score(score: str | Score, *, width: int, heads: int) -> Score:
    """A score by its name in `SCORES`, sized for these heads; one that is ready made comes back as it is."""
    if isinstance(score, Score):
        return score
    if not isinstance(score, str) or score not in SCORES:
        raise ValueError(f"score must be a Score or {nearest(str(score), SCORES)}")
    return SCORES[score].sized(width, heads)


class _Direction(torch.autograd.Function):
    """x / (|x| divisor) for x (..., D); a zero vector stays zero and passes no gradient.

    Plain operations say the same in more kernels and keep four copies of x for the way back; this keeps x alone.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, divisor: Tensor) -> Tensor:
        norm = _norm(x)
        ctx.save_for_backward(x, norm, divisor)
        return torch.div(x, norm * divisor, out=torch.empty_like(x))  # rounded once, at the end

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, norm, divisor = ctx.saved_tensors
        if torch.is_grad_enabled():
            norm = _norm(x)  # somebody wants the gradient of this gradient
        slope = 1 / (norm * divisor)
        along = (grad * x).sum(-1, keepdim=True, dtype=norm.dtype) / norm  # what would only change the length
        grad_x = torch.addcmul(grad * slope, x, along * slope / norm, value=-1).to(x.dtype)
        return grad_x, (-along / divisor.square()).sum_to_size(divisor.shape) if ctx.needs_input_grad[1] else None


def _norm(x: Tensor) -> Tensor:
    """|x| in at least float32, infinite for a zero vector, so that dividing by it gives 0: x (..., D) -> (..., 1)"""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    return F.threshold(norm, 1e-12, math.inf)


def _of_heads(parameter: Tensor, heads: slice, q: Tensor) -> Tensor:
    """The part of a per-head parameter (heads, ...) for these heads of q; a shared one (1, ...) serves all."""
    if parameter.shape[0] == 1:
        return parameter
    part = parameter[heads]
    if part.shape[0] != q.shape[-3]:
        raise ValueError(f"a score made for {parameter.shape[0]} heads must be given as many, got {q.shape[-3]}")
    return part


def _check_same_width(q: Tensor, k: Tensor) -> None:
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"queries and keys must have the same width, got {q.shape[-1]} and {k.shape[-1]}")


def _check_width(name: str, x: Tensor, width: int) -> None:
    if x.shape[-1] != width:
        raise ValueError(f"{name} width must be {width}, as the score was made, got {x.shape[-1]}")


def _checked_width(width: int, key_width: int | None, heads: int) -> int:
    key_width = width if key_width is None else key_width
    for name, value in (("width", width), ("key_width", key_width), ("heads", heads)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return key_width


def _start_linear(weight: Tensor) -> None:
    """Uniform within 1/sqrt(inputs), as nn.Linear starts; weight (heads, inputs, outputs)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
