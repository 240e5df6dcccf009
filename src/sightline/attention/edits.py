"""Edits of attention: what recordings with gradients and ablations change in a forward pass.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, M embedding dimension.
"""

import inspect
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MULTIHEAD_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


class Edit(Protocol):
    """A change of one call of attention."""

    weights: Tensor
    """(B, H, Q, K) before the change."""
    replaces: bool
    """Whether `combine` computes the output again. Otherwise it adds to the output."""

    def change(self, weights: Tensor) -> Tensor:
        """Weights that are used instead of these: (B, H, Q, K) -> (B, H, Q, K)"""

    def combine(self, output: Tensor, value: Tensor, dropout: float) -> Tensor:
        """The output of the changed weights: output (B, H, Q, D), value (B, H, K, D) -> (B, H, Q, D)"""


class GradientEdit:
    """Makes zeros an input of the attention whose gradient is that of the weights. The output does not change."""

    replaces = False

    def __init__(self, weights: Tensor, perturbation: Tensor) -> None:
        self.weights, self.perturbation = weights, perturbation

    def change(self, weights: Tensor) -> Tensor:
        return weights + self.perturbation

    def combine(self, output: Tensor, value: Tensor, dropout: float) -> Tensor:
        added: Tensor = _AddWeighted.apply(output, self.perturbation, value.detach())
        return added


class _AddWeighted(torch.autograd.Function):
    """output + weights @ value for weights that are 0, without computing it.

    output (B, H, Q, D), weights (B, H, Q, K), value (B, H, K, D) -> (B, H, Q, D)
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        ctx.dtype = weights.dtype
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (value,) = ctx.saved_tensors
        return gradient, (gradient.to(value.dtype) @ value.mT).to(ctx.dtype), None


def edit_sdpa(
    edit: Edit,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """The output of `scaled_dot_product_attention` with the edit: output (..., Q, D)"""
    batch, heads, queries, keys = edit.weights.shape
    if kwargs.get("enable_gqa"):
        value = value.repeat_interleave(output.shape[-3] // value.shape[-3], -3)
    value = value.expand(*output.shape[:-2], *value.shape[-2:]).reshape(batch, -1, keys, value.shape[-1])
    if value.shape[1] != heads:  # a kernel computed several heads as queries of one
        value = value.repeat_interleave(heads // value.shape[1], 1)
    edited = edit.combine(output.reshape(batch, heads, queries, -1), value, dropout_p)
    return _laid_out_as(output, edited)


def edit_flex(edit: Edit, output: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The outputs of `flex_attention` with the edit; the first one is (B, H, Q, D)."""
    out, *others = output
    value = value.repeat_interleave(out.shape[1] // value.shape[1], 1)
    return (_laid_out_as(out, edit.combine(out, value, 0.0)), *others)


def edit_multihead(edit: Edit, output: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """The output of `F.multi_head_attention_forward` with the edit: (Q, B, M) or (Q, M), and the weights or None"""
    bound = MULTIHEAD_SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    call = bound.arguments
    out, weights = output
    value = _multihead_value(call, edit.weights.shape)
    batch, heads, queries, _ = edit.weights.shape
    nothing = value.new_zeros(batch, heads, queries, value.shape[-1])
    edited = edit.combine(nothing, value, call["dropout_p"] if call["training"] else 0.0)
    edited = edited.permute(2, 0, 1, 3).flatten(2)
    projected = F.linear(edited, call["out_proj_weight"], call["out_proj_bias"] if edit.replaces else None)
    projected = projected.reshape(out.shape).to(out.dtype)
    if not edit.replaces:
        return out + projected, weights
    if weights is not None:
        changed = edit.change(edit.weights)
        weights = (changed.mean(1) if call["average_attn_weights"] else changed).reshape(weights.shape)
    return projected, weights


def _multihead_value(call: dict[str, Any], shape: torch.Size) -> Tensor:
    """The values that `F.multi_head_attention_forward` computes: (B, H, K, D)"""
    batch, heads, _, keys = shape
    value: Tensor | None = call["static_v"]
    if value is None:
        states: Tensor = call["value"]
        states, size = states.unsqueeze(1) if states.dim() == 2 else states, call["embed_dim_to_check"]
        weight = call["v_proj_weight"] if call["use_separate_proj_weight"] else call["in_proj_weight"][2 * size :]
        bias = None if call["in_proj_bias"] is None else call["in_proj_bias"][2 * size :]
        value = F.linear(states, weight, bias)
        if call["bias_v"] is not None:
            value = torch.cat([value, call["bias_v"].expand(1, batch, -1)])
        value = value.reshape(len(value), batch * heads, -1).transpose(0, 1)
    value = value.unflatten(0, (batch, heads))
    return F.pad(value, (0, 0, 0, keys - value.shape[2]))  # add_zero_attn adds a key


def edit_weights(edit: Edit, weights: Tensor, arrange: Callable[[Tensor], Tensor | None]) -> Tensor:
    """Weights of any layout with the edit. `arrange` makes them (B, H, Q, K) and may leave out the last keys."""
    arranged = arrange(weights)
    assert arranged is not None
    keys = edit.weights.shape[-1]
    changed = edit.change(arranged[..., :keys]).to(weights.dtype)
    if changed.shape == weights.shape and arranged.stride() == weights.stride():
        return changed
    index = arrange(torch.arange(weights.numel(), device=weights.device).view(weights.shape))
    assert index is not None
    return weights.flatten().scatter(0, index[..., :keys].flatten(), changed.flatten()).view(weights.shape)


def _laid_out_as(output: Tensor, edited: Tensor) -> Tensor:
    """The edited output with the shape and the strides of the kernel's, which a model may rely on."""
    edited = edited.reshape(output.shape).to(output.dtype)
    if edited.stride() == output.stride():
        return edited
    return torch.empty_strided(output.shape, output.stride(), dtype=output.dtype, device=output.device).copy_(edited)


class WeightEditor(Protocol):
    """Changes the weights of some modules."""

    def edit_of(self, module: nn.Module, weights: Tensor) -> Tensor:
        """weights (B, H, Q, K) -> (B, H, Q, K), unchanged for other modules"""


class _ActiveEditors(threading.local):
    """The ablations of this thread, so that a recording keeps the weights that are used."""

    editors: tuple[WeightEditor, ...] = ()


_active = _ActiveEditors()


def add_editor(editor: WeightEditor) -> Callable[[], None]:
    """Register an editor of this thread; the result removes it."""
    _active.editors = (*_active.editors, editor)

    def remove() -> None:
        _active.editors = tuple(other for other in _active.editors if other is not editor)

    return remove


def is_editing() -> bool:
    """Whether this thread changes attention."""
    return bool(_active.editors)


def edited_weights(module: nn.Module, weights: Tensor) -> Tensor:
    """The weights (B, H, Q, K) that this module uses, given those it computes."""
    for editor in _active.editors:
        weights = editor.edit_of(module, weights)
    return weights
