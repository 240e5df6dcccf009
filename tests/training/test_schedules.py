import math

import pytest

from sightline.training.schedules import SCHEDULES, rate

STEPS, WARMUP = 101, 7


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_is_a_straight_line_that_ends_at_the_full_rate(name):
    rates = [rate(name, step, STEPS, warmup=WARMUP, every=1000) for step in range(WARMUP + 1)]
    assert rates[:WARMUP] == pytest.approx([(step + 1) / WARMUP for step in range(WARMUP)])
    assert rates[WARMUP] == 1.0


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("constant", lambda step: 1.0),
        ("step", lambda step: 0.5 ** (step // 20)),
        ("cosine", lambda step: (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2),
        ("inverse_sqrt", lambda step: WARMUP**0.5 * step**-0.5),
    ],
)
def test_each_schedule_is_its_formula(name, formula):
    for step in range(WARMUP, STEPS):
        assert rate(name, step, STEPS, warmup=WARMUP, every=20, factor=0.5) == pytest.approx(formula(step))


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_falls_below_its_floor_or_rises_above_the_rate(name):
    after = [rate(name, step, 50, every=3, factor=0.1, min_temperature=0.2) for step in range(500)]
    assert max(after) == after[0] == 1.0
    assert min(after) >= 0.2
    assert after == sorted(after, reverse=True)


def test_cosine_ends_at_its_floor():
    assert rate("cosine", 50, 50, min_temperature=0.2) == pytest.approx(0.2)


def test_a_warm_up_longer_than_training_only_rises():
    rates = [rate("cosine", step, 5, warmup=20) for step in range(5)]
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])
