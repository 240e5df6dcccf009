"""Normalizers: from attention scores to attention weights.

A normalizer maps scores (B, H, Q, K) to weights of the same shape. A masked key has weight exactly 0, and so has every
key of a fully masked row. To add a normalizer, write a class and list it in `NORMALIZERS`.

Shapes: B batch, H heads, Q queries, K keys.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check, check_choice, check_fraction, one_of

MAX_PENDING = 4096
"""Forward passes of hard attention in training without a call of `reinforce`."""

Gradient = Literal["reinforce", "straight_through"]


class Normalizer(nn.Module):
    """forward: scores (B, H, Q, K), allowed (bool, broadcastable to the scores, or None) -> weights (B, H, Q, K)"""


class Softmax(Normalizer):
    """Positive weights that sum to 1."""

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """scores (B, H, Q, K) -> weights (B, H, Q, K)"""
        weights = _mask_scores(scores, allowed).softmax(-1, dtype=_sum_dtype(scores)).to(scores.dtype)
        return weights if allowed is None else weights.masked_fill(~allowed, 0.0)


class Hard(Normalizer):
    """Weight 1 for one key: sampled from the softmax in training, the most probable one otherwise.

    The choice has no gradient. `gradient="straight_through"` uses that of the softmax. `gradient="reinforce"` stores
    the log-probabilities of the samples; add `reinforce(model, losses)` to the loss of every batch. With `soft_share`,
    this share of the examples has the weights of the softmax in training instead, with their gradient, which lowers
    the variance (Xu et al., 2015).
    """

    baseline: Tensor
    has_baseline: Tensor

    def __init__(self, *, gradient: Gradient = "reinforce", momentum: float = 0.9, soft_share: float = 0.0):
        super().__init__()
        check_choice("gradient", gradient, get_args(Gradient))
        check_fraction(momentum=momentum, soft_share=soft_share)
        is_used = gradient == "reinforce" or not soft_share
        check(is_used, f"soft_share must be 0 with gradient={gradient!r}, got {soft_share}")
        self.gradient, self.momentum, self.soft_share, self.softmax = gradient, momentum, soft_share, Softmax()
        self.log_probs: list[Tensor] = []
        """Log-probabilities of the samples since the last `reinforce_loss`, each (B, Q)."""
        self.entropies: list[Tensor] = []
        """Entropies of the distributions that they were drawn from, each (B, Q)."""
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("has_baseline", torch.zeros(()))  # 0 or 1; weights are floating-point numbers

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """scores (B, H, Q, K) -> weights (B, H, Q, K)"""
        probs = self.softmax(scores, allowed)
        choice = _sample(probs) if self.training else probs.argmax(-1)
        weights = torch.zeros_like(probs).scatter(-1, choice.unsqueeze(-1), 1.0)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)
        if not (self.training and probs.requires_grad):
            return weights
        if self.gradient == "straight_through":
            return weights + (probs - probs.detach())
        if len(self.log_probs) >= MAX_PENDING:
            rule = f"hard attention must be followed by reinforce within {MAX_PENDING} forward passes"
            fix = "add reinforce(model, losses) to the loss of every batch, or use gradient='straight_through'"
            raise SightlineError(f"{rule}, got more; {fix}")
        log_probs = _mask_scores(scores, allowed).log_softmax(-1, dtype=_sum_dtype(scores))
        log_prob, entropy = (log_probs * weights).sum((1, 3)), -(log_probs * probs).sum((1, 3))
        if self.soft_share:
            is_soft = torch.rand(len(probs), device=probs.device) < self.soft_share
            weights = torch.where(is_soft[:, None, None, None], probs, weights)
            log_prob = log_prob.masked_fill(is_soft[:, None], 0.0)
        if not in_backward():  # activation checkpointing repeats the forward pass
            self.log_probs.append(log_prob)
            self.entropies.append(entropy)
        return weights

    def reinforce_loss(self, losses: Tensor, where: Tensor | None = None, entropy_weight: float = 0.0) -> Tensor:
        """A term with the REINFORCE gradient, (loss - baseline) * grad log p: losses (B,) or (B, Q) -> ()

        Losses (B, Q) are those of single queries, for models in which a choice affects no other query. `where` (B, Q)
        is True for queries that count. The baseline is a running mean of earlier losses. It lowers the variance of the
        gradient, not its mean. `entropy_weight` times the mean entropy is subtracted.
        """
        losses = losses.detach()
        check(self.log_probs, "reinforce must follow a forward pass in training mode with gradients, got none")
        pending, entropies = self.log_probs, self.entropies
        shape = tuple(pending[0].shape[: losses.dim()])
        has_shape = losses.dim() in (1, 2) and all(x.shape[: losses.dim()] == losses.shape for x in pending)
        check(has_shape, f"losses must have shape {shape}, got {tuple(losses.shape)}")
        self.log_probs, self.entropies = [], []
        log_prob, entropy = (_per_loss(x, losses.dim(), where) for x in (pending, entropies))
        is_counted = torch.ones_like(losses) if where is None or losses.dim() == 1 else where.to(losses.dtype)
        count = is_counted.sum().clamp_min(1)
        mean = ((losses * is_counted).sum() / count).to(self.baseline.dtype)
        advantage = (losses - self.baseline) * is_counted
        updated = self.momentum * self.baseline + (1 - self.momentum) * mean
        self.baseline = torch.where(self.has_baseline.bool(), updated, mean)
        self.has_baseline = torch.ones_like(self.has_baseline)
        return (advantage * log_prob - entropy_weight * entropy).sum() / count

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "log_probs": [], "entropies": []}  # copies start without pending samples


class Standardize(Normalizer):
    """Each row minus its mean, divided by its standard deviation, over the keys that are not masked."""

    def __init__(self, *, epsilon: float = 1e-6):
        super().__init__()
        self.epsilon = epsilon

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """scores (B, H, Q, K) -> weights (B, H, Q, K)"""
        x = scores.to(_sum_dtype(scores))
        if allowed is None:
            centered = x - x.mean(-1, keepdim=True)
            variance = centered.square().mean(-1, keepdim=True)
        else:
            allowed = allowed.expand_as(x)
            count = allowed.sum(-1, keepdim=True).clamp(min=1)
            x = x.masked_fill(~allowed, 0.0)
            centered = (x - x.sum(-1, keepdim=True) / count).masked_fill(~allowed, 0.0)
            variance = centered.square().sum(-1, keepdim=True) / count
        return (centered * (variance + self.epsilon).rsqrt()).to(scores.dtype)


class Identity(Normalizer):
    """The scores, unchanged."""

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """scores (B, H, Q, K) -> weights (B, H, Q, K)"""
        return scores if allowed is None else scores.masked_fill(~allowed, 0.0)


NORMALIZERS: dict[str, type[Normalizer]] = {
    "softmax": Softmax,
    "hard": Hard,
    "standardize": Standardize,
    "identity": Identity,
}
"""Normalizers by name."""


def make_normalizer(normalizer: str | Normalizer) -> Normalizer:
    """A new normalizer by its name in `NORMALIZERS`. A `Normalizer` is returned unchanged."""
    if isinstance(normalizer, Normalizer):
        return normalizer
    if not isinstance(normalizer, str) or normalizer not in NORMALIZERS:
        raise SightlineError(f"normalizer must be a Normalizer or {one_of(str(normalizer), NORMALIZERS)}")
    return NORMALIZERS[normalizer]()


def reinforce(model: nn.Module, losses: Tensor, *, where: Tensor | None = None, entropy_weight: float = 0.0) -> Tensor:
    """The term to add to the loss so that every hard attention in the model learns from `losses`, (B,) or (B, Q) -> ()

    See `Hard.reinforce_loss` for the options.
    """
    hard = [module for module in model.modules() if isinstance(module, Hard) and module.gradient == "reinforce"]
    check(hard, "reinforce must be given a model with hard attention (gradient='reinforce'), got one without")
    sampled = [module for module in hard if module.log_probs] or hard
    return torch.stack([module.reinforce_loss(losses, where, entropy_weight) for module in sampled]).sum()


def _per_loss(values: list[Tensor], dimensions: int, where: Tensor | None) -> Tensor:
    """The sum of tensors (B, Q) over forward passes, and over the queries that count if losses are (B,)."""
    if dimensions == 2:
        total = torch.stack(values).sum(0)
        return total if where is None else total.masked_fill(~where, 0.0)
    return torch.stack([(x if where is None else x.masked_fill(~where, 0.0)).sum(1) for x in values]).sum(0)


def in_backward() -> bool:
    """Whether autograd's backward pass is running, as when activation checkpointing recomputes a forward pass."""
    return torch._C._current_graph_task_id() != -1


def _sum_dtype(scores: Tensor) -> torch.dtype:
    """float32 for half precision, as torch's kernels use."""
    return torch.promote_types(scores.dtype, torch.float32)


def _mask_scores(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Masked scores at the lowest finite value. With -inf, a fully masked row would give NaN."""
    return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)


def _sample(probs: Tensor) -> Tensor:
    """probs (..., K) -> one index per row (...). The Gumbel trick allows rows of zeros."""
    noise = -torch.empty_like(probs, dtype=torch.float32).exponential_().log()
    return (probs.float().log() + noise).argmax(-1)
