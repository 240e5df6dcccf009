"""Cosine attention for the models of Hugging Face: `attn_implementation="sightline_cosine"`.

Every attention module of such a model has a `cosine_score`, with one learned temperature per head. It is a part of the
model, so it is trained, saved and loaded with it.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from ..attention.calls import is_attention_module, num_heads
from ..attention.functional import attend
from ..attention.masks import Allow, Bias, Causal, Mask
from ..attention.scores import CosineScore
from ..errors import MissingDependencyError, SightlineError, check

IMPLEMENTATION = "sightline_cosine"
SCORE = "cosine_score"
"""Attribute of the attention modules."""
NOT_INSTALLED = "a Hugging Face model must have transformers installed, got none: pip install 'sightline[hub]'"

Model = TypeVar("Model", bound=nn.Module)


class HuggingFaceCosineScore(CosineScore):
    """A `CosineScore` that is at its initial temperature if a checkpoint has none.

    Transformers gives parameters that a checkpoint lacks uninitialized memory. It then initializes the modules that it
    knows, and sets this attribute of all others, too.
    """

    @property
    def _is_hf_initialized(self) -> bool:
        return False

    @_is_hf_initialized.setter
    def _is_hf_initialized(self, value: bool) -> None:
        if not getattr(self.log_temperature_offset, "_is_hf_initialized", False):
            nn.init.zeros_(self.log_temperature_offset)


@cache
def register_cosine_attention() -> str:
    """Register cosine attention with transformers, and return its name for `attn_implementation`.

    Models that are built with this name from then on have one temperature per layer and head.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingDependencyError(NOT_INSTALLED) from error
    AttentionInterface.register(IMPLEMENTATION, cosine_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, AttentionMaskInterface()["sdpa"])
    register_module_module_registration_hook(_add_score)
    return IMPLEMENTATION


def use_cosine_attention(model: Model) -> Model:
    """Change a Hugging Face model to cosine attention. Its weights stay; its outputs change, so it must be trained."""
    name, setter = register_cosine_attention(), getattr(model, "set_attn_implementation", None)
    check(setter is not None, f"model must be a model of Hugging Face, got {type(model).__name__}")
    assert setter is not None
    setter(name)
    for module in model.modules():
        _add_score(model, "", module)
    return model


def cosine_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query (B, H, Q, D), key and value (B, H, K, D), attention_mask (B, 1, Q, K) -> output (B, Q, H, D), None

    The mask is True where a query may attend, or of floats that are added to the scores. The `scaling` of a model is
    not used: the temperature takes its place.
    """
    score = getattr(module, SCORE, None)
    if score is None:
        rule = f"{type(module).__name__} must have a {SCORE}, got none"
        fix = f"build the model with attn_implementation={IMPLEMENTATION!r}, or call use_cosine_attention(model)"
        raise SightlineError(f"{rule}; {fix}")
    for name in ("softcap", "s_aux"):  # a cap of the scores, and the sinks of GPT-OSS
        check(options.get(name) is None, f"{name} must be left out for cosine attention, got one")
    queries, keys = query.shape[2], key.shape[2]
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask: Mask | None = None
    if attention_mask is not None:
        attention_mask = attention_mask[:, :, :, :keys]
        mask = Allow(attention_mask) if attention_mask.dtype == torch.bool else Bias(attention_mask)
    elif is_causal and queries > 1:
        key, value, mask = key[:, :, :queries], value[:, :, :queries], Causal()  # the rest of a static cache is empty
    if position_bias is not None:
        bias = Bias(position_bias[:, :, :, : key.shape[2]])
        mask = bias if mask is None else bias & mask
    out = attend(query, key, value, score=score, mask=mask, dropout=dropout)
    return out.transpose(1, 2).contiguous(), None


def _add_score(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    """Give a module a score if it is the attention of a model with this implementation."""
    config = getattr(module, "config", None)
    if module is None or getattr(config, "_attn_implementation", None) != IMPLEMENTATION:
        return
    is_innermost = not any(is_attention_module(child) for child in module.modules() if child is not module)
    if not is_attention_module(module) or not is_innermost or hasattr(module, SCORE):
        return
    heads = num_heads(module) or config.num_attention_heads  # type: ignore[union-attr]
    score, weight = HuggingFaceCosineScore(num_heads=heads), next(module.parameters(), None)
    setattr(module, SCORE, score if weight is None else score.to(weight.device, weight.dtype))
