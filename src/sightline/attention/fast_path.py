"""Recording of torch's encoders where they take their fast path."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SightlineError
from .edits import is_editing
from .explicit_weights import is_valid, padded
from .recorder import Recorder, paused


class FastPath:
    """Runs torch's encoders without interception where it would change their output or fail.

    Torch takes its fast path only without a function mode. It zeros the padded positions of an `nn.TransformerEncoder`,
    and nothing else accepts nested tensors. The module runs once as usual, and once more for its weights.
    """

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.module: nn.Module | None = None
        self.undo = ExitStack()

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module starts its forward pass."""
        if self.module is None and not (paused.is_active or is_editing()) and _needs_fast_path(module, args, kwargs):
            self.module = module
            self.undo.enter_context(paused)
            self.undo.enter_context(torch._C.DisableTorchFunction())

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """It ends; the output is None after an exception."""
        if module is not self.module:
            return
        self.undo.close()
        self.module = None
        if output is None:
            return
        try:
            args, kwargs = _without_nested(module, args, kwargs)
            with torch.no_grad():
                module.forward(*args, **kwargs)
        except SightlineError:
            raise
        except Exception as error:  # a recording must not break the model
            self.recorder.miss(f"{type(error).__name__}: {error!s:.200}")


def _needs_fast_path(module: nn.Module, args: Any, kwargs: Any) -> bool:
    is_encoder = type(module) is nn.TransformerEncoder
    if not is_encoder and type(module) not in (nn.TransformerEncoderLayer, nn.MultiheadAttention):
        return False
    is_padded = (args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")) is not None
    is_nested = any(isinstance(x, Tensor) and x.is_nested for x in (*args, *kwargs.values()))
    return not module.training and (is_nested or (is_encoder and is_padded))


def _without_nested(module: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with nested tensors padded, and a padding mask for the keys."""
    nested = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_nested]
    if not nested:
        return args, kwargs
    args, kwargs = tuple(map(padded, args)), {name: padded(x) for name, x in kwargs.items()}
    name = "key_padding_mask" if isinstance(module, nn.MultiheadAttention) else "src_key_padding_mask"
    return args, {**kwargs, name: ~is_valid(nested[-1])}
