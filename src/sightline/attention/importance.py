"""How much each attention head matters for an answer.

Shapes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import check, check_choice
from ..progress import Progress
from .ablation import ablate_heads
from .record import Record
from .recorder import Layers, Modules
from .recording import record_attention

Method = Literal["ablation", "gradient"]
MAX_LISTED = 10
"""Heads listed by `repr`."""


class HeadImportance(Mapping[str, Tensor]):
    """By how much the target drops without each head: name of the layer -> (H,)

    A negative value is that of a head without which the target rises.
    """

    def __init__(self, drops: Mapping[str, Tensor], target: float) -> None:
        self._drops = dict(drops)
        self.target = target
        """The target with all heads."""

    def __getitem__(self, layer: str) -> Tensor:
        return self._drops[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drops)

    def __len__(self) -> int:
        return len(self._drops)

    def ranking(self) -> list[tuple[str, int, float]]:
        """Layer, head and drop, the largest drop first."""
        heads = [(layer, head, float(x)) for layer, drops in self.items() for head, x in enumerate(drops)]
        return sorted(heads, key=lambda entry: -entry[2])

    def __repr__(self) -> str:
        ranking = self.ranking()
        lines = [f"Importance of {len(ranking)} heads, target {self.target:.4g}"]
        lines += [f"  {layer}, head {head}: {drop:+.4g}" for layer, head, drop in ranking[:MAX_LISTED]]
        more = len(ranking) - MAX_LISTED
        return "\n".join([*lines, *[f"  and {more} more"] * (more > 0)])


def head_importance(
    model: nn.Module,
    run: Callable[[], Tensor],
    *,
    layers: Layers = None,
    modules: Modules = None,
    method: Method = "ablation",
    progress: Progress | None = None,
) -> HeadImportance:
    """Measure by how much a target drops without each attention head.

    `run` calls the model and returns the target: a tensor () or (B,), of which the mean is used. `method="ablation"`
    runs it once per head without that head. `method="gradient"` estimates all drops to first order in one pass with
    gradients. `layers` and `modules` are those of `record_attention`. `progress` is called after each pass.
    """
    check_choice("method", method, get_args(Method))
    gradients, was_enabled = method == "gradient", torch.is_grad_enabled()
    with (
        torch.set_grad_enabled(gradients or was_enabled),
        record_attention(model, layers=layers, modules=modules, gradients=gradients) as record,
    ):
        target = run()
        is_valid = isinstance(target, Tensor) and target.dim() <= 1
        check(is_valid, f"run must return a tensor () or (B,), got {target!r:.80}")
        target = target.mean()
    if gradients:
        return HeadImportance(_first_order_drops(record, target), target.detach().item())
    heads = {m.name: m.weights.shape[1] for m in record}
    value, done, drops = target.detach().item(), 0, {}
    for layer, count in heads.items():
        drops[layer] = torch.zeros(count)
        for head in range(count):
            with torch.no_grad(), ablate_heads(model, {layer: head}, modules=modules):
                drops[layer][head] = value - float(run().mean())
            done += 1
            if progress is not None:
                progress(done, sum(heads.values()))
    return HeadImportance(drops, value)


def _first_order_drops(record: Record, target: Tensor) -> dict[str, Tensor]:
    """The derivative of the target by a factor of the weights of each head: (H,) each"""
    check(target.requires_grad, "run must return a tensor with a gradient for method='gradient', got one without")
    perturbations = [m.perturbation for m in record if m.perturbation is not None]
    gradients = torch.autograd.grad(target, perturbations, allow_unused=True)
    drops: dict[str, Tensor] = {}
    for m, gradient in zip(record, gradients, strict=True):
        drop = torch.zeros(m.weights.shape[1])
        if gradient is not None:
            drop = (m.weights.to(gradient.device) * gradient).sum((0, 2, 3), dtype=torch.float32).cpu()
        drops[m.name] = drops.get(m.name, 0) + drop
    return drops
