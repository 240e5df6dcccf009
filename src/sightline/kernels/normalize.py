"""L2 normalization with a divisor: x / (|x| divisor). On a CPU, queries and keys are normalized together.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, N vectors of q and k.
"""

import math
from typing import Any

import torch
from torch import Tensor

MIN_NORM = 1e-12
"""Vectors that are not longer count as zero vectors."""
NORM_SCALE = 2.0**-20
"""Vectors in float32 and bfloat16 are scaled by it before they are squared, so that squares of vectors of lengths up to
1.9e25 do not overflow."""
MAX_SAVED_ELEMENTS = 1 << 20
"""Normalized queries and keys of at most so many elements are saved for the backward pass; more are computed again."""


def normalize(x: Tensor, divisor: Tensor) -> Tensor:
    """Scale the vectors x (..., D) to length 1 / divisor. A zero vector stays zero and passes no gradient.

    The divisor broadcasts to (..., 1).
    """
    if torch.compiler.is_compiling() or is_transformed():
        # the compiler fuses by itself, and torch 2.11 loses gradients of the custom function
        return reference_normalize(x, divisor)
    return _Normalize.apply(x, divisor)


def reference_normalize(x: Tensor, divisor: Tensor) -> Tensor:
    """`normalize` in plain operations."""
    return _scale(x, _inverse_norm(x) / divisor)


