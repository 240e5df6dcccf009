"""How much a layer of attention says: its information, and whether its maps are nearly uniform."""

from dataclasses import dataclass
from typing import Any

import numpy as np

UNIFORM_SHARE = 0.9
"""Effective keys, 2 to the entropy, of a nearly uniform map, relative to the keys that it may attend to."""


@dataclass(frozen=True)
class Information:
    """Measures of one layer."""

    bits: float
    """How much the key says about the query: the median over heads, since single heads attend to fixed offsets.

    It is the entropy of the mean row minus the mean entropy of the rows: 0 for uniform weights, and if all queries
    attend to the same keys; log2 Q if each query attends to a key of its own.
    """
    near_uniform: list[int]
    """Heads whose effective number of keys is at least `UNIFORM_SHARE` of the keys that they may attend to."""


def measure(weights: Any) -> Information:
    """Measure weights (H, Q, K) whose rows sum to 1 or are zero."""
    allowed, bits = (weights > 0).sum(-1), _entropy(weights)
    num_rows = np.maximum((allowed > 0).sum(-1), 1)
    mutual = _entropy(weights.sum(-2) / num_rows[:, None]) - bits.sum(-1) / num_rows
    has_choice = allowed > 1
    share = np.where(has_choice, np.exp2(bits) / np.maximum(allowed, 1), 0).sum(-1) / np.maximum(has_choice.sum(-1), 1)
    return Information(float(np.median(mutual)), [int(head) for head in np.flatnonzero(share >= UNIFORM_SHARE)])


def _entropy(weights: Any) -> Any:
    """In bits, over the last dimension."""
    return -(weights * np.log2(np.maximum(weights, 1e-30))).sum(-1)
