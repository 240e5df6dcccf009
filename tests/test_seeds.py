from itertools import combinations

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