class _Normalize(torch.autograd.Function):
    """`reference_normalize` that saves only its inputs for the backward pass, where autograd saves several copies."""

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
    """x * factor in x's dtype, rounded once; in place on a copy if it is not differentiated or transformed"""
    is_in_place = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_transformed())
    return x.clone().mul_(factor) if is_in_place else (x * factor).to(x.dtype)


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is active. Not for compiled code."""
    is_dual: bool = torch.autograd.forward_ad._current_level >= 0
    return is_dual or torch._C._are_functorch_transforms_active()


def _inverse_norm(x: Tensor) -> Tensor:
    """1 / |x| in float32 or wider, 0 for a zero vector: x (..., D) -> (..., 1)"""
    dtype = torch.promote_types(x.dtype, torch.float32)
    scale = NORM_SCALE if x.dtype in (torch.float32, torch.bfloat16) else 1.0
    norm = torch.linalg.vector_norm(x if scale == 1 else x * scale, dim=-1, keepdim=True, dtype=dtype)
    return scale * torch.threshold(norm, scale * MIN_NORM, math.inf).reciprocal()


def takes_pair(q: Tensor, k: Tensor) -> bool:
    """Whether `normalize_pair` takes these tensors: on a CPU, outside of torch.func and torch.compile."""
    if not q.is_cpu or q.dtype != k.dtype or q.dtype not in (torch.float32, torch.float64):
        return False
    if torch.compiler.is_compiling() or is_transformed():
        return False
    return q.dim() == k.dim() == 4 and q.numel() > 0 and k.numel() > 0


def normalize_pair(q: Tensor, k: Tensor, offset: Tensor, log_ratio: float, min_divisor: float) -> tuple[Tensor, Tensor]:
    """Divide q by its length and by min_divisor * exp(|log_ratio + offset|), and k by its length.

    q (B, H, Q, D), k (B, H, K, D) -> the same shapes. `offset` has one element per head or one for all. There is one
    buffer and there are few operations: for short sequences, starting an operation takes as long as running it.
    """
    if not torch.is_grad_enabled():
        queries, keys, *_ = _normalize_rows(q, k, offset, log_ratio, min_divisor)
        return queries, keys
    pair: tuple[Tensor, Tensor] = _NormalizePair.apply(q, k, offset, log_ratio, min_divisor)
    return pair


def reference_normalize_pair(
    q: Tensor, k: Tensor, offset: Tensor, log_ratio: float, min_divisor: float
) -> tuple[Tensor, Tensor]:
    """`normalize_pair` as `normalize` of each, which can be differentiated twice."""
    log = offset + log_ratio
    divisor = min_divisor * torch.where(log < 0, -log, log).exp().view(-1, 1, 1)  # |log|, with gradient 1 at 0
    return normalize(q, divisor), normalize(k, torch.ones_like(divisor))


def _normalize_rows(q: Tensor, k: Tensor, offset: Tensor, log_ratio: float, min_divisor: float) -> tuple[Tensor, ...]:
    """The normalized q and k, their vectors (N, D) in one buffer, the norms (N, 1), and the divisors like `offset`.

    The vectors are in the order (B, Q, H), then (B, K, H), as a linear layer leaves them. The norms of q are multiplied
    by the divisors. The norm of a zero vector is infinite.
    """
    rows = q.new_empty((q.numel() + k.numel()) // q.shape[3], q.shape[3])
    queries, keys = _split_heads(rows, q.shape), _split_heads(rows, k.shape, q.numel())
    queries.copy_(q)
    keys.copy_(k)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not math.isfinite(norms.amax()):  # squares overflow, or the input is not finite
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64).to(rows.dtype)
    torch.threshold_(norms, MIN_NORM, math.inf)
    divisors = (offset + log_ratio).abs_().exp_().mul_(min_divisor)
    _split_heads(norms, (*q.shape[:3], 1)).mul_(divisors)
    rows.mul_(norms.reciprocal())
    return queries, keys, rows, norms, divisors


def _split_heads(rows: Tensor, shape: tuple[int, ...], start: int = 0) -> Tensor:
    """The rows from an element on, (B * T * H, D) -> this shape (B, H, T, D)"""
    _, heads, tokens, dim = shape
    return rows.as_strided(shape, (tokens * heads * dim, dim, heads * dim, 1), start)


class _NormalizePair(torch.autograd.Function):
    """`normalize_pair` with gradients. It saves its inputs, one number per vector, and its outputs if small."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, offset: Tensor, *options: float) -> tuple[Tensor, Tensor]:
        queries, keys, rows, *saved = _normalize_rows(q, k, offset, *options)
        ctx.save_for_backward(q, k, offset, rows if rows.numel() <= MAX_SAVED_ELEMENTS else None, *saved)
        ctx.options = options
        return queries, keys

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, offset, rows, norms, divisors = ctx.saved_tensors
        if torch.is_grad_enabled():  # these gradients will be differentiated
            q, k, offset = inputs = [x.view_as(x) for x in (q, k, offset)]  # q and k may be one tensor
            pairs = zip(reference_normalize_pair(q, k, offset, *ctx.options), gradients, strict=True)
            outputs, gradients = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
            needed = [x for x in inputs if x.requires_grad]
            found = iter(torch.autograd.grad(outputs, needed, gradients, create_graph=True))
            return *(next(found) if x.requires_grad else None for x in inputs), None, None
        norms_of_q, norms_of_k = norms.split((q.numel() // q.shape[3], k.numel() // k.shape[3]))
        lengths = torch.ones_like(norms_of_q)
        _split_heads(lengths, (*q.shape[:3], 1)).div_(divisors)
        dq, parallel = _backward_rows(gradients[0], _rows_of(q, rows, norms_of_q), norms_of_q, lengths)
        d_offset = None
        if ctx.needs_input_grad[2]:
            d_heads = parallel.view(-1, q.shape[1]).sum(0)
            d_heads = (d_heads if offset.numel() > 1 else d_heads.sum()).view(offset.shape)
            d_offset = torch.where(offset < -ctx.options[0], d_heads, -d_heads) / divisors
        del lengths, parallel  # before the keys need as much
        rows_of_k = _rows_of(k, rows if rows is None else rows[len(norms_of_q) :], norms_of_k)
        dk, _ = _backward_rows(gradients[1], rows_of_k, norms_of_k, torch.ones_like(norms_of_k))
        return _split_heads(dq, q.shape), _split_heads(dk, k.shape), d_offset, None, None


def _rows_of(x: Tensor, rows: Tensor | None, norms: Tensor) -> Tensor:
    """The first of the saved rows, or x (B, H, T, D) normalized again: (B * T * H, D)"""
    if rows is not None:
        return rows[: len(norms)]
    return x.transpose(1, 2).reshape(len(norms), -1).div(norms)


def _backward_rows(gradient: Tensor, rows: Tensor, norms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """gradient (B, H, T, D), rows x / norms of these lengths -> the gradient of x, and gradient · rows / lengths

    In torch's terms, rows are weight-normalized vectors.
    """
    gradient = gradient.transpose(1, 2).reshape(rows.shape).contiguous()
    dx, parallel = torch.ops.aten._weight_norm_interface_backward(gradient, rows, lengths / norms, lengths, 0)
    return dx, parallel
