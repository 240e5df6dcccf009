"""Classes or answers with their probabilities, for the panel of a page."""

import math
from collections.abc import Mapping
from typing import Any

from ..errors import SightlineError, check
from ..names import shortened

MAX_SCORES = 5
"""Scores of one list on a page; the first."""
MAX_NAME_CHARS = 300
"""Characters of a class or an answer."""


def read_scores(scores: Any) -> list[dict[str, Any]]:
    """Lists of scores, each with a title and how many more there are.

    A dict or pairs of names and numbers are one list, the highest first. A dict of such lists by their titles is
    several, whose order is kept; in them, a score can be None.
    """
    if scores is None:
        return []
    if isinstance(scores, Mapping) and any(isinstance(value, Mapping | list | tuple) for value in scores.values()):
        return [_score_list(str(title), _pairs(values, is_optional=True)) for title, values in scores.items()]
    return [_score_list("Scores", sorted(_pairs(scores), key=lambda pair: -pair[1]))]


def _pairs(scores: Any, *, is_optional: bool = False) -> list[tuple[str, Any]]:
    try:
        pairs = [
            (str(name), None if score is None and is_optional else float(score))
            for name, score in (scores.items() if isinstance(scores, Mapping) else scores)
        ]
    except (TypeError, ValueError) as error:
        raise SightlineError(f"scores must be a dict or pairs of names and numbers, got {scores!r:.80}") from error
    check(pairs, "scores must contain at least one class, got none")
    is_finite = all(score is None or math.isfinite(score) for _, score in pairs)
    check(is_finite, f"scores must be finite, got {dict(pairs)!r:.80}")
    return pairs


def _score_list(title: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    shown = [
        [shortened(name, MAX_NAME_CHARS), None if score is None else float(f"{score:.4g}")]
        for name, score in pairs[:MAX_SCORES]
    ]
    are_probabilities = all(score is not None and 0 <= score <= 1 for _, score in pairs)
    more = len(pairs) - len(shown)
    return {"title": title, "shown": shown, "more": more, "areProbabilities": are_probabilities}
