"""Attention scores: how well a query matches a key.

A score maps q (B, H, Q, D) and k (B, H, K, D) to scores (B, H, Q, K). Most scores are a dot product of transformed
vectors; those run on torch's fused attention. To add a score, write a class and list it in `SCORES`.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check, check_int, one_of
from ..kernels.cosine_attention import Temperature
from ..kernels.normalize import normalize, normalize_pair, takes_pair


class Score(nn.Module):
    """forward: q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""

    @classmethod
    def for_heads(cls, head_dim: int, num_heads: int) -> "Score":
        """An instance for `num_heads` heads of `head_dim` channels each."""
        return cls()

    @classmethod
    def without_parameters(cls) -> "Score":
        """An instance with nothing to learn, for functions that take a score by name."""
        return cls().requires_grad_(False)


class DotProductScore(Score, ABC):
    """A score that is a scaled dot product of transformed queries and keys."""

    @abstractmethod
    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        """Transformed q, k and a scale with score = scale * q · k. `heads` selects the heads that q and k hold."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        q, k, scale = self.to_dot_product(q, k)
        return (q if scale == 1 else q * scale) @ k.mT  # scaled first: unscaled products overflow float16


class DotScore(DotProductScore):
    """q · k / sqrt(D), or q · k if not `scaled`."""

    def __init__(self, *, scaled: bool = True):
        super().__init__()
        self.scaled = scaled

    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_same_dim(q, k)
        return q, k, 1 / math.sqrt(q.shape[-1]) if self.scaled else 1.0


class CosineScore(DotProductScore):
    """cos(q, k) / temperature.

    The temperature is min_temperature * exp(|r|) with r = log(temperature / min_temperature) + log_temperature_offset.
    The offset is learned and starts at 0. The temperature cannot fall below min_temperature, and its gradient is
    nowhere zero, so it can rise again from there. Weight decay pulls the offset back to 0.

    In attention modules that take the score by its name, the temperature starts at 1 / sqrt(head_dim): scores of random
    vectors have the variance 1, as those of `DotScore`.
    """

    def __init__(
        self, *, temperature: float = 0.05, min_temperature: float = 0.01, num_heads: int = 1, learnable: bool = True
    ):
        super().__init__()
        for name, value in (("min_temperature", min_temperature), ("temperature", temperature)):
            check(0 < value < math.inf, f"{name} must be positive and finite, got {value}")
        rule = f"temperature must be at least min_temperature={min_temperature}"
        check(temperature >= min_temperature, f"{rule}, got {temperature}")
        check_int(1, num_heads=num_heads)
        self.min_temperature, self.initial_temperature = min_temperature, temperature
        self._log_ratio = math.log(temperature / min_temperature)
        self.log_temperature_offset = nn.Parameter(torch.zeros(num_heads, 1, 1), requires_grad=learnable)

    @classmethod
    def for_heads(cls, head_dim: int, num_heads: int) -> "CosineScore":
        score = cls(num_heads=num_heads)
        default, score.initial_temperature = score.initial_temperature, max(head_dim**-0.5, score.min_temperature)
        # the offset starts elsewhere instead of the ratio, so that stored offsets mean the same for every head_dim
        nn.init.constant_(score.log_temperature_offset, math.log(score.initial_temperature / default))
        return score

    def temperature(self) -> Tensor:
        """The temperature of each head: (H, 1, 1), or (1, 1, 1) if all heads share one."""
        r = self._log_ratio + self.log_temperature_offset
        return self.min_temperature * torch.where(r < 0, -r, r).exp()  # |r|, with gradient 1 at 0

    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_same_dim(q, k)
        if takes_pair(q, k):
            offset = _select_heads(self.log_temperature_offset, q, heads)
            return *normalize_pair(q, k, offset, self._log_ratio, self.min_temperature), 1.0
        temperature = _select_heads(self.temperature(), q, heads)
        return normalize(q, temperature), normalize(k, torch.ones_like(temperature)), 1.0

    def kernel_temperature(self, q: Tensor, k: Tensor) -> Temperature:
        """The temperature for the kernels, which fits q (B, H, Q, D) and k (B, H, K, D)."""
        _check_same_dim(q, k)
        offset = _select_heads(self.log_temperature_offset, q).flatten()
        return Temperature(offset, self._log_ratio, self.min_temperature)

    def extra_repr(self) -> str:
        offset = self.log_temperature_offset
        return f"num_heads={len(offset)}, min_temperature={self.min_temperature}, learnable={offset.requires_grad}"


class PerHeadScore(Score):
    """A score with learned weights for each head."""

    @classmethod
    def for_heads(cls, head_dim: int, num_heads: int) -> Score:
        return cls(head_dim, num_heads=num_heads)

    @classmethod
    def without_parameters(cls) -> Score:
        name = cls.__name__
        raise SightlineError(
            f"score must be a Score where it has parameters to learn, got the name of {name}; "
            f"pass one {name} to every call"
        )


class GeneralScore(PerHeadScore, DotProductScore):
    """q W k with a learned matrix W for each head (Luong)."""

    def __init__(self, head_dim: int, *, key_dim: int | None = None, num_heads: int = 1):
        super().__init__()
        key_dim = head_dim if key_dim is None else key_dim
        check_int(1, head_dim=head_dim, key_dim=key_dim, num_heads=num_heads)
        self.weight = nn.Parameter(torch.empty(num_heads, head_dim, key_dim))
        _init_linear(self.weight)

    def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
        _check_dim("q", q, self.weight.shape[1])
        _check_dim("k", k, self.weight.shape[2])
        return q @ _select_heads(self.weight, q, heads), k, 1.0


class AdditiveScore(PerHeadScore):
    """v · tanh(W_q q + W_k k + b), a small network for each head (Bahdanau). Takes Q * K * hidden_dim memory.

    With `keys_projected`, keys are passed as W_k k with `hidden_dim` channels: project keys once and reuse them.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        key_dim: int | None = None,
        hidden_dim: int | None = None,
        num_heads: int = 1,
        keys_projected: bool = False,
    ):
        super().__init__()
        hidden_dim = head_dim if hidden_dim is None else hidden_dim
        key_dim = head_dim if key_dim is None else key_dim
        check_int(1, head_dim=head_dim, key_dim=key_dim, hidden_dim=hidden_dim, num_heads=num_heads)
        self.query = nn.Parameter(torch.empty(num_heads, head_dim, hidden_dim))
        self.key = None if keys_projected else nn.Parameter(torch.empty(num_heads, key_dim, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(num_heads, 1, hidden_dim))
        self.sum = nn.Parameter(torch.empty(num_heads, hidden_dim, 1))
        for weight in (self.query, self.key, self.sum):
            if weight is not None:
                _init_linear(weight)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, Q, D), k (B, H, K, D) -> scores (B, H, Q, K)"""
        _check_dim("q", q, self.query.shape[1])
        _check_dim("k", k, self.bias.shape[-1] if self.key is None else self.key.shape[1])
        weight, bias, output = (_select_heads(x, q) for x in (self.query, self.bias, self.sum))
        queries = q @ weight + bias
        keys = k if self.key is None else k @ _select_heads(self.key, q)
        hidden = torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3))  # (B, H, Q, K, hidden_dim)
        return (hidden @ output.unsqueeze(-3)).squeeze(-1)


SCORES: dict[str, type[Score]] = {
    "dot": DotScore,
    "cosine": CosineScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
}
"""Scores by name. Every config that names a score accepts these."""


def score_class(name: str) -> type[Score]:
    """The class of this name in `SCORES`."""
    if not isinstance(name, str) or name not in SCORES:
        raise SightlineError(f"score must be a Score or {one_of(str(name), SCORES)}")
    return SCORES[name]


def make_score(score: str | Score, *, head_dim: int, num_heads: int) -> Score:
    """A new score by its name in `SCORES`. A `Score` is returned unchanged."""
    return score if isinstance(score, Score) else score_class(score).for_heads(head_dim, num_heads)


def _select_heads(parameter: Tensor, q: Tensor, heads: slice = slice(None)) -> Tensor:
    """The heads of q from a per-head parameter (H, ...); a shared parameter (1, ...) broadcasts to all heads."""
    if parameter.shape[0] == 1:
        return parameter
    selected = parameter if heads == slice(None) else parameter[heads]
    if selected.shape[0] != q.shape[-3]:
        raise SightlineError(f"q must have {parameter.shape[0]} heads, the num_heads of the score, got {q.shape[-3]}")
    return selected


def _check_same_dim(q: Tensor, k: Tensor) -> None:
    if q.shape[-1] != k.shape[-1]:
        raise SightlineError(f"q and k must have the same head_dim, got {q.shape[-1]} and {k.shape[-1]}")


def _check_dim(name: str, x: Tensor, dim: int) -> None:
    if x.shape[-1] != dim:
        raise SightlineError(f"{name} must have {dim} channels, as the score was made for, got {x.shape[-1]}")


def _init_linear(weight: Tensor) -> None:
    """Initialize weight (H, inputs, outputs) as nn.Linear does: uniform within 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
