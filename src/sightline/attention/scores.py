"""How alike a query and a key are.

Every score maps q (B, H, Q, D) and k (B, H, K, D) to scores (B, H, Q, K). Most are a dot product once the vectors are
*folded* (scaled, normalized or turned); those run on torch's fused attention when nobody watches. A new score is one
class here and its line in `SCORES`.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check_int, one_of


class Score(nn.Module):
    """forward: q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""

    @classmethod
    def for_heads(cls, head_dim: int, num_heads: int) -> "Score":
        """This score for `num_heads` num_heads of `head_dim` channels each."""
        return cls()

    @classmethod
    def fixed(cls) -> "Score":
        """This score with nothing to learnable, for those who give its name to a function."""
        return cls()


class DotProductScore(Score, ABC):
    """A score that is a plain dot product of folded vectors."""

    @abstractmethod
    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        """Vectors q', k' and a factor with score = factor * q' . k'; `num_heads` says which num_heads q and k hold."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        q, k, factor = self.to_dot_product(q, k)
        return (q if factor == 1 else q * factor) @ k.mT  # scaled first: half precision ends at 65,504


class DotScore(DotProductScore):
    """q . k / sqrt(D): the product grows with the length of both vectors and its variance with D, hence the root."""

    def __init__(self, *, scaled: bool = True):
        super().__init__()
        self.scaled = scaled

    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_same_width(q, k)
        return q, k, 1 / math.sqrt(q.shape[-1]) if self.scaled else 1.0


class CosineScore(DotProductScore):
    """The angle alone, sharpened by a temperature: cos(q, k) / temperature.

    The temperature is min_temperature * e^|r|, where r starts at log(temperature / min_temperature) and drifts from there as it is learned. It
    never falls below its min_temperature, and its slope in r is nowhere 0: pushed against the min_temperature it stays there, and it rises
    again as soon as it should. Weight decay draws it back to where it started.
    """

    def __init__(
        self, *, temperature: float = 0.05, min_temperature: float = 0.01, num_heads: int = 1, learnable: bool = True
    ):
        super().__init__()
        if not 0 < min_temperature < math.inf:
            raise SightlineError(f"min_temperature must be positive and finite, got {min_temperature}")
        if not 0 < temperature < math.inf:
            raise SightlineError(f"temperature must be positive and finite, got {temperature}")
        if temperature < min_temperature:
            raise SightlineError(
                f"temperature must be at least the min_temperature {min_temperature}, got {temperature}"
            )
        check_int(1, num_heads=num_heads)
        self.min_temperature, self.initial_temperature = min_temperature, temperature
        self.log_temperature_offset = nn.Parameter(torch.zeros(num_heads, 1, 1), requires_grad=learnable)

    @classmethod
    def for_heads(cls, head_dim: int, num_heads: int) -> "CosineScore":
        return cls(num_heads=num_heads)

    @classmethod
    def fixed(cls) -> "CosineScore":
        return cls(learnable=False)

    def temperature(self) -> Tensor:
        """One temperature for all num_heads, or one per head: (num_heads, 1, 1)"""
        size = F.leaky_relu(
            math.log(self.initial_temperature / self.min_temperature) + self.log_temperature_offset, -1.0
        )  # |r| with a slope at 0, where torch.abs has none
        return self.min_temperature * size.exp()

    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_same_width(q, k)
        temperature = _for_heads(self.temperature(), heads, q)
        return _direction(q, temperature), _direction(k, torch.ones_like(temperature)), 1.0

    def extra_repr(self) -> str:
        return f"num_heads={len(self.log_temperature_offset)}, min_temperature={self.min_temperature}, learnable={self.log_temperature_offset.requires_grad}"


class GeneralScore(DotProductScore):
    """q W_a k: the query is turned into the keys' space first (Luong)."""

    def __init__(self, head_dim: int, *, key_dim: int | None = None, num_heads: int = 1):
        super().__init__()
        key_dim = _checked_width(head_dim, key_dim, num_heads)
        self.weight = nn.Parameter(torch.empty(num_heads, head_dim, key_dim))
        _start_linear(self.weight)

    @classmethod
    def for_heads(cls, head_dim: int, num_heads: int) -> "GeneralScore":
        return cls(head_dim, num_heads=num_heads)

    @classmethod
    def fixed(cls) -> "GeneralScore":
        raise SightlineError(
            "score must be made once and passed where it has weights to learnable, got the name of GeneralScore"
        )

    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_width("query", q, self.weight.shape[1])
        _check_width("key", k, self.weight.shape[2])
        return q @ _for_heads(self.weight, heads, q), k, 1.0


