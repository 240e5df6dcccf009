"""Where torch's functions are intercepted: in code that may run attention. It makes every call of torch slower."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, Self

import torch.nn.functional as F
from torch import nn
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode, _push_mode

from .calls import Call
from .normalizers import in_backward
from .recorder import Recorder, paused

OWN_PACKAGE = __name__.partition(".")[0] + "."
SIMPLE_MODULES = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.BatchNorm2d, nn.Conv2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Dropout, nn.Dropout2d, nn.GELU, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.Tanh, nn.Identity),
    *(nn.GRU, nn.GRUCell, nn.LSTM, nn.LSTMCell, nn.RNN, nn.RNNCell, nn.Sequential, nn.ModuleList, nn.ModuleDict),
)
"""Modules of torch that Sightline's models are built of."""


class Verdict(IntEnum):
    """Where the function mode is needed in the calls of a module."""

    PLAIN = 0
    """Nowhere: it has no attention."""
    QUIET = 1
    """Not in its own code: modules inside have attention, or its own is seen without the mode."""
    INTERCEPTED = 2
    """In its own code."""


class Interception:
    """Suspends the function mode of a recording in code that does not need it.

    Two calls of each module decide, which with a key-value cache are that of the prompt and that of the next token.
    In an ablation, models of Sightline are decided before the first call. Attention is seen without the mode if
    Sightline's `attend` computes it, or if the module looks up `scaled_dot_product_attention` in `torch.nn.functional`,
    where it is replaced during a recording by a function that resumes the mode. This one is also seen in plain modules.
    """

    def __init__(self, recorder: Recorder, mode: TorchFunctionMode) -> None:
        self.recorder, self.mode = recorder, mode
        self.hooks: dict[nn.Module, ExitStack] = {}
        """Those of each tracked module."""
        self.verdicts: dict[nn.Module, Verdict] = {}
        """By the calls so far."""
        self.call_indices: dict[nn.Module, set[int]] = {}
        """In which calls of the model a module ran, up to two."""
        self.attending: set[nn.Module] = set()
        """Modules that had attention of their own."""
        self.decided: dict[nn.Module, Verdict] = {}
        """Those of own modules, and of others that ran in two calls, from the next call of the model on."""
        self.own: dict[nn.Module, Verdict] = {}
        """Those that were decided before the first call."""
        self.undecided: set[nn.Module] = set()
        """Modules that ran in two calls and have another verdict than the decided one."""
        self.plain: nn.Module | None = None
        """The outermost plain module that is running."""
        self.is_active = True
        self.depth = 0
        """How many modes were below this one when it was suspended."""
        self.of_thread = _replacement.interceptions()

    def __enter__(self) -> Self:
        self.of_thread.append(self)
        _replacement.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        _replacement.release()
        self.of_thread.remove(self)
        self.resume()

    def add(self, call: Call) -> None:
        """A call has ended."""
        module, indices = call.module, self.call_indices.setdefault(call.module, set())
        if len(indices) < 2 and not in_backward():
            indices.add(self.recorder.call_index)
        first = self.own.get(module)
        verdict = self.verdicts.get(module, self._first_verdict(module) if first is None else first)
        if call.has_own_attention:
            self.attending.add(module)
        if self._has_lost_attention(call):
            reason = "attention of another form than in earlier calls"
            self.recorder.record.missed.setdefault(self.recorder.names[module], reason)
            verdict = Verdict.INTERCEPTED
        elif call.is_intercepted or call.missed:
            verdict = Verdict.INTERCEPTED
        elif call.has_attention:
            verdict = max(verdict, Verdict.QUIET)
        self.verdicts[module] = verdict
        if len(indices) == 2 and self.decided.get(module) is not verdict:
            self.undecided.add(module)
        if self.undecided and not self.recorder.running:  # all modules have had their calls
            self.decided |= {module: self.verdicts[module] for module in self.undecided}
            self.undecided.clear()
            for decided in self.decided:
                self._remove_hooks(decided)

    def decide_own(self) -> None:
        """Decide all modules before the first call of an ablation, if the whole model is one of Sightline."""
        if self.recorder.keeps_maps:
            return
        if not self._decide_own(self.recorder.model):
            self.decided.clear()
        self.own = dict(self.decided)
        for module in self.decided:
            self._remove_hooks(module)
        self.update()

    def _decide_own(self, module: nn.Module) -> bool:
        """Returns whether this module is one, and all modules inside it. All their attention is in `attend`."""
        are_own = [self._decide_own(child) for child in module.children()]
        is_own = _is_own(module) and all(are_own) and module not in self.recorder.named_modules
        if is_own and module in self.hooks:
            has_attention = any(map(self.recorder.is_attention_module, module.modules()))
            self.decided[module] = Verdict.QUIET if has_attention else Verdict.PLAIN
        return is_own

    def _has_lost_attention(self, call: Call) -> bool:
        """Whether a module had attention of its own before, and none was seen now that the mode is suspended."""
        is_quiet = self.decided.get(call.module) is Verdict.QUIET
        return is_quiet and call.module in self.attending and not call.has_own_attention and not in_backward()

    def _remove_hooks(self, module: nn.Module) -> None:
        """Do not track plain modules where the mode is suspended around them, nor plain ones inside them."""
        if self.decided[module] is not Verdict.INTERCEPTED:
            for child in module.children():
                if self.decided.get(child) is Verdict.PLAIN:
                    for inner in child.modules():
                        if self.decided.get(inner) is Verdict.PLAIN:
                            self.hooks[inner].close()

    def _first_verdict(self, module: nn.Module) -> Verdict:
        """Torch's encoders are always intercepted: without a mode they take their fast path."""
        is_torch_encoder = isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer)
        if module is self.recorder.model or module in self.recorder.named_modules or is_torch_encoder:
            return Verdict.INTERCEPTED
        return Verdict.QUIET if any(map(self.recorder.is_attention_module, module.modules())) else Verdict.PLAIN

    def enter(self, module: nn.Module) -> bool:
        """A module starts. Returns whether it is plain, inside another."""
        if module is self.recorder.model:
            self.plain = None  # also after an interrupt in a plain module
        is_plain = bool(self.recorder.running) and self.decided.get(module) is Verdict.PLAIN
        if is_plain and self.plain is None:
            self.plain = module
            self.suspend()
        return is_plain

    def leave(self, module: nn.Module) -> bool:
        """A module ends. Returns what `enter` did."""
        if module is self.plain:
            self.plain = None
            self.update()
        running = self.recorder.running
        return bool(running) and running[-1].module is not module and self.decided.get(module) is Verdict.PLAIN

    def update(self) -> None:
        """Suspend or resume interception for the module that is running."""
        running = self.recorder.running
        is_quiet = bool(running) and self.decided.get(running[-1].module) is Verdict.QUIET
        if is_quiet or not (running or self.recorder.keeps_maps):  # beam search reorders a cache outside of the model
            self.suspend()
        else:
            self.resume()

    def suspend(self) -> None:
        """Intercept nothing. This has no effect below another mode."""
        if self.is_active and not paused.is_active and _get_current_function_mode() is self.mode:
            self.mode.__exit__(None, None, None)
            self.is_active, self.depth = False, _len_torch_function_stack()

    def resume(self) -> None:
        """Intercept again, below the modes that were entered meanwhile."""
        if not self.is_active:
            self.is_active = True
            above = [_pop_mode() for _ in range(_len_torch_function_stack() - self.depth)]
            self.mode.__enter__()
            for mode in reversed(above):
                _push_mode(mode)


