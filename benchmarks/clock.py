"""Timing that a noisy machine cannot fool: all contestants take turns, and only ratios of medians are reported."""

import statistics
import time
from collections.abc import Callable

import torch

TIMES = 20
"""Calls between two looks at a GPU's clock, so that it is kept busy as a training loop keeps it."""


def medians(contestants: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each, measured in turns."""
    for run in contestants.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            times[name].append(_once(run, device))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _once(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(TIMES):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000 / TIMES
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def machine(device: str) -> str:
    """What this runs on, in words."""
    chip = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {chip}"
