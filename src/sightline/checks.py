"""What input must be, and how an error says so: the rule, the value, and where it helps the fix."""

from collections.abc import Iterable
from difflib import get_close_matches

MOST_SHOWN = 64
"""Images or sentences on one page."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: what exists, and what was probably meant."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"one of {', '.join(known)}, got {name!r}{hint}"


def check_whole(least: int, **values: object) -> None:
    """Each of these must be a whole number, and not below `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_most(most: int, **values: int) -> None:
    """Each of these must not be above `most`."""
    for name, value in values.items():
        if value > most:
            raise ValueError(f"{name} must be at most {most:,}, got {value}")


def check_shown(**values: int) -> None:
    """So many must fit on one page."""
    for name, value in values.items():
        if not 1 <= value <= MOST_SHOWN:
            fix = "show fewer, or ask without a page" if value else "give one"
            raise ValueError(f"{name} must be 1 to {MOST_SHOWN} to be shown on one page, got {value}; {fix}")


def check_share(**values: float) -> None:
    """Each of these must be a share below the whole."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