def _is_own(module: nn.Module) -> bool:
    """Whether it is a module of Sightline, or one of torch without attention, and its code is not replaced."""
    is_own = type(module).__module__.startswith(OWN_PACKAGE) or type(module) in SIMPLE_MODULES
    return is_own and "forward" not in vars(module)


class _Replacement:
    """Replaces `torch.nn.functional.scaled_dot_product_attention` from the first active recording to the last."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.recordings = 0
        self.restore: Callable[[], None] = lambda: None
        self.thread = threading.local()

    def interceptions(self) -> list[Interception]:
        """Those that are active in the calling thread."""
        active: list[Interception] = self.thread.__dict__.setdefault("interceptions", [])
        return active

    def acquire(self) -> None:
        """A recording starts."""
        with self.lock:
            self.recordings += 1
            if self.recordings == 1:
                self.restore = self._replace()

    def release(self) -> None:
        """A recording ends."""
        with self.lock:
            self.recordings -= 1
            if self.recordings == 0:
                self.restore()

    def _replace(self) -> Callable[[], None]:
        """Returns a function that restores the original, unless another library has replaced the replacement."""
        original = F.scaled_dot_product_attention

        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            suspended = [interception for interception in self.interceptions() if not interception.is_active]
            for interception in suspended:
                interception.resume()
            was_looked_up, self.thread.is_looked_up = self.is_looked_up(), True
            try:
                return original(*args, **kwargs)
            finally:
                self.thread.is_looked_up = was_looked_up
                for interception in reversed(suspended):
                    interception.suspend()

        def restore() -> None:
            if F.scaled_dot_product_attention is scaled_dot_product_attention:
                F.scaled_dot_product_attention = original

        F.scaled_dot_product_attention = scaled_dot_product_attention
        return restore

    def is_looked_up(self) -> bool:
        """Whether the replacement is running in this thread."""
        return getattr(self.thread, "is_looked_up", False)


_replacement = _Replacement()
is_looked_up = _replacement.is_looked_up
