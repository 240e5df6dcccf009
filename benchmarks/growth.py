"""Time and memory of one layer against the length of the sequence: self-attention, self-attention restricted to a
window, a recurrent and a convolutional layer of equal width.

Training is the forward and the backward pass of one sequence. Memory is the peak of what a training pass allocates,
inputs and parameters excluded. The exponent is the slope of a line through the upper half of the lengths, both axes
logarithmic; the crossover is the length at which self-attention becomes slower than another layer. `python -m
benchmarks.growth` draws the figures of docs/benchmarks.md and prints its tables from the records.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sightline.attention import MultiHeadAttention
from sightline.attention.masks import Window
from sightline.files import atomic_write
from sightline.layers.recurrent import RNN

from . import page, plots
from .clock import measure
from .peers import ROOT
from .record import Report, read
from .suite import RESULTS, Settings

KERNEL_SIZE = 3
SELF_ATTENTION = "self-attention"
THEORY = {"self-attention": "n² d", "restricted": "n r d", "recurrent": "n d²", "convolutional": "k n d²"}
"""Complexity per layer: n tokens, d width, r window, k kernel size."""
TIME, MEMORY = "Training time", "Training memory"
FIGURES = {name: ROOT / "docs" / "images" / f"growth-{name}.svg" for name in ("cpu", "gpu")}
MAX_RECURRENT = {"cpu": 1024, "cuda": 16384}
"""Tokens of the recurrent layer, which takes seconds for longer sequences."""
MAX_EXTRAPOLATION = 32
"""A crossover this many times beyond the longest sequence is not reported."""


class Convolution(nn.Module):
    """A convolution over tokens: x (B, T, M) -> (B, T, M)"""

    def __init__(self, dim: int):
        super().__init__()
        self.convolution = nn.Conv1d(dim, dim, KERNEL_SIZE, padding=KERNEL_SIZE // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.mT).mT


class Recurrent(nn.Module):
    """A GRU over tokens: x (B, T, M) -> (B, T, M)"""

    def __init__(self, dim: int):
        super().__init__()
        self.rnn = RNN(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


def run(settings: Settings, report: Report) -> None:
    """Measure all layers at all lengths."""
    dim, heads, window = settings.pick(tiny=(8, 2, 4), cpu=(256, 4, 64), gpu=(512, 8, 128))
    lengths = settings.pick(tiny=(16, 32, 64), cpu=[2**i for i in range(6, 13)], gpu=[2**i for i in range(8, 17)])
    layers: dict[str, nn.Module] = {
        "self-attention": MultiHeadAttention(dim, heads),
        "restricted": MultiHeadAttention(dim, heads, mask=Window(window)),
        "recurrent": Recurrent(dim),
        "convolutional": Convolution(dim),
    }
    layers = {name: layer.to(settings.device) for name, layer in layers.items()}
    report.note(f"Width {dim}, {heads} heads, window {window} on either side, kernel size {KERNEL_SIZE}, batch size 1.")
    seconds: dict[str, dict[int, float]] = {name: {} for name in layers}
    memory: dict[str, dict[int, float]] = {name: {} for name in layers}
    for length in lengths:
        x = torch.randn(1, length, dim, device=settings.device, requires_grad=True)
        functions = {
            name: partial(train, layer, x, settings.device)
            for name, layer in layers.items()
            if name != "recurrent" or length <= MAX_RECURRENT[settings.device]
        }
        samples = measure(functions, settings.pick(tiny=1, cpu=5, gpu=5), settings.device)
        for name, function in functions.items():
            seconds[name][length] = samples[name].median
            memory[name][length] = peak_memory(function, settings.device)
        times = ", ".join(f"{name} {1000 * samples[name].median:.3g} ms" for name in functions)
        print(f"{'':8} {'':14}  {length:,} tokens: {times}", flush=True)
    for quantity, unit, values in ((TIME, "s", seconds), (MEMORY, "bytes", memory)):
        for name, by_length in values.items():
            report.curves.append(curve(name, quantity, unit, by_length))
    for row in report.curves:
        print(f"{'':8} {'':14}  {row['quantity']} of {row['name']}: exponent {row['exponent']}")
    for name, length in crossovers(report.curves).items():
        report.note(f"{name}: {length}")


def train(layer: nn.Module, x: Tensor, device: str) -> tuple[Tensor, ...]:
    """Forward and backward pass."""
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        out = layer(x)
    return torch.autograd.grad(out, [x, *layer.parameters()], torch.ones_like(out))


def peak_memory(function: Callable[[], object], device: str) -> float:
    """The most that a call has allocated at a time, in bytes."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before)
    with AllocatedMemory() as allocated:
        function()
    return float(allocated.peak)


