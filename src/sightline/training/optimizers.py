"""Optimizers: Adam, AdamW and Muon, with weight decay on matrices only."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import check
from ..layers.backbones import Backbone
from .config import TrainingConfig


def make_optimizers(model: nn.Module, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Build the optimizers of a model; each parameter has one.

    Weight decay applies to matrices. Vectors and tables of positions (modules marked `is_table`) are exempt. A group of
    parameters with the key `lr_ratio` has this fraction of the scheduled learning rate.
    """
    trainable: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    table_modules = [module for module in model.modules() if getattr(module, "is_table", False)]
    tables: set[Tensor] = {parameter for module in table_modules for parameter in module.parameters(recurse=False)}
    matrices: dict[Tensor, None] = {}
    if config.optimizer == "muon":
        layer_lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        backbones = [module for module in model.modules() if isinstance(module, Backbone)]
        in_layers = {p for layers in layer_lists for p in layers.parameters() if p.dim() == 2} - tables
        filters = {p for backbone in backbones for p in backbone.parameters() if p.dim() == 4 and p.shape[1] > 1}
        matrices = dict.fromkeys(parameter for parameter in trainable if parameter in in_layers | filters)
    others = [parameter for parameter in trainable if parameter not in matrices]
    muon = [Muon(matrices, lr=config.learning_rate, weight_decay=config.weight_decay)] if matrices else []
    backbone: set[Tensor] = set()
    if config.backbone_lr_ratio < 1:
        backbone = {p for name, p in model.named_parameters() if "backbone" in name.split(".") and p.requires_grad}
        got = f"got {config.backbone_lr_ratio}"
        check(backbone, f"training.backbone_lr_ratio must be 1 for a model without a trained backbone, {got}")
        is_adam = not backbone & matrices.keys()
        check(is_adam, f"training.backbone_lr_ratio must be 1 for a backbone that muon optimizes, {got}")
    return [*muon, _adam(others, tables, backbone, config)] if others else [*muon]


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates, for matrices, and for convolution filters as matrices (out, in * k * k).

    Updates are scaled to the size of AdamW's, so both use the same learning rates. Matrices of one shape are
    orthogonalized in one batch.
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
                self._update(parameters, **{name: group[name] for name in ("lr", "weight_decay", "momentum")})

    def _update(self, parameters: list[Tensor], *, lr: float, weight_decay: float, momentum: float) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        nesterov = torch._foreach_lerp(gradients, buffers, momentum)
        stacked = torch.stack([update.flatten(1) for update in nesterov])
        updates = orthogonalize(stacked).to(parameters[0].dtype).view(-1, *parameters[0].shape)
        torch._foreach_mul_(parameters, 1 - lr * weight_decay)
        scale = 0.2 * math.sqrt(max(stacked.shape[1:]))  # the root mean square of AdamW's updates is about 0.2
        torch._foreach_add_(parameters, list(updates.unbind()), alpha=-lr * scale)


def orthogonalize(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Move the singular values of matrices (N, rows, columns) near 1 by a Newton-Schulz iteration.

    The coefficients are Muon's: steep at 0 so that small singular values grow fast, and about 1 above.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    x = x.mT if matrices.shape[-2] > matrices.shape[-1] else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(1e-7)  # no singular value is above 1
    for _ in range(iterations):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.mT if matrices.shape[-2] > matrices.shape[-1] else x


def _adam(
    parameters: list[Tensor], tables: set[Tensor], backbone: set[Tensor], config: TrainingConfig
) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = []
    for part, ratio in ((set(parameters) - backbone, 1.0), (backbone, config.backbone_lr_ratio)):
        own = [parameter for parameter in parameters if parameter in part]
        decayed = [parameter for parameter in own if _is_matrix(parameter) and parameter not in tables]
        exempt = [parameter for parameter in own if not _is_matrix(parameter) or parameter in tables]
        groups += [{"params": decayed, "lr_ratio": ratio}, {"params": exempt, "weight_decay": 0.0, "lr_ratio": ratio}]
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=not config.fsdp,  # sharded tensors have no fused kernel
    )


def _is_matrix(parameter: Tensor) -> bool:
    """Whether more than one dimension is larger than 1; biases, norms, class tokens and temperatures have one."""
    return sum(size > 1 for size in parameter.shape) > 1
