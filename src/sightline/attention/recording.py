"""Recording of the attention weights of any model.

Attention is intercepted in three ways:
- Sightline's `attend` reports its weights to observers;
- a torch function mode intercepts `nn.MultiheadAttention` and every call of `scaled_dot_product_attention` (Hugging
  Face's default), and computes the weights a second time;
- the same mode intercepts a softmax over the last of four dimensions in a module with attention in its class name
  (Hugging Face's eager models).
Global module hooks track which module is running.
"""

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ..errors import check
from .functional import observe
from .record import Record
from .recorder import Heads, Layers, Recorder
from .torch_functions import TorchAttentionMode, rerun_padded_encoder


@contextmanager
def record_attention(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: Heads = None,
    average_heads: bool = False,
    scores: bool = False,
    cpu: bool = False,
) -> Iterator[Record]:
    """Record the attention weights of every call of `model` inside the `with` block and in this thread.

    layers: which layers, by name pattern (`encoder.*`) or by index in the order of their first call; heads: indices of
    the heads to keep; average_heads: keep the mean over heads; scores: also keep the scores before the normalizer; cpu:
    move the maps to the CPU. Weights do not include dropout and carry no gradient. The outputs of the model do not
    change. Several threads may record at the same time; compiled models run eagerly meanwhile.
    """
    is_module = isinstance(model, nn.Module)
    check(is_module, f"record_attention must be given a torch.nn.Module, got {type(model).__name__}")
    recorder = Recorder(model, layers, heads, average_heads, scores, cpu)
    with _process_changes.apply(recorder), observe(recorder), TorchAttentionMode(recorder):
        yield recorder.record
    recorder.check_not_empty()
    recorder.finish_kinds()


class _ProcessChanges:
    """Changes that affect the whole process: applied for the first active recording, undone after the last.

    These are global module hooks, torch's compile stance and a warning filter.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.recorders: tuple[Recorder, ...] = ()  # replaced as a whole, so hooks can iterate over it without the lock
        self.undo = ExitStack()
        self.runs_eagerly = False

    @contextmanager
    def apply(self, recorder: Recorder) -> Iterator[None]:
        """Apply the changes while this recorder is active."""
        try:
            with self.lock:  # one block, so that no thread records before the hooks are registered
                self.recorders = (*self.recorders, recorder)
                if self.recorders == (recorder,):
                    self._register_hooks()
                if not self.runs_eagerly and "torch._dynamo" in sys.modules:  # otherwise nothing is compiled
                    self._run_eagerly()
            yield
        finally:
            with self.lock:
                self.recorders = tuple(other for other in self.recorders if other is not recorder)
                if not self.recorders:
                    self.undo.close()
                    self.runs_eagerly = False

    def _register_hooks(self) -> None:
        # before `_leave`, so that the encoder still counts as running
        rerun: Any = self._rerun_encoder  # its result replaces the output, which torch's annotation leaves out
        for handle in (
            torch_module.register_module_forward_hook(rerun, with_kwargs=True),
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave, always_call=True),
        ):
            self.undo.callback(_remove, handle)

    def _run_eagerly(self) -> None:
        self.undo.enter_context(torch.compiler.set_stance("force_eager"))
        self.runs_eagerly = True
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        self.undo.callback(_remove_filter, warnings.filters[0])

    def _active(self) -> list[Recorder]:
        """Recorders of this thread."""
        return [recorder for recorder in self.recorders if recorder.in_this_thread()]

    def _enter(self, module: nn.Module, args: Any) -> None:
        for recorder in self._active():
            recorder.enter(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        for recorder in self._active():
            recorder.leave(module)

    def _rerun_encoder(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor | None:
        return rerun_padded_encoder(module, args, kwargs) if self._active() else None


_process_changes = _ProcessChanges()


def _remove(hook: Any) -> None:
    """Remove a global hook, with an entry that torch leaves behind."""
    hook.remove()
    torch_module._global_forward_hooks_with_kwargs.pop(hook.id, None)


def _remove_filter(entry: Any) -> None:
    """Remove one warning filter and leave those that were added since."""
    if entry in warnings.filters:
        warnings.filters.remove(entry)  # type: ignore[attr-defined]
