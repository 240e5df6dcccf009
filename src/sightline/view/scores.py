"""Classes or answers with their probabilities, for the panel of a page."""

import math
from collections.abc import Mapping
from typing import Any

from ..errors import SightlineError, check
from ..names import shortened

MAX_SCORES = 5
"""Scores on a page; the highest."""


def read_scores(scores: Any) -> dict[str, Any] | None:
    """The highest scores as pairs, highest first, and how many more there are."""
    if scores is None:
        return None
    try:
        pairs = [
            (str(name), float(score)) for name, score in (scores.items() if isinstance(scores, Mapping) else scores)
        ]
    except (TypeError, ValueError) as error:
        raise SightlineError(f"scores must be a dict or pairs of names and numbers, got {scores!r:.80}") from error
    check(pairs, "scores must contain at least one class, got none")
    check(all(math.isfinite(score) for _, score in pairs), f"scores must be finite, got {dict(pairs)!r:.80}")
    pairs.sort(key=lambda pair: -pair[1])
    shown = [[shortened(name, 60), float(f"{score:.4g}")] for name, score in pairs[:MAX_SCORES]]
    are_probabilities = all(0 <= score <= 1 for _, score in pairs)
    return {"shown": shown, "more": len(pairs) - len(shown), "areProbabilities": are_probabilities}
