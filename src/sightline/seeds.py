"""Random streams: one seed, and a stream of numbers for each purpose that has nothing to do with the others."""

import numpy as np

AUGMENTATION, ORDER, NORMALIZATION, DROPOUT, EPISODES, SHOTS, SOURCES = range(1, 8)
"""The purposes. None is 0: numpy takes a seed that ends in zeros for the seed without them."""

DATA = 0
"""Purpose of data splits and generated data. numpy ignores trailing zeros, so the stream is `default_rng(seed)`."""


def generator(seed: int, purpose: int, *numbers: int) -> np.random.Generator:
    """The stream of this purpose, for this epoch or step."""
    return np.random.default_rng([seed, purpose, *numbers])


def number(seed: int, purpose: int, *numbers: int) -> int:
    """The same as one number, for torch."""
    state = np.random.SeedSequence([seed, purpose, *numbers]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
