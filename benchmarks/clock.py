"""Timing on a noisy machine: functions are measured alternately, and benchmarks report ratios of their medians."""

import statistics
import time
from collections.abc import Callable

import torch

CALLS_PER_TIMING = 20
"""Calls per timing on a GPU, which keep it as busy as a training loop does."""

CALLS_PER_GRAPH = 5
"""Calls in one CUDA graph."""


def medians(
    functions: dict[str, Callable[[], object]],
    rounds: int,
    device: str,
    *,
    calls: int = CALLS_PER_TIMING,
    graphs: bool = False,
) -> dict[str, float]:
    """Median seconds per call of each function, measured in interleaved rounds after two warm-up calls.

    With `graphs`, a GPU replays CUDA graphs of the calls, so that the time of the CPU to launch kernels does not count.
    """
    for run in functions.values():
        run()
        run()
    if graphs and device == "cuda":
        replays = {name: _captured(run).replay for name, run in functions.items()}
        times_of_graphs = medians(replays, rounds, device, calls=2)
        return {name: seconds / CALLS_PER_GRAPH for name, seconds in times_of_graphs.items()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, run in functions.items():
            times[name].append(_seconds(run, device, calls))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


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


def _seconds(run: Callable[[], object], device: str, calls: int) -> float:
    """Seconds of one call."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000 / calls
    start_time = time.perf_counter()
    run()
    return time.perf_counter() - start_time


def machine(device: str) -> str:
    """The version of torch and the device."""
    device_name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {device_name}"
