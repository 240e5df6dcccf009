import math
import re

import pytest
import torch
from torch.testing import assert_close

from sightline.layers import GridPositions, LearnedPositions, SinusoidalPositions, sinusoids


def test_sinusoids_equal_the_formula():
    table = sinusoids(20, 6)
    for position, i in ((0, 0), (3, 1), (19, 2)):
        angle = position / 10_000 ** (2 * i / 6)
        assert_close(table[position, 2 * i], torch.tensor(math.sin(angle)))
        assert_close(table[position, 2 * i + 1], torch.tensor(math.cos(angle)))


def test_sinusoids_of_different_positions_differ():
    distances = torch.cdist(sinusoids(2000, 64).double(), sinusoids(2000, 64).double())
    assert (distances + torch.eye(2000)).min() > 0.1


def test_distance_of_sinusoids_depends_on_the_offset_only():
    table = sinusoids(1000, 64).double()
    for step in (1, 7, 100):
        distances = (table[step:] - table[:-step]).norm(dim=-1)
        assert_close(distances, distances[0].expand_as(distances), atol=1e-5, rtol=0)


def test_an_offset_is_one_linear_map_at_all_positions():
    """One matrix maps every position to the one k later, so a model can learn relative positions."""
    table, step = sinusoids(500, 16).double(), 5
    matrix = torch.linalg.lstsq(table[:-step], table[step:]).solution
    assert_close(table[:-step] @ matrix, table[step:], atol=1e-5, rtol=0)


def test_sinusoidal_positions_have_any_length_and_offset():
    positions = SinusoidalPositions(8)
    long = positions(torch.zeros(1, 3000, 8))
    assert_close(long[0], sinusoids(3000, 8))
    assert_close(positions(torch.zeros(1, 2, 8), offset=5000)[0], sinusoids(5002, 8)[5000:])
    assert list(positions.parameters()) == []
    assert positions.state_dict() == {}


@pytest.mark.parametrize("init", ["zeros", "ones", "normal", "sinusoidal"])
@pytest.mark.parametrize("trainable", [True, False])
def test_learned_positions_init_and_trainable(init, trainable):
    positions = LearnedPositions(9, 6, init=init, trainable=trainable)
    expected = {"zeros": torch.zeros(9, 6), "ones": torch.ones(9, 6), "sinusoidal": sinusoids(9, 6)}
    if init in expected:
        assert_close(positions.table.detach(), expected[init])
    else:
        assert 0.01 < positions.table.std() < 0.03
    x = torch.randn(2, 4, 6, requires_grad=True)
    assert_close(positions(x, offset=3), x + positions.table[3:7])
    positions(x).sum().backward()
    assert (positions.table.grad is not None) == trainable


def test_positions_keep_the_dtype_of_the_input():
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
def test_invalid_input_raises(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_grid_positions_are_linear_in_row_and_column_at_first():
    table = GridPositions(3, 5, 7).table.detach().view(3, 5, 7)
    assert_close(table[1:] - table[:-1], (table[1] - table[0]).expand(2, 5, 7))
    assert_close(table[:, 1:] - table[:, :-1], (table[:, 1] - table[:, 0])[:, None].expand(3, 4, 7))
    assert (table[0, 0] - table[2, 4]).abs().max() > 0.1
    assert_close(table.mean((0, 1)), torch.zeros(7))