class AdditiveScore(Score):
    """v . tanh(W_q q + W_k k + b): a small network compares them (Bahdanau). Memory is Q x K x hidden_dim.

    Where `keys_ready`, keys come as W_k k, with `hidden_dim` channels: who asks the same keys often maps them only once.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        key_dim: int | None = None,
        hidden_dim: int | None = None,
        num_heads: int = 1,
        keys_ready: bool = False,
    ):
        super().__init__()
        hidden_dim = head_dim if hidden_dim is None else hidden_dim
        check_int(1, hidden_dim=hidden_dim)
        key_dim = _checked_width(head_dim, hidden_dim if keys_ready else key_dim, num_heads)
        self.query = nn.Parameter(torch.empty(num_heads, head_dim, hidden_dim))
        self.key = None if keys_ready else nn.Parameter(torch.empty(num_heads, key_dim, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(num_heads, 1, hidden_dim))
        self.sum = nn.Parameter(torch.empty(num_heads, hidden_dim, 1))
        for weight in (self.query, self.key, self.sum):
            if weight is not None:
                _start_linear(weight)

    @classmethod
    def for_heads(cls, head_dim: int, num_heads: int) -> "AdditiveScore":
        return cls(head_dim, num_heads=num_heads)

    @classmethod
    def fixed(cls) -> "AdditiveScore":
        raise SightlineError(
            "score must be made once and passed where it has weights to learnable, got the name of AdditiveScore"
        )

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        _check_width("query", q, self.query.shape[1])
        _check_width("key", k, self.bias.shape[-1] if self.key is None else self.key.shape[1])
        every = slice(None)
        left = q @ _for_heads(self.query, every, q) + _for_heads(self.bias, every, q)
        right = k if self.key is None else k @ _for_heads(self.key, every, q)
        compared = torch.tanh(left.unsqueeze(-2) + right.unsqueeze(-3))  # (B, H, Q, K, hidden_dim)
        return (compared @ _for_heads(self.sum, every, q).unsqueeze(-3)).squeeze(-1)


SCORES: dict[str, type[Score]] = {
    "dot": DotScore,
    "cosine": CosineScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
}


def find_score(name: str) -> type[Score]:
    """The score of this name."""
    if not isinstance(name, str) or name not in SCORES:
        raise SightlineError(f"score must be a Score or {one_of(str(name), SCORES)}")
    return SCORES[name]


def make_score(score: str | Score, *, head_dim: int, num_heads: int) -> Score:
    """A score by its name in `SCORES`, for_heads for these num_heads; one that is ready made comes back as it is."""
    return score if isinstance(score, Score) else find_score(score).for_heads(head_dim, num_heads)


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


def _for_heads(parameter: Tensor, heads: slice, q: Tensor) -> Tensor:
    """The part of a per-head parameter (num_heads, ...) for these num_heads of q; a shared one (1, ...) serves all."""
    if parameter.shape[0] == 1:
        return parameter
    part = parameter[heads]
    if part.shape[0] != q.shape[-3]:
        raise SightlineError(
            f"a score made for {parameter.shape[0]} num_heads must be given as many, got {q.shape[-3]}"
        )
    return part


def _check_same_width(q: Tensor, k: Tensor) -> None:
    if q.shape[-1] != k.shape[-1]:
        raise SightlineError(f"queries and keys must have the same head_dim, got {q.shape[-1]} and {k.shape[-1]}")


def _check_width(name: str, x: Tensor, head_dim: int) -> None:
    if x.shape[-1] != head_dim:
        raise SightlineError(f"{name} head_dim must be {head_dim}, as the score was made, got {x.shape[-1]}")


def _checked_width(head_dim: int, key_dim: int | None, num_heads: int) -> int:
    key_dim = head_dim if key_dim is None else key_dim
    check_int(1, head_dim=head_dim, key_dim=key_dim, num_heads=num_heads)
    return key_dim


def _start_linear(weight: Tensor) -> None:
    """Uniform within 1/sqrt(inputs), as nn.Linear starts; weight (num_heads, inputs, outputs)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
