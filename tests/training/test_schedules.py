import math

import pytest

from sightline.training.schedules import SCHEDULES, learning_rate_factor

STEPS, WARMUP = 101, 7


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_is_linear_and_ends_at_one(name):
    factors = [
        learning_rate_factor(name, step, STEPS, warmup_steps=WARMUP, step_size=1000) for step in range(WARMUP + 1)
    ]
    assert factors[:WARMUP] == pytest.approx([(step + 1) / WARMUP for step in range(WARMUP)])
    assert factors[WARMUP] == 1.0


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("constant", lambda step: 1.0),
        ("step", lambda step: 0.5 ** (step // 20)),
        ("cosine", lambda step: (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2),
        ("inverse_sqrt", lambda step: WARMUP**0.5 * step**-0.5),
    ],
)
def test_schedules_match_their_formulas(name, formula):
    for step in range(WARMUP, STEPS):
        factor = learning_rate_factor(name, step, STEPS, warmup_steps=WARMUP, step_size=20, gamma=0.5)
        assert factor == pytest.approx(formula(step))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_fall_from_one_to_at_least_min_ratio(name):
    factors = [learning_rate_factor(name, step, 50, step_size=3, gamma=0.1, min_ratio=0.2) for step in range(500)]
    assert max(factors) == factors[0] == 1.0
    assert min(factors) >= 0.2
    assert factors == sorted(factors, reverse=True)


def test_cosine_ends_at_min_ratio():
    assert learning_rate_factor("cosine", 50, 50, min_ratio=0.2) == pytest.approx(0.2)


def test_warmup_longer_than_training_only_rises():
    factors = [learning_rate_factor("cosine", step, 5, warmup_steps=20) for step in range(5)]
    assert factors == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])
