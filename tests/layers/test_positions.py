import math
import re

import pytest
import torch
from torch.testing import assert_close

from sightline.layers import LearnedPositions, SinusoidalPositions, sinusoids


def test_sinusoids_are_sine_and_cosine_of_growing_wave_length():
    table = sinusoids(20, 6)
    for place, i in ((0, 0), (3, 1), (19, 2)):
        angle = place / 10_000 ** (2 * i / 6)
        assert_close(table[place, 2 * i], torch.tensor(math.sin(angle)))
        assert_close(table[place, 2 * i + 1], torch.tensor(math.cos(angle)))


def test_every_position_is_unique():
    distances = torch.cdist(sinusoids(2000, 64).double(), sinusoids(2000, 64).double())
    assert (distances + torch.eye(2000)).min() > 0.1


def test_equal_steps_are_equally_far_apart_wherever_they_are():
    table = sinusoids(1000, 64).double()
    for step in (1, 7, 100):
        distances = (table[step:] - table[:-step]).norm(dim=-1)
        assert_close(distances, distances[0].expand_as(distances), atol=1e-5, rtol=0)


def test_a_step_is_the_same_turn_everywhere():
    """One matrix takes any position to the one k further on, so a model can learn "k places back"."""
    table, step = sinusoids(500, 16).double(), 5
    turn = torch.linalg.lstsq(table[:-step], table[step:]).solution
    assert_close(table[:-step] @ turn, table[step:], atol=1e-5, rtol=0)


def test_sinusoidal_positions_go_past_any_length_and_start_anywhere():
    positions = SinusoidalPositions(8)
    long = positions(torch.zeros(1, 3000, 8))
    assert_close(long[0], sinusoids(3000, 8))
    assert_close(positions(torch.zeros(1, 2, 8), offset=5000)[0], sinusoids(5002, 8)[5000:])
    assert list(positions.parameters()) == []
    assert positions.state_dict() == {}


@pytest.mark.parametrize("start", ["zeros", "ones", "normal", "sinusoidal"])
@pytest.mark.parametrize("trainable", [True, False])
def test_learned_positions_start_as_told_and_train_or_stay(start, trainable):
    positions = LearnedPositions(9, 6, init=start, trainable=trainable)
    expected = {"zeros": torch.zeros(9, 6), "ones": torch.ones(9, 6), "sinusoidal": sinusoids(9, 6)}
    if start in expected:
        assert_close(positions.table.detach(), expected[start])
    else:
        assert 0.01 < positions.table.std() < 0.03
    x = torch.randn(2, 4, 6, requires_grad=True)
    assert_close(positions(x, offset=3), x + positions.table[3:7])
    positions(x).sum().backward()
    assert (positions.table.grad is not None) == trainable


def test_positions_keep_the_dtype_of_what_they_are_added_to():
    x = torch.zeros(1, 2, 4, dtype=torch.bfloat16)
    assert LearnedPositions(3, 4)(x).dtype == SinusoidalPositions(4)(x).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoids(3, 5), "embed_dim must be even and at least 2, got 5"),
        (
            lambda: LearnedPositions(3, 4, init="random"),
            "init must be one of normal, ones, sinusoidal, zeros, got 'random'",
        ),
        (lambda: LearnedPositions(0, 4), "max_positions must be an integer of at least 1, got 0"),
        (
            lambda: LearnedPositions(3, 4)(torch.zeros(1, 5, 4)),
            "positions must be below max_positions=3, got 4",
        ),
        (
            lambda: LearnedPositions(3, 4)(torch.zeros(1, 2, 6)),
            "x must have 4 channels, the embed_dim of the positions, got 6",
        ),
        (
            lambda: LearnedPositions(3, 4)(torch.zeros(1, 1, 4), offset=-1),
            "offset must be an integer of at least 0, got -1",
        ),
        (
            lambda: SinusoidalPositions(4)(torch.zeros(1, 2, 6)),
            "x must have 4 channels, the embed_dim of the positions, got 6",
        ),
    ],
)
def test_bad_input_is_answered_with_the_rule_and_the_value(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
