"""Timing on a noisy machine: functions are measured alternately, and benchmarks report the ratios of the same rounds.

Also imported by peers in their own environments, so it needs torch only.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

MIN_SECONDS = 0.01
"""A timing on a CPU repeats short calls until it takes this long."""
CALLS_PER_TIMING = 20
"""Calls per timing on a GPU, which keep it as busy as a training loop does."""
MAX_SECONDS = 0.5
"""A timing on a GPU has fewer calls if they take longer than this."""
CALLS_PER_GRAPH = 5
"""Calls in one CUDA graph."""

Timer = Callable[[], float]
"""Runs a function and returns its seconds per call."""


class Samples(NamedTuple):
    """Values of one quantity, one of each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The range of the middle half of the values."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, method="inclusive")
        return low, high

    def map(self, function: Callable[[float], float]) -> "Samples":
        """The function of every value."""
        return Samples(tuple(map(function, self.values)))

    def rate(self, count: float = 1) -> "Samples":
        """Seconds for `count` items to items per second."""
        return self.map(lambda seconds: count / seconds)

    def relative_to(self, other: "Samples") -> "Samples":
        """Ratios of the values of the same rounds."""
        return Samples(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))


def alternate(timers: Mapping[str, Timer], rounds: int) -> dict[str, Samples]:
    """Measure all timers in every round, each once."""
    values: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            values[name].append(timer())
    return {name: Samples(tuple(seconds)) for name, seconds in values.items()}


def timer(run: Callable[[], object], device: str, *, graphs: bool = False) -> Timer:
    """A timer of a function, after two warm-up calls.

    On a GPU, events around many calls are measured. With `graphs`, the GPU replays CUDA graphs of the calls, so that
    the time of the CPU to launch kernels does not count. On one thread of a CPU, the time of the process is measured,
    so that other processes matter less; on several, threads that wait would count.
    """
    run()
    if device == "cuda" and graphs:
        replay = _captured(run).replay
        return lambda: _gpu_seconds(replay, 2) / CALLS_PER_GRAPH
    if device == "cuda":
        calls = gpu_calls(_gpu_seconds(run, 1))
        return lambda: _gpu_seconds(run, calls)
    seconds = cpu_seconds if torch.get_num_threads() == 1 else wall_seconds
    calls = max(1, math.ceil(MIN_SECONDS / wall_seconds(run)))
    return lambda: seconds(run, calls)


def gpu_calls(seconds: float) -> int:
    """Calls per timing on a GPU, of a function that takes this long."""
    return max(1, min(CALLS_PER_TIMING, math.floor(MAX_SECONDS / max(seconds, 1e-9))))


def wall_seconds(run: Callable[[], object], calls: int = 1) -> float:
    """Seconds per call by the clock on the wall."""
    return _seconds(run, calls, time.perf_counter)


def cpu_seconds(run: Callable[[], object], calls: int = 1) -> float:
    """Seconds of CPU time per call."""
    return _seconds(run, calls, time.process_time)


def _seconds(run: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        run()
    return (clock() - start) / calls


def measure(
    functions: Mapping[str, Callable[[], object]], rounds: int, device: str, *, graphs: bool = False
) -> dict[str, Samples]:
    """Seconds per call of each function, measured alternately."""
    return alternate({name: timer(run, device, graphs=graphs) for name, run in functions.items()}, rounds)


def machine(device: str) -> str:
    """The version of torch and the device."""
    return f"torch {torch.__version__}, {device_name(device)}"


def device_name(device: str) -> str:
    """The name of the GPU, or the number of threads on the CPU."""
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def _captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of several calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_PER_GRAPH):
            run()
    return graph


def _gpu_seconds(run: Callable[[], object], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000 / calls
