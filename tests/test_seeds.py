import numpy as np
import pytest

from sightline import limits, seeds

PURPOSES = (
    seeds.AUGMENTATION,
    seeds.ORDER,
    seeds.NORMALIZATION,
    seeds.DROPOUT,
    seeds.EPISODES,
    seeds.SHOTS,
    seeds.SOURCES,
)


def test_purposes_have_different_streams():
    """Counter 0 included: numpy ignores trailing zeros of a seed."""
    first_draws = {seeds.make_generator(7, purpose, 0).random() for purpose in PURPOSES}
    assert len(first_draws | {np.random.default_rng(7).random()}) == len(PURPOSES) + 1
    assert len({seeds.derive_seed(7, purpose, 0) for purpose in PURPOSES}) == len(PURPOSES)


def test_streams_are_reproducible_and_depend_on_every_counter():
    assert seeds.make_generator(7, seeds.ORDER, 3).random() == seeds.make_generator(7, seeds.ORDER, 3).random()
    assert seeds.derive_seed(7, seeds.DROPOUT, 3, 0) == seeds.derive_seed(7, seeds.DROPOUT, 3, 0)
    assert seeds.derive_seed(7, seeds.DROPOUT, 3, 0) != seeds.derive_seed(7, seeds.DROPOUT, 3, 1)
    assert 0 <= seeds.derive_seed(7, seeds.DROPOUT, 3) <= 2**limits.MAX_INT_BITS - 1


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 1, 2**limits.MAX_INT_BITS - 1])
def test_data_stream_is_that_of_default_rng(seed):
    values = seeds.make_generator(seed, seeds.DATA).random(5)
    assert np.array_equal(values, np.random.default_rng(seed).random(5))
