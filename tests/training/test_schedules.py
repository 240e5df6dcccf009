import math

import pytest

from sightline.training.config import TrainingConfig
from sightline.training.schedules import SCHEDULES, learning_rate

STEPS, WARMUP = 101, 7


def rates(steps, total_steps=STEPS, **options):
    config = TrainingConfig(learning_rate=0.5, **options)
    return [learning_rate(config, step, total_steps) for step in steps]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warmup_is_linear_and_ends_at_the_learning_rate(schedule):
    values = rates(range(WARMUP + 1), schedule=schedule, warmup_steps=WARMUP)
    assert values[:WARMUP] == pytest.approx([0.5 * (step + 1) / WARMUP for step in range(WARMUP)])
    assert values[WARMUP] == 0.5


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        ("constant", lambda step: 1.0),
        ("step", lambda step: 0.5 ** (step // 20)),
        ("cosine", lambda step: (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2),
        ("inverse_sqrt", lambda step: WARMUP**0.5 * step**-0.5),
    ],
)
def test_schedules_match_their_formulas(schedule, formula):
    steps = range(WARMUP, STEPS)
    values = rates(steps, schedule=schedule, warmup_steps=WARMUP, step_size=20, gamma=0.5)
    assert values == pytest.approx([0.5 * formula(step) for step in steps])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_fall_to_at_least_the_minimum(schedule):
    values = rates(range(500), 50, schedule=schedule, step_size=3, gamma=0.1, min_lr_ratio=0.2)
    assert max(values) == values[0] == 0.5
    assert min(values) >= 0.1
    assert values == sorted(values, reverse=True)


def test_cosine_ends_at_the_minimum():
    assert rates([50], 50, min_lr_ratio=0.2) == pytest.approx([0.1])


def test_warmup_takes_at_most_a_third_of_all_steps():
    assert rates(range(4), 11, schedule="constant", warmup_steps=20) == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.5])
