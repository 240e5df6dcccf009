"""Learning-rate schedules."""

import math
from collections.abc import Callable

from .config import TrainingConfig

SCHEDULES: dict[str, Callable[[TrainingConfig, int, int, int], float]] = {
    "constant": lambda config, step, total, warmup: 1.0,
    "step": lambda config, step, total, warmup: config.gamma ** (step // config.step_size),
    "cosine": lambda config, step, total, warmup: (
        0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup)))
    ),
    "inverse_sqrt": lambda config, step, total, warmup: math.sqrt(max(1, warmup) / max(1, step, warmup)),
}
"""Functions of the config, the step (from 0), the number of steps and of warm-up steps to a factor from 0 to 1."""


def learning_rate(config: TrainingConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up, then the schedule, scaled to
    [min_lr_ratio, 1]. Warm-up takes at most a third of all steps."""
    warmup = min(config.warmup_steps, total_steps // 3)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    factor = SCHEDULES[config.schedule](config, step, total_steps, warmup)
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * factor)
