"""Cross entropy of a linear layer without the logits of the whole batch in memory.

Shapes: N tokens, M embedding dimension, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE_INDEX = -100
"""Label of a position without a loss, as in `torch.nn.functional.cross_entropy`."""
CHUNK_SIZE = 128
"""Tokens whose logits a CPU computes at a time; they fit into its cache."""


def linear_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, *, bias: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """The summed cross entropy of the logits `x @ weight.T + bias`:
    x (..., M), weight (V, M), labels (...), bias (V,) -> ()

    Positions labeled -100 are ignored. On a CPU the logits are computed in chunks.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return reference_linear_cross_entropy(x, weight, labels, bias=bias, label_smoothing=label_smoothing)
    is_labeled = labels != IGNORE_INDEX
    with torch.autocast("cpu", enabled=False):
        labeled = x[is_labeled].to(weight.dtype), weight, bias, labels[is_labeled]
        loss: Tensor = _Chunked.apply(*labeled, label_smoothing)
    return loss


def reference_linear_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, *, bias: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """`linear_cross_entropy` by torch's own functions, with all logits in memory."""
    logits = F.linear(x, weight, bias).flatten(0, -2).float()
    return F.cross_entropy(logits, labels.flatten(), reduction="sum", label_smoothing=label_smoothing)


class _Chunked(torch.autograd.Function):
    """x (N, M), weight (V, M), bias (V,), labels (N,) -> ()

    The forward pass computes each chunk's gradient with its logits.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float
    ) -> Tensor:
        loss, x_gradient, weight_gradient, bias_gradient = x.new_zeros(()), None, None, None
        if any(ctx.needs_input_grad):
            x_gradient, weight_gradient = torch.empty_like(x), torch.zeros_like(weight)
            bias_gradient = None if bias is None else torch.zeros_like(bias)
        for start in range(0, len(x), CHUNK_SIZE):
            chunk = slice(start, start + CHUNK_SIZE)
            targets = labels[chunk].unsqueeze(1)
            logits = F.linear(x[chunk], weight, bias)
            log_sum = logits.logsumexp(1, keepdim=True)
            loss += (log_sum - (1 - label_smoothing) * logits.gather(1, targets)).sum()
            if label_smoothing:
                loss -= label_smoothing * logits.mean(1).sum()
            if x_gradient is not None and weight_gradient is not None:
                gradient = logits.sub_(log_sum).exp_()
                gradient.scatter_add_(1, targets, torch.full_like(log_sum, label_smoothing - 1))
                gradient = gradient.sub_(label_smoothing / len(weight)) if label_smoothing else gradient
                torch.mm(gradient, weight, out=x_gradient[chunk])
                weight_gradient.addmm_(gradient.T, x[chunk])
            if bias_gradient is not None:
                bias_gradient += gradient.sum(0)
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if saved is None else gradient * saved for saved in ctx.saved_tensors)
        return *scaled, None, None