class AllocatedMemory(TorchDispatchMode):
    """Adds up the memory of the tensors that operations return, until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        outputs = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in inputs | self.seen:
                self._add(tensor.untyped_storage())
        return outputs

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.seen.add(key)
        self.total += size
        self.peak = max(self.peak, self.total)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.total -= size


def curve(name: str, quantity: str, unit: str, by_length: dict[int, float]) -> dict[str, Any]:
    """A curve of the record."""
    lengths, values = list(by_length), [float(f"{value:.4g}") for value in by_length.values()]
    exponent = round(slope(lengths[len(lengths) // 2 :], values[len(values) // 2 :]), 2)
    return {
        "name": name,
        "quantity": quantity,
        "unit": unit,
        "exponent": exponent,
        "lengths": lengths,
        "medians": values,
    }


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of the line through points on logarithmic axes, by least squares."""
    log_xs, log_ys = [math.log(x) for x in xs], [math.log(max(y, 1e-12)) for y in ys]
    mean_x, mean_y = sum(log_xs) / len(xs), sum(log_ys) / len(ys)
    products = sum((x - mean_x) * (y - mean_y) for x, y in zip(log_xs, log_ys, strict=True))
    return products / sum((x - mean_x) ** 2 for x in log_xs)


def crossovers(curves: list[dict[str, Any]]) -> dict[str, str]:
    """Lengths from which on self-attention takes more time than each other layer."""
    times = {c["name"]: dict(zip(c["lengths"], c["medians"], strict=True)) for c in curves if c["quantity"] == TIME}
    found = {}
    for name, values in times.items():
        if name != SELF_ATTENTION:
            found[f"self-attention is slower than the {name} layer"] = crossover(times[SELF_ATTENTION], values)
    return found


def crossover(ours: dict[int, float], theirs: dict[int, float]) -> str:
    """Where one curve stays above the other, interpolated or extrapolated on logarithmic axes."""
    lengths = sorted(ours.keys() & theirs.keys())
    differences = [math.log(ours[length] / theirs[length]) for length in lengths]
    if differences[-1] <= 0:
        upper = lengths[len(lengths) // 2 :]
        growth = slope(upper, [ours[length] / theirs[length] for length in upper])
        distance = -differences[-1] / growth if growth > 0 else math.inf
        if distance > math.log(MAX_EXTRAPOLATION):
            return f"not up to {lengths[-1]:,} tokens"
        return f"from about {_about(lengths[-1] * math.exp(distance))} tokens on (extrapolated)"
    last = max((i for i, difference in enumerate(differences) if difference <= 0), default=None)
    if last is None:
        return f"from {lengths[0]:,} tokens on or fewer"
    share = -differences[last] / (differences[last + 1] - differences[last])
    return f"from about {_about(lengths[last] * (lengths[last + 1] / lengths[last]) ** share)} tokens on"


def _about(length: float) -> str:
    return f"{float(f'{length:.2g}'):,.0f}"


def table(curves: list[dict[str, Any]]) -> str:
    """Complexity and measured exponents as a table of Markdown."""
    exponents = {(c["name"], c["quantity"]): c["exponent"] for c in curves}
    rows = ["| layer | complexity | exponent of time | exponent of memory |", "| --- | --- | --- | --- |"]
    for name, theory in THEORY.items():
        rows.append(f"| {name} | {theory} | {exponents[name, TIME]:.2f} | {exponents[name, MEMORY]:.2f} |")
    return "\n".join(rows)


def main() -> None:
    """Draw the figures of the docs and print the tables of all records."""
    for name, figure in FIGURES.items():
        path = RESULTS / f"{name}.json"
        curves = read(path).get("benchmarks", {}).get("growth", {}).get("curves")
        if curves is None:
            print(f"{path.name} has no results of growth\n")
            continue
        print(f"{path.name}\n{table(curves)}")
        print("\n".join(f"{name}: {length}" for name, length in crossovers(curves).items()), end="\n\n")
        size = (440, 320)
        with atomic_write(figure) as part:
            part.write_text(plots.standalone(page.curve_plots(curves, size), size), encoding="utf-8")
        print(f"wrote {figure.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
