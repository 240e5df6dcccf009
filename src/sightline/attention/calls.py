"""Forward passes that are under way: which module runs, and which sequences it was given."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn

ATTENTION_WORDS = ("attention", "attn", "attend")
"""Words in the class name of a module that computes attention."""
HEAD_COUNTS = ("num_heads", "num_attention_heads", "num_attn_heads", "n_heads", "heads", "n_head", "nhead")
"""Attributes with the number of heads."""
CONTEXTS = (
    "encoder_hidden_states",
    "key_value_states",
    "cross_attention_states",
    "encoder_output",
    "context",
    "memory",
)
"""Parameters of `forward` that take the other sequence of cross-attention."""


class Call:
    """A forward pass of one module."""

    __slots__ = (
        *("module", "args", "kwargs", "missed", "_sequences"),
        *("has_attention", "has_own_attention", "is_intercepted"),
    )

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.module, self.args, self.kwargs = module, args, kwargs
        self.has_attention = False
        """Whether supported attention ran in it or in a module inside it, recorded or not."""
        self.has_own_attention = False
        """Whether it was its own."""
        self.is_intercepted = False
        """Whether its own code called a function that only a function mode sees."""
        self.missed: list[str] = []
        """Names of attention modules that ran in it without supported attention."""
        self._sequences: dict[str, Tensor] | None = None

    def arguments(self) -> dict[str, Any]:
        """All arguments by parameter name."""
        parameters = _parameters(type(self.module).forward)
        return {**dict(zip(parameters, self.args, strict=False)), **self.kwargs}

    def sequences(self) -> dict[str, Tensor]:
        """The inputs (B, T, M) or images (B, M, rows, columns), by parameter name."""
        if self._sequences is None:
            self._sequences = {
                name: x
                for name, x in self.arguments().items()
                if isinstance(x, Tensor)
                and x.dim() in (3, 4)
                and not x.is_nested
                and x.is_floating_point()
                and "mask" not in name
            }
        return self._sequences

    def lengths(self) -> set[int]:
        """The possible numbers of tokens of its inputs."""
        return {length for x in self.sequences().values() for length in _lengths(x)}

    def is_cross(self, queries: int, keys: int) -> bool | None:
        """Whether its attention (queries, keys) is over another sequence than its first one; None if unknown."""
        sequences = self.sequences()
        states = next(iter(sequences.values()), None)
        if states is None or queries not in _lengths(states):
            return None
        for name, other in sequences.items():
            is_other = other is not states and keys in _lengths(other)
            if is_other and (name in CONTEXTS or queries != keys):
                return True
        return False


def is_tracked(module: nn.Module) -> bool:
    """Whether attention may run in this module. It does not in layers of torch, such as `nn.Linear`."""
    return not type(module).__module__.startswith("torch.nn.modules.") or any(True for _ in module.children())


def is_attention_module(module: nn.Module) -> bool:
    """Whether the class name says that this module computes attention."""
    return _has_attention_word(type(module).__name__)


def num_heads(module: nn.Module) -> int | None:
    """The number of heads that the module states."""
    counts = (getattr(module, name, None) for name in HEAD_COUNTS)
    return next((count for count in counts if type(count) is int), None)


@cache
def _has_attention_word(class_name: str) -> bool:
    name = class_name.lower()
    return any(word in name for word in ATTENTION_WORDS) and not name.endswith("output")  # such as a projection


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters, without self."""
    return tuple(inspect.signature(forward).parameters)[1:]


def _lengths(x: Tensor) -> tuple[int, int]:
    """The possible numbers of tokens: x (B, T, M), (T, B, M), (B, M, rows, columns) or (B, rows, columns, M)"""
    if x.dim() == 3:
        return x.shape[1], x.shape[0]
    return x.shape[2] * x.shape[3], x.shape[1] * x.shape[2]
