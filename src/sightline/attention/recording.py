"""Record the attention of any model while it runs, and leave no trace.

Attention is seen in four ways:
- ours, because `attend` asks `OBSERVERS` before it takes the fused path;
- torch's `nn.MultiheadAttention`, and any call of `scaled_dot_product_attention` (Hugging Face's, yours), because a
  torch function mode sees the calls and works out the weights beside them;
- a softmax over the last of four dimensions inside a module that calls itself attention (Hugging Face's eager models),
  because the same mode sees that too, before any dropout.
Hooks that are registered once for all modules tell which module is running.
"""

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import SightlineError
from .functional import OBSERVERS, Kind
from .normalizers import in_backward
from .record import Record, Seen
from .torch_functions import TorchCalls, encoders_as_ever, quiet

Layers = str | int | Iterable[str | int] | None


@contextmanager
def record_attention(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: int | Iterable[int] | None = None,
    average_heads: bool = False,
    scores: bool = False,
    cpu: bool = False,
) -> Iterator[Record]:
    """Capture the attention weights of everything `model` computes inside the `with` block, in this thread.

    layers: which attentions, by name (`encoder.*` and the like) or by place in the order they first run; heads: which
    heads; average_heads: keep the mean over heads; scores: keep the scores before the normalizer too; cpu: move what is
    kept to main memory. Weights never show dropout and carry no gradient; the model's outputs stay what they were.
    """
    if not isinstance(model, nn.Module):
        raise SightlineError(f"record_attention must be given a torch.nn.Module, got {type(model).__name__}")
    recorder = _Recorder(
        model,
        layers=_as_tuple(layers, (str, int), "layers"),
        heads=_as_tuple(heads, (int,), "heads"),
        average_heads=average_heads,
        scores=scores,
        cpu=cpu,
    )
    with ExitStack() as stack:
        for handle in (
            register_module_forward_pre_hook(recorder.enter),
            register_module_forward_hook(recorder.leave, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(encoders_as_ever(model))
        if "torch._dynamo" in sys.modules:  # else nothing can have been compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        OBSERVERS.append(recorder)
        stack.callback(OBSERVERS.remove, recorder)
        stack.enter_context(TorchCalls(recorder))
        yield recorder.record
    recorder.check_something_was_seen()
    recorder.settle_kinds()


class _Recorder:
    """Knows which module runs and keeps what it attends to."""

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: tuple[str | int, ...] | None,
        heads: tuple[int, ...] | None,
        average_heads: bool,
        scores: bool,
        cpu: bool,
    ):
        self.record = Record(type(model).__name__)
        self.model = model
        self.layers, self.heads, self.average_heads, self.scores, self.cpu = layers, heads, average_heads, scores, cpu
        self.names = {
            module: name.replace("_orig_mod.", "").replace("_orig_mod", "") or type(module).__name__
            for name, module in model.named_modules()
        }
        self.thread = threading.get_ident()
        self.running: list[nn.Module] = []
        self.inside_attend = False
        """Whether `attend` is at work, whose softmax is not a second attention."""
        self.order: dict[str, int] = {}
        """Every attention that ran, wanted or not, and its place."""
        self.turn = -1
        """How many calls of the model, or of a part of it by itself, came before the one that runs."""
        self.shuffles = 0
        """How often the rows of a cache have changed places."""
        self.guessed: set[Seen] = set()
        """Those whose kind nobody told."""

    def enter(self, module: nn.Module, args: Any) -> None:
        if module in self.names and threading.get_ident() == self.thread:
            self.turn += not self.running
            self.running.append(module)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.running and self.running[-1] is module and threading.get_ident() == self.thread:
            self.running.pop()
            self.inside_attend = False

    def wants(self) -> bool:
        """Asked by `attend`, which will show what it sees."""
        self.inside_attend = self.wanted()
        return self.inside_attend

    def see(self, weights: Tensor, scores: Tensor, *, kind: Kind | None, causal: bool) -> None:
        """Told by `attend`."""
        self.inside_attend = False
        self.keep(weights, scores, kind=kind, causal=causal)

    def wanted(self) -> bool:
        """Whether the attention that is about to run is one to keep."""
        if not self.running or threading.get_ident() != self.thread or quiet.on:
            return False
        name = self.name()
        place = self.order.setdefault(name, len(self.order))
        return self.layers is None or any(
            place == layer if isinstance(layer, int) else fnmatchcase(name, layer) for layer in self.layers
        )

    def module(self) -> nn.Module:
        """The one that attends; `nn.Softmax` does so for the one around it."""
        around = self.running[-2:]
        return around[0] if isinstance(around[-1], nn.Softmax) else around[-1]

    def name(self) -> str:
        return self.names[self.module()]

    def keep(
        self,
        weights: Tensor,
        scores: Tensor,
        *,
        kind: Kind | None = None,
        cross: bool | None = None,
        causal: bool | None,
    ) -> None:
        """weights, scores (B, H, Q, K). `cross` and `causal` are None where only name and weights can tell."""
        if in_backward():
            return  # activation checkpointing runs it once more
        causal = _looks_causal(weights) or _says_causal(self.module()) if causal is None else causal
        seen = Seen(
            name=self.name(),
            kind=kind or self._kind(cross, causal),
            weights=self._cut(weights),
            scores=self._cut(scores) if self.scores else None,
            heads=() if self.average_heads else self.heads,
            turn=self.turn,
            shuffles=self.shuffles,
        )
        self.record.seen.append(seen)
        if kind is None:
            self.guessed.add(seen)

    def _cut(self, x: Tensor) -> Tensor:
        x = x.detach()
        if self.heads is not None:
            if max(self.heads) >= x.shape[1]:
                raise SightlineError(f"heads must be below {x.shape[1]}, the number of heads, got {max(self.heads)}")
            x = x[:, list(self.heads)]
        if self.average_heads:
            x = x.mean(1, keepdim=True)
        return x.cpu() if self.cpu else x

    def _kind(self, cross: bool | None, causal: bool) -> Kind:
        name = self.name().lower()
        if any(word in name for word in ("cross", "encoder_attn", "encdec")) if cross is None else cross:
            return "cross"
        in_decoder = "decoder" in name or any("Decoder" in type(module).__name__ for module in self.running)
        return "decoder" if causal or in_decoder else "encoder"

    def settle_kinds(self) -> None:
        """Some kinds show only over all calls: one token alone has no future to be hidden from it.

        Calls that go on where the one before ended are a decoder's, with its cache. What is asked about the same keys
        at every step of such a decoder is cross-attention.
        """
        sizes: dict[str, list[tuple[int, int]]] = {}
        for seen in self.record:
            sizes.setdefault(seen.name, []).append((seen.weights.shape[2], seen.weights.shape[3]))
        steps = {name for name, calls in sizes.items() if any(_goes_on(*pair) for pair in pairwise(calls))}
        causal = {seen.name for seen in self.record if seen.kind == "decoder"}
        for place, seen in enumerate(self.record):
            if seen not in self.guessed:
                continue
            if seen.name in steps or (seen.weights.shape[2] == 1 and seen.kind == "encoder" and seen.name in causal):
                self.record.seen[place] = replace(seen, kind="decoder")
            elif steps and _asks_again(sizes[seen.name]):
                self.record.seen[place] = replace(seen, kind="cross")

    def check_something_was_seen(self) -> None:
        if self.record.seen:
            return
        name = type(self.model).__name__
        if self.turn < 0:
            raise SightlineError(
                f"record_attention must see {name} run inside the with block and in its thread, got no call of it"
            )
        if self.order:
            raise SightlineError(f"layers must match one of {', '.join(self.order)}, got {list(self.layers or ())}")
        raise SightlineError(
            f"record_attention must be given a model whose attention can be seen, got {name} without any: it must call "
            "Sightline's attention, torch.nn.MultiheadAttention or scaled_dot_product_attention, or take a softmax in "
            'a module named after attention; load a Hugging Face model with attn_implementation="sdpa" or "eager", '
            "where it has one of them"
        )


def _looks_causal(weights: Tensor) -> bool:
    """Whether nobody looks at what comes later."""
    queries, keys = weights.shape[-2:]
    return 1 < queries <= keys and not weights.triu(keys - queries + 1).any()


def _goes_on(early: tuple[int, int], late: tuple[int, int]) -> bool:
    """Whether a call that looked at itself is followed by new tokens that look at it and at themselves."""
    return early[0] == early[1] and late[1] == early[1] + late[0]


def _asks_again(calls: list[tuple[int, int]]) -> bool:
    """Whether one token after another looks at the same keys."""
    keys = {keys for _, keys in calls}
    return len(keys) == 1 and keys != {1} and {queries for queries, _ in calls[1:]} == {1}


def _says_causal(module: nn.Module) -> bool:
    return getattr(module, "is_causal", False) is True


def _as_tuple(value: Any, types: tuple[type, ...], name: str) -> tuple[Any, ...] | None:
    if value is None:
        return None
    values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, types) or (isinstance(v, int) and v < 0)]
    if wrong or not values:
        rule = "names or places counted from 0" if str in types else "numbers counted from 0"
        raise SightlineError(f"{name} must be {rule}, got {value!r}")
    return values
