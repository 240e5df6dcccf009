"""Interception of torch's attention functions that changes their output."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check
from .edits import edit_flex, edit_multihead, edit_sdpa, edit_weights
from .recorder import Recorder, paused
from .torch_functions import SDPA, TorchAttentionMode, arrange_heads

OUTPUT_EDITS: dict[Any, Callable[..., Any]] = {
    SDPA: edit_sdpa,
    F.multi_head_attention_forward: edit_multihead,
    torch.ops.higher_order.flex_attention: edit_flex,
}
IN_PLACE = (Tensor.div_, Tensor.__itruediv__)


class EditingMode(TorchAttentionMode):
    """Applies the edit that the recorder makes for an attention call to its output."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = super().__torch_function__(func, types, args, kwargs)
        edit = self.recorder.take_edit()
        if edit is None:
            return output
        call = self.recorder.softmax_call(output) if func not in OUTPUT_EDITS else None
        with paused:
            if func in OUTPUT_EDITS:
                return OUTPUT_EDITS[func](edit, output, *args, **(kwargs or {}))
            assert call is not None
            edited = edit_weights(edit, output, lambda x: arrange_heads(x, call))
        return output.copy_(edited) if func in IN_PLACE else edited


class ZeroPadding:
    """Zeros the padded positions of an `nn.TransformerEncoder` where torch's fast path does.

    Torch takes its fast path only without a function mode. The module runs once more without one to see what it does.
    """

    def __init__(self, recorder: Recorder):
        self.recorder = recorder

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module starts its forward pass."""
        is_nested = any(isinstance(x, Tensor) and x.is_nested for x in (*args, *kwargs.values()))
        check(paused.is_active or not is_nested, "inputs must be padded tensors, got nested ones; use to_padded_tensor")

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor | None:
        """It ends; the output is None after an exception. Returns another output, or None for the same."""
        padding = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
        is_padded_encoder = type(module) is nn.TransformerEncoder and padding is not None and not module.training
        if paused.is_active or output is None or not is_padded_encoder:
            return None
        with paused, torch._C.DisableTorchFunction():
            plain = module.forward(*args, **kwargs)
        is_padded = padding if padding.dtype == torch.bool else padding == -torch.inf
        if is_padded.shape != plain.shape[:2] or plain[is_padded].any():
            return None
        return torch.where(is_padded[..., None], 0.0, output)
