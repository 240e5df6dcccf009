from itertools import combinations

import numpy as np
import pytest

from sightline import seeds

PURPOSES = (seeds.AUGMENTATION, seeds.ORDER, seeds.NORMALIZATION, seeds.DROPOUT, seeds.EPISODES)


def test_streams_of_one_seed_are_apart():
    """Also at step 0, where numpy would take a seed that ends in zeros for a shorter one."""
    drawn = {seeds.generator(7, purpose, 0).random() for purpose in PURPOSES}
    assert len(drawn | {seeds.np.random.default_rng(7).random()}) == len(PURPOSES) + 1
    for one, other in combinations(PURPOSES, 2):
        assert seeds.number(7, one, 0) != seeds.number(7, other, 0)


def test_a_stream_can_be_begun_again():
    assert seeds.generator(7, seeds.ORDER, 3).random() == seeds.generator(7, seeds.ORDER, 3).random()
    assert seeds.number(7, seeds.DROPOUT, 3, 0) == seeds.number(7, seeds.DROPOUT, 3, 0)
    assert seeds.number(7, seeds.DROPOUT, 3, 0) != seeds.number(7, seeds.DROPOUT, 3, 1)
    assert 0 <= seeds.number(7, seeds.DROPOUT, 3) < 2**63


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 1, 2**63 - 1])
def test_the_stream_of_data_splits_is_that_of_default_rng(seed):
    values = seeds.generator(seed, seeds.DATA).random(5)
    assert np.array_equal(values, np.random.default_rng(seed).random(5))
