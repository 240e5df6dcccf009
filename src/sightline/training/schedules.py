"""How the learning rate moves: each schedule is a factor between 0 and 1 for a step out of all steps."""

import math
from collections.abc import Callable

SCHEDULES: dict[str, Callable[[int, int, int, int, float], float]] = {
    "constant": lambda step, steps, warmup_steps, every, factor: 1.0,
    "step": lambda step, steps, warmup_steps, every, factor: factor ** (step // every),
    "cosine": lambda step, steps, warmup_steps, every, factor: (
        0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps)))
    ),
    "inverse_sqrt": lambda step, steps, warmup_steps, every, factor: math.sqrt(
        max(1, warmup_steps) / max(1, step, warmup_steps)
    ),
}
"""Each takes the step (from 0), all steps, the steps of warm-up, and for `step` how often it falls and by what."""


def rate(
    name: str, step: int, steps: int, *, warmup_steps: int = 0, every: int = 1, factor: float = 0.1, floor: float = 0.0
) -> float:
    """The share of the learning rate at this step, counted from 0: a straight warm-up, then the schedule, never below
    `floor`."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return floor + (1 - floor) * SCHEDULES[name](step, steps, warmup_steps, every, factor)
