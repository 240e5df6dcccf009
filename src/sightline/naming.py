"""A part may be given by name or ready made; a wrong name is answered with the nearest right one."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: what exists, and what was probably meant."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"one of {', '.join(known)}, got {name!r}{hint}"
