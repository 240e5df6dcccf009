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

from ..checks import check_whole, nearest


class Score(nn.Module):
    """forward: q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""

    @classmethod
    def sized(cls, width: int, heads: int) -> "Score":
        """This score for `heads` heads of `width` channels each."""
        return cls()

    @classmethod
    def fixed(cls) -> "Score":
        """This score with nothing to learn, for those who give its name to a function."""
        return cls()


class FoldedScore(Score, ABC):
    """A score that is a plain dot product of folded vectors."""

    @abstractmethod
    def fold(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        """Vectors q', k' and a factor with score = factor * q' . k'; `heads` says which heads q and k hold."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        q, k, factor = self.fold(q, k)
        return (q if factor == 1 else q * factor) @ k.mT  # scaled first: half precision ends at 65,504


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

    The temperature is floor * e^|r|, where r starts at log(start / floor) and drifts from there as it is learnt. It
    never falls below its floor, and its slope in r is nowhere 0: pushed against the floor it stays there, and it rises
    again as soon as it should. Weight decay draws it back to where it started.
    """

    def __init__(self, *, temperature: float = 0.05, floor: float = 0.01, heads: int = 1, learn: bool = True):
        super().__init__()
        if not 0 < floor < math.inf:
            raise ValueError(f"floor must be positive and finite, got {floor}")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        if temperature < floor:
            raise ValueError(f"temperature must be at least the floor {floor}, got {temperature}")
        check_whole(1, heads=heads)
        self.floor, self.start = floor, math.log(temperature / floor)
        self.drift = nn.Parameter(torch.zeros(heads, 1, 1), requires_grad=learn)

    @classmethod
    def sized(cls, width: int, heads: int) -> "CosineScore":
        return cls(heads=heads)

    @classmethod
    def fixed(cls) -> "CosineScore":
        return cls(learn=False)

    def temperature(self) -> Tensor:
        """One temperature for all heads, or one per head: (heads, 1, 1)"""
        size = F.leaky_relu(self.start + self.drift, -1.0)  # |r| with a slope at 0, where torch.abs has none
        return self.floor * size.exp()

    def fold(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_same_width(q, k)
        temperature = _of_heads(self.temperature(), heads, q)
        return _direction(q, temperature), _direction(k, torch.ones_like(temperature)), 1.0

    def extra_repr(self) -> str:
        return f"heads={len(self.drift)}, floor={self.floor}, learn={self.drift.requires_grad}"


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

    @classmethod
    def fixed(cls) -> "GeneralScore":
        raise ValueError(
            "score must be made once and passed where it has weights to learn, got the name of GeneralScore"
        )

    def fold(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_width("query", q, self.turn.shape[1])
        _check_width("key", k, self.turn.shape[2])
        return q @ _of_heads(self.turn, heads, q), k, 1.0


class AdditiveScore(Score):
    """v . tanh(W_q q + W_k k + b): a small network compares them (Bahdanau). Memory is Q x K x hidden.

    Where `keys_ready`, keys come as W_k k, with `hidden` channels: who asks the same keys often maps them only once.
    """

    def __init__(
        self,
        width: int,
        *,
        key_width: int | None = None,
        hidden: int | None = None,
        heads: int = 1,
        keys_ready: bool = False,
    ):
        super().__init__()
        hidden = width if hidden is None else hidden
        check_whole(1, hidden=hidden)
        key_width = _checked_width(width, hidden if keys_ready else key_width, heads)
        self.query = nn.Parameter(torch.empty(heads, width, hidden))
        self.key = None if keys_ready else nn.Parameter(torch.empty(heads, key_width, hidden))
        self.bias = nn.Parameter(torch.zeros(heads, 1, hidden))
        self.sum = nn.Parameter(torch.empty(heads, hidden, 1))
        for weight in (self.query, self.key, self.sum):
            if weight is not None:
                _start_linear(weight)

    @classmethod
    def sized(cls, width: int, heads: int) -> "AdditiveScore":
        return cls(width, heads=heads)

    @classmethod
    def fixed(cls) -> "AdditiveScore":
        raise ValueError(
            "score must be made once and passed where it has weights to learn, got the name of AdditiveScore"
        )

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        _check_width("query", q, self.query.shape[1])
        _check_width("key", k, self.bias.shape[-1] if self.key is None else self.key.shape[1])
        every = slice(None)
        left = q @ _of_heads(self.query, every, q) + _of_heads(self.bias, every, q)
        right = k if self.key is None else k @ _of_heads(self.key, every, q)
        compared = torch.tanh(left.unsqueeze(-2) + right.unsqueeze(-3))  # (B, H, Q, K, hidden)
        return (compared @ _of_heads(self.sum, every, q).unsqueeze(-3)).squeeze(-1)


SCORES: dict[str, type[Score]] = {
    "dot": DotScore,
    "cosine": CosineScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
}


def find_score(name: str) -> type[Score]:
    """The score of this name."""
    if not isinstance(name, str) or name not in SCORES:
        raise ValueError(f"score must be a Score or {nearest(str(name), SCORES)}")
    return SCORES[name]


def make_score(score: str | Score, *, width: int, heads: int) -> Score:
    """A score by its name in `SCORES`, sized for these heads; one that is ready made comes back as it is."""
    return score if isinstance(score, Score) else find_score(score).sized(width, heads)


def _direction(x: Tensor, divisor: Tensor) -> Tensor:
    """x / (|x| divisor) for x (..., D); a zero vector stays zero and passes no gradient."""
    if torch.compiler.is_compiling():  # the compiler saves the copies by itself, and that of torch 2.11 loses gradients
        return _scaled(x, _inverse_norm(x) / divisor)
    return _Direction.apply(x, divisor)


class _Direction(torch.autograd.Function):
    """The same: plain operations take more kernels and keep copies of x for the way back; this keeps none but x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, divisor: Tensor) -> Tensor:
        return _scaled(x, _inverse_norm(x) / divisor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, divisor = ctx.saved_tensors
        inverse = _inverse_norm(x)
        direction = _scaled(x, inverse)
        along = (grad * direction).sum(-1, keepdim=True, dtype=inverse.dtype)  # what would only change the length
        across = torch.addcmul(grad, direction, along.to(grad.dtype), value=-1)
        return _scaled(across, inverse / divisor), (-along / divisor.square()).sum_to_size(
            divisor.shape
        ) if ctx.needs_input_grad[1] else None


def _scaled(x: Tensor, factor: Tensor) -> Tensor:
    """x * factor in x's own precision, rounded once; without a wider copy where nobody wants a gradient of it"""
    return (x * factor).to(x.dtype) if torch.is_grad_enabled() else x.clone().mul_(factor)


def _inverse_norm(x: Tensor) -> Tensor:
    """1 / |x| in at least float32, 0 for a zero vector: x (..., D) -> (..., 1)"""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    return F.threshold(norm, 1e-12, math.inf).reciprocal()


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
    check_whole(1, width=width, key_width=key_width, heads=heads)
    return key_width


def _start_linear(weight: Tensor) -> None:
    """Uniform within 1/sqrt(inputs), as nn.Linear starts; weight (heads, inputs, outputs)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
