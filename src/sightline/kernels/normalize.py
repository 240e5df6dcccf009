"""L2 normalization with a divisor: x / (|x| divisor)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def normalize(x: Tensor, divisor: Tensor) -> Tensor:
    """Scale the vectors x (..., D) to length 1 / divisor. A zero vector stays zero and passes no gradient.

    The divisor broadcasts to (..., 1).
    """
    if torch.compiler.is_compiling():  # fuses by itself; torch 2.11 loses gradients of the custom function
        return reference_normalize(x, divisor)
    return _Normalize.apply(x, divisor)


def reference_normalize(x: Tensor, divisor: Tensor) -> Tensor:
    """`normalize` in plain operations."""
    return _scale(x, _inverse_norm(x) / divisor)


class _Normalize(torch.autograd.Function):
    """`reference_normalize` that saves only its inputs for the backward pass, where autograd saves several copies."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, divisor: Tensor) -> Tensor:
        return reference_normalize(x, divisor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, divisor = ctx.saved_tensors
        inverse = _inverse_norm(x)
        direction = _scale(x, inverse)
        parallel = (gradient * direction).sum(-1, keepdim=True, dtype=inverse.dtype)
        orthogonal = torch.addcmul(gradient, direction, parallel.to(gradient.dtype), value=-1)
        x_gradient = _scale(orthogonal, inverse / divisor)
        if not ctx.needs_input_grad[1]:
            return x_gradient, None
        return x_gradient, (-parallel / divisor.square()).sum_to_size(divisor.shape)


def _scale(x: Tensor, factor: Tensor) -> Tensor:
    """x * factor in x's dtype, rounded once; in place on a copy if no gradient is needed"""
    return (x * factor).to(x.dtype) if torch.is_grad_enabled() else x.clone().mul_(factor)


def _inverse_norm(x: Tensor) -> Tensor:
    """1 / |x| in float32 or wider, 0 for a zero vector: x (..., D) -> (..., 1)"""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    return F.threshold(norm, 1e-12, math.inf).reciprocal()
