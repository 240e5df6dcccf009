"""Weights of linear layers in autocast's dtype, cast by one operation.

Autocast casts each weight and bias by itself, and then each of their gradients: a third of all operations in a training
step of a small Transformer, which Python launches more slowly than a GPU runs them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def casts_weights(device: torch.device) -> bool:
    """Whether autocast casts weights on this device in a training step that is not compiled."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not torch.is_autocast_enabled(device.type):
        return False
    return not torch._C._are_functorch_transforms_active()


@contextmanager
def cast_weights(linears: Sequence[nn.Linear]) -> Iterator[None]:
    """Inside the block, the layers have weights and biases in autocast's dtype. Autocast gives the same result."""
    places = [(layer, name) for layer in linears if type(layer) is nn.Linear for name in ("weight", "bias")]
    places = [(layer, name) for layer, name in places if _is_trained(layer._parameters[name])]
    parameters = [layer._parameters[name] for layer, name in places]
    for (layer, name), cast in zip(places, _Cast.apply(*parameters) if parameters else (), strict=True):
        layer.__dict__[name] = cast  # an attribute is found before the parameter of its name
    try:
        yield
    finally:
        for layer, name in places:
            layer.__dict__.pop(name, None)


def _is_trained(parameter: Tensor | None) -> bool:
    """Whether a cast of this parameter has a gradient; autocast casts the others."""
    return parameter is not None and parameter.requires_grad and parameter.dtype == torch.float32


class _Cast(torch.autograd.Function):
    """Tensors in autocast's dtype. Their gradients are cast to float32."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return _cast(tensors, torch.get_autocast_dtype(tensors[0].device.type))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        casts = iter(_cast(tuple(gradient for gradient in gradients if gradient is not None), torch.float32))
        return tuple(None if gradient is None else next(casts) for gradient in gradients)


def _cast(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    casts = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    torch._foreach_copy_(casts, tensors)
    return casts
