"""All that training is at a step, as named tensors: the weights, their running mean, what the optimizers remember."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .averaging import RunningMean
from .distributed import like

REMEMBERED = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""What optimizers keep of a parameter."""


def state_of(
    model: nn.Module, mean: RunningMean | None, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """As tensors, each by its name."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if mean is not None:
        tensors |= {f"mean.{name}": tensor for name, tensor in mean.weights.items()}
    names = _names(model)
    for optimizer in optimizers:
        for parameter, kept in optimizer.state.items():
            tensors |= {f"optimizer.{key}.{names[parameter]}": value for key, value in kept.items()}
    return tensors


@torch.no_grad()
def restore(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    mean: RunningMean | None,
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """Make them what `state_of` found."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(like(tensors[f"model.{name}"], tensor))
        if mean is not None:
            mean.weights[name].copy_(like(tensors[f"mean.{name}"], tensor))
    names = _names(model)
    for optimizer in optimizers:
        state: dict[int, dict[str, Tensor]] = {}
        for i, parameter in enumerate(p for settings in optimizer.param_groups for p in settings["params"]):
            kept = {key: tensors.get(f"optimizer.{key}.{names[parameter]}") for key in REMEMBERED}
            state[i] = {key: _as_parameter(one, parameter) for key, one in kept.items() if one is not None}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _as_parameter(saved: Tensor, parameter: Tensor) -> Tensor:
    """On the parameter's device and in its memory format: fused optimizers index raw memory. Scalars stay as they are."""
    if not saved.dim() or hasattr(parameter, "device_mesh"):
        return like(saved, parameter) if saved.dim() else saved
    return torch.empty_like(parameter).copy_(saved)


def _names(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}
