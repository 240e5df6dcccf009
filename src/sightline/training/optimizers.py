"""Optimizers: torch's Adam with decay where it belongs, and Muon for the matrices of the blocks."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .config import TrainingConfig


def make_optimizers(model: nn.Module, settings: TrainingConfig) -> list[torch.optim.Optimizer]:
    """What moves the weights, each parameter by one of these.

    Only matrices decay: not what has one side only, and not tables of places (modules marked `is_table`), to which zero
    means nothing.
    """
    learned: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tables = {id(p) for part in model.modules() if getattr(part, "is_table", False) for p in part.parameters(False)}
    if settings.optimizer != "muon":
        return [_adam(learned, tables, settings)]
    blocks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    inside -= tables
    inner = [parameter for parameter in learned if id(parameter) in inside and parameter.dim() == 2]
    inside = {id(parameter) for parameter in inner}
    others = [parameter for parameter in learned if id(parameter) not in inside]
    muon = [Muon(inner, lr=settings.learning_rate, weight_decay=settings.weight_decay)] if inner else []
    return [*muon, _adam(others, tables, settings)] if others else [*muon]


class Muon(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal, so that every direction of a matrix moves alike.

    Steps are as long as those of AdamW, so its learning rates serve here too. Matrices of one shape go through the
    iteration together: a step is a few large products, not a thousand small ones.
    """

    def __init__(
        self, params: Iterable[Tensor], *, lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            for parameters in shapes.values():
                self._move(parameters, **{name: group[name] for name in ("lr", "weight_decay", "momentum")})

    def _move(self, parameters: list[Tensor], *, lr: float, weight_decay: float, momentum: float) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        memories = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            memories.append(state["momentum_buffer"])
        torch._foreach_lerp_(memories, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, memories, momentum)  # where momentum will be, not where it was
        steps = orthogonal(torch.stack(list(ahead)))
        torch._foreach_mul_(parameters, 1 - lr * weight_decay)
        length = 0.2 * math.sqrt(max(parameters[0].shape))  # the root mean square of AdamW's steps is about 0.2
        torch._foreach_add_(parameters, list(steps.to(parameters[0].dtype).unbind()), alpha=-lr * length)


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """Matrices (N, A, B) with their singular values brought near 1, by a few rounds of a fifth-degree polynomial.

    The polynomial is that of Muon: steep at 0, so that small values rise fast, and about 1 from there on.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    x = x.mT if matrices.shape[-2] > matrices.shape[-1] else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(1e-7)  # no singular value is above 1 now
    for _ in range(rounds):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.mT if matrices.shape[-2] > matrices.shape[-1] else x


def _adam(parameters: list[Tensor], tables: set[int], settings: TrainingConfig) -> torch.optim.Optimizer:
    decays = [_is_matrix(parameter) and id(parameter) not in tables for parameter in parameters]
    matrices = [parameter for parameter, decay in zip(parameters, decays, strict=True) if decay]
    others = [parameter for parameter, decay in zip(parameters, decays, strict=True) if not decay]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=not settings.fsdp,  # one pass over all weights, on a CPU too; those that are shared out take many
    )


def _is_matrix(parameter: Tensor) -> bool:
    """Whether it has more than one side: biases, norms, class tokens and temperatures have one."""
    return sum(size > 1 for size in parameter.shape) > 1
