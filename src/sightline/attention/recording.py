"""Recording of the attention weights of any model.

Attention is intercepted in three ways:
- Sightline's `attend` reports its weights to observers;
- a torch function mode intercepts `nn.MultiheadAttention`, `flex_attention` and every call of
  `scaled_dot_product_attention` (Hugging Face's default), and computes the weights a second time;
- the same mode intercepts a softmax over keys in a module with attention in its class name (Hugging Face's eager
  models), and every normalization over keys in a module that the user names.
The mode is suspended where two calls of the model did not need it, and in ablations of Sightline's models. Module hooks
track which module is running. An attention module in which nothing is intercepted is reported as missed.
"""

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SightlineWarning, check
from .calls import is_tracked
from .editing_mode import EditingMode, ZeroPadding
from .fast_path import FastPath
from .functional import observe
from .interception import Interception
from .record import Record
from .recorder import Heads, Layers, Modules, Recorder
from .torch_functions import TorchAttentionMode


@contextmanager
def record_attention(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: Heads = None,
    modules: Modules = None,
    average_heads: bool = False,
    scores: bool = False,
    cpu: bool = False,
    gradients: bool = False,
) -> Iterator[Record]:
    """Record the attention weights of every call of `model` inside the `with` block and in this thread.

    layers: which layers, by name pattern (`encoder.*`) or by index in the order of their first call; heads: indices of
    the heads to keep; modules: modules or name patterns whose every softmax over keys is attention, also one by hand
    (`exp / sum`); average_heads: keep the mean over heads; scores: also keep the scores before the normalizer; cpu:
    move the maps to the CPU; gradients: allow `record.relevance`. Weights do not include dropout and carry no gradient.
    The outputs of the model do not change. Several threads may record at the same time; meanwhile, compiled models run
    eagerly, and `torch.nn.functional.scaled_dot_product_attention` is replaced. A warning names attention modules that
    ran and were not recorded, such as one that switches to another form of attention after two calls.
    """
    is_module = isinstance(model, nn.Module)
    check(is_module, f"record_attention must be given a torch.nn.Module, got {type(model).__name__}")
    recorder = Recorder(
        model,
        layers=layers,
        heads=heads,
        modules=modules,
        average_heads=average_heads,
        scores=scores,
        cpu=cpu,
        gradients=gradients,
    )
    with intercept(recorder, edits=gradients):
        yield recorder.record
    recorder.check_not_empty()
    recorder.finish_kinds()
    if recorder.record.missed:
        message = f"the record of {type(model).__name__} is partial; {recorder.record.missed_text()}"
        warnings.warn(message, SightlineWarning, stacklevel=3)


@contextmanager
def intercept(recorder: Recorder, *, edits: bool) -> Iterator[None]:
    """Report all attention of this thread to the recorder. `edits`: it changes outputs."""
    mode = EditingMode(recorder) if edits else TorchAttentionMode(recorder)
    with _eager_compilation.apply(), observe(recorder), mode, _track(recorder, mode, edits=edits):
        yield


@contextmanager
def _track(recorder: Recorder, mode: TorchAttentionMode, *, edits: bool) -> Iterator[None]:
    """Tell the recorder which modules of its model are running.

    Torch may call a hook without keyword arguments while another thread adds or removes it.
    """

    fast_path = ZeroPadding(recorder) if edits else FastPath(recorder)
    interception = Interception(recorder, mode)

    def is_tracked_now(module: nn.Module) -> bool:
        return recorder.in_this_thread() and module in interception.hooks  # a copy of the model has these hooks too

    def enter(module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if is_tracked_now(module) and not interception.enter(module):
            recorder.enter(module, args, kwargs or {})
            fast_path.enter(module, args, kwargs or {})
            interception.update()

    def leave(module: nn.Module, args: Any, *kwargs_and_output: Any) -> Tensor | None:
        if not is_tracked_now(module) or interception.leave(module):
            return None
        output = fast_path.leave(module, args, *kwargs_and_output)
        call = recorder.leave(module)
        if call is not None and kwargs_and_output[-1] is not None:  # it is None after an exception
            interception.add(call)
        interception.update()
        return output

    with interception, ExitStack() as stack:
        for module in recorder.names:
            if is_tracked(module) or module is recorder.model:
                hooks = interception.hooks[module] = ExitStack()
                stack.callback(hooks.close)
                hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                leave_first = {"prepend": True, "with_kwargs": True, "always_call": True}
                hooks.callback(module.register_forward_hook(leave, **leave_first).remove)
        interception.decide_own()
        yield


class _EagerCompilation:
    """Runs compiled models of this process eagerly from the first active recording to the last."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.recordings = 0
        self.is_active = False
        self.stance = ExitStack()

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Apply it while one recording is active."""
        with self.lock:
            self.recordings += 1
            if not self.is_active and "torch._dynamo" in sys.modules:  # otherwise nothing is compiled
                self.stance.enter_context(torch.compiler.set_stance("force_eager"))
                self.is_active = True
        try:
            yield
        finally:
            with self.lock:
                self.recordings -= 1
                if not self.recordings:
                    self.stance.close()
                    self.is_active = False


_eager_compilation = _EagerCompilation()
