"""Learning-rate schedules, as factors of the learning rate."""

import math
from collections.abc import Callable

SCHEDULES: dict[str, Callable[[int, int, int, int, float], float]] = {
    "constant": lambda step, total_steps, warmup_steps, step_size, gamma: 1.0,
    "step": lambda step, total_steps, warmup_steps, step_size, gamma: gamma ** (step // step_size),
    "cosine": lambda step, total_steps, warmup_steps, step_size, gamma: (
        0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps)))
    ),
    "inverse_sqrt": lambda step, total_steps, warmup_steps, step_size, gamma: math.sqrt(
        max(1, warmup_steps) / max(1, step, warmup_steps)
    ),
}
"""Functions of (step, total_steps, warmup_steps, step_size, gamma) to a factor from 0 to 1; steps count from 0."""


def learning_rate_factor(
    schedule: str,
    step: int,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    step_size: int = 1,
    gamma: float = 0.1,
    min_ratio: float = 0.0,
) -> float:
    """Return the factor of the learning rate at `step`, counted from 0: linear warm-up, then the schedule scaled to
    [min_ratio, 1]."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return min_ratio + (1 - min_ratio) * SCHEDULES[schedule](step, total_steps, warmup_steps, step_size, gamma)
