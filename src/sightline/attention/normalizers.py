"""Scores to weights.

Every normalizer maps scores (B, H, Q, K) to weights of the same shape. A key that may not be seen weighs exactly 0, and
so does every key of a row that may look at nothing. A new normalizer is one class here and its line in `NORMALIZERS`.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check_fraction, one_of

MOST_PENDING = 4096
"""Choices that wait for their loss before hard attention asks for it."""


class Normalizer(nn.Module):
    """forward: scores (B, H, Q, K), allowed (bool, broadcastable to them, or None) -> weights (B, H, Q, K)"""


class Softmax(Normalizer):
    """Positive weights that sum to 1."""

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        if allowed is None:
            return scores.softmax(-1, dtype=_exact(scores)).to(scores.dtype)
        weights = _lowered(scores, allowed).softmax(-1, dtype=_exact(scores)).to(scores.dtype)
        return weights.masked_fill(~allowed, 0.0)


class Hard(Normalizer):
    """One key is chosen: sampled while training, the best one otherwise.

    The choice has no gradient of its own. `straight_through` lends it that of the softmax. `reinforce` keeps the
    log-probability of what was sampled; once the losses of the batch are known, add `reinforce(model, losses)` to them.
    """

    baseline: Tensor
    seen_losses: Tensor

    def __init__(self, *, gradient: Literal["reinforce", "straight_through"] = "reinforce", momentum: float = 0.9):
        super().__init__()
        if gradient not in ("reinforce", "straight_through"):
            raise SightlineError(f"gradient must be {one_of(gradient, ('reinforce', 'straight_through'))}")
        check_fraction(momentum=momentum)
        self.gradient = gradient
        self.momentum = momentum
        self.softmax = Softmax()
        self.log_chances: list[Tensor] = []
        """Of each choice since the last `surrogate`: (B,)"""
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("seen_losses", torch.zeros((), dtype=torch.bool))

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        chances = self.softmax(scores, allowed)
        sampling = self.training
        choice = _sample(chances) if sampling else chances.argmax(-1)
        weights = torch.zeros_like(chances).scatter(-1, choice.unsqueeze(-1), 1.0)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)
        if not (sampling and chances.requires_grad):
            return weights
        if self.gradient == "straight_through":
            return weights + (chances - chances.detach())
        if len(self.log_chances) >= MOST_PENDING:
            raise SightlineError(
                f"hard attention must learn within {MOST_PENDING} forward passes, got more: add "
                "reinforce(model, losses) to the loss of every batch, or make it with gradient='straight_through'"
            )
        log_chances = (scores if allowed is None else _lowered(scores, allowed)).log_softmax(-1, dtype=_exact(scores))
        chosen = (log_chances * weights).flatten(1).sum(-1)
        if not in_backward():
            self.log_chances.append(chosen)
        return weights

    def surrogate(self, losses: Tensor) -> Tensor:
        """A term whose gradient is REINFORCE's: (loss - baseline) * grad log p. losses (B,) -> ()

        The baseline is a running mean of earlier losses, so it lowers the variance and leaves the mean as it is.
        """
        losses = losses.detach()
        if not self.log_chances:
            raise SightlineError("reinforce needs a forward pass in training mode with gradients first, got none")
        if any(chance.shape != losses.shape for chance in self.log_chances):
            raise SightlineError(
                f"losses must have shape {tuple(self.log_chances[0].shape)}, got {tuple(losses.shape)}"
            )
        pending, self.log_chances = self.log_chances, []
        advantage = losses - self.baseline
        mean = losses.mean().to(self.baseline.dtype)
        self.baseline = torch.where(self.seen_losses, self.momentum * self.baseline + (1 - self.momentum) * mean, mean)
        self.seen_losses = torch.ones_like(self.seen_losses)
        return (advantage * torch.stack(pending).sum(0)).mean()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "log_chances": []}  # a copy has nothing pending


class Standardize(Normalizer):
    """Each row minus its mean, over its deviation; both are taken over the keys that may be seen."""

    def __init__(self, *, epsilon: float = 1e-6):
        super().__init__()
        self.epsilon = epsilon

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        exact = scores.to(_exact(scores))
        if allowed is None:
            centerd = exact - exact.mean(-1, keepdim=True)
            variance = centerd.square().mean(-1, keepdim=True)
        else:
            allowed = allowed.expand_as(exact)
            count = allowed.sum(-1, keepdim=True).clamp(min=1)
            exact = exact.masked_fill(~allowed, 0.0)
            centerd = (exact - exact.sum(-1, keepdim=True) / count).masked_fill(~allowed, 0.0)
            variance = centerd.square().sum(-1, keepdim=True) / count
        return (centerd * (variance + self.epsilon).rsqrt()).to(scores.dtype)


class Identity(Normalizer):
    """The similarities as they are."""

    def forward(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, 0.0)


NORMALIZERS: dict[str, type[Normalizer]] = {
    "softmax": Softmax,
    "hard": Hard,
    "standardize": Standardize,
    "identity": Identity,
}


def make_normalizer(normalize: str | Normalizer) -> Normalizer:
    """A normalizer by its name in `NORMALIZERS`; one that is ready made comes back as it is."""
    if isinstance(normalize, Normalizer):
        return normalize
    if not isinstance(normalize, str) or normalize not in NORMALIZERS:
        raise SightlineError(f"normalize must be a Normalizer or {one_of(str(normalize), NORMALIZERS)}")
    return NORMALIZERS[normalize]()


def reinforce(model: nn.Module, losses: Tensor) -> Tensor:
    """What to add to the loss so that every hard attention in the model learns from `losses` (B,), one per example."""
    hard = [part for part in model.modules() if isinstance(part, Hard) and part.gradient == "reinforce"]
    if not hard:
        raise SightlineError(
            "reinforce must be given a model with hard attention (gradient='reinforce'), got one without"
        )
    ran = [part for part in hard if part.log_chances] or hard
    return torch.stack([part.surrogate(losses) for part in ran]).sum()


def _exact(scores: Tensor) -> torch.dtype:
    """Half precision is summed in float32, as torch's kernels do."""
    return torch.promote_types(scores.dtype, torch.float32)


def _lowered(scores: Tensor, allowed: Tensor) -> Tensor:
    """What may not be seen gets the lowest score there is. Not -inf: a row of -inf makes NaN, which spreads."""
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)


def in_backward() -> bool:
    """Whether this forward pass repeats an earlier one, as activation checkpointing does on the way back."""
    return torch._C._current_graph_task_id() != -1


def _sample(chances: Tensor) -> Tensor:
    """chances (..., K) -> one index per row (...); by Gumbel noise, so a row of zeros is no error."""
    noise = -torch.empty_like(chances, dtype=torch.float32).exponential_().log()
    return (chances.float().log() + noise).argmax(-1)
