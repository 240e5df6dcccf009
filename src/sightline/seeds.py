"""Independent random streams derived from one seed.

Each purpose has its own stream, so a change in how one of them draws does not change the others.
"""

import numpy as np

DATA = 0
"""Data splits and generated data. numpy ignores trailing zeros, so this stream is `default_rng(seed)`."""
# All other purposes start at 1 for the same reason.
AUGMENTATION = 1
ORDER = 2
NORMALIZATION = 3
DROPOUT = 4
EPISODES = 5
SHOTS = 6
SOURCES = 7
SEARCH = 8
MASKING = 9
SAMPLING = 10


def make_generator(seed: int, purpose: int, *counters: int) -> np.random.Generator:
    """A numpy generator for a purpose; `counters` select an epoch, a step or a process."""
    return np.random.default_rng([seed, purpose, *counters])


def derive_seed(seed: int, purpose: int, *counters: int) -> int:
    """A 63-bit seed for torch from the same stream definition."""
    state = np.random.SeedSequence([seed, purpose, *counters]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
