"""Errors a user can fix, and the checks that raise them.

Messages read `"<name> must <rule>, got <value>; <fix>"`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher

from . import limits
from .names import printable_lines

MAX_NAME_LENGTH = 200
"""Characters of names that are compared to find the closest one, in as many steps as the product of both lengths."""
MAX_LISTED = 50
"""Names that a message lists."""


class SightlineError(ValueError):
    """An error caused by an argument, a config, a file or the environment.

    The command line prints its message on one line and exits with status 2. Any other exception is a bug and shows
    its traceback. Characters of the message that are not printable are replaced, so file names cannot send escape
    sequences to a terminal.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable_lines(message))


class SightlineWarning(UserWarning):
    """A warning that the command line prints on one line."""


class MissingDependencyError(SightlineError):
    """An optional dependency is not installed. It concerns the whole call, never a single input."""


def check(condition: object, message: str) -> None:
    """Raise `SightlineError(message)` unless the condition holds."""
    if not condition:
        raise SightlineError(message)


@contextmanager
def reraise(rule: str, *exceptions: type[Exception], fix: str = "") -> Iterator[None]:
    """Raise `SightlineError("<rule>, got an error: <error>; <fix>")` where the block raises one of the exceptions."""
    try:
        yield
    except exceptions as error:
        raise SightlineError(f"{rule}, got an error: {error!s:.1000}{fix and f'; {fix}'}") from error


def one_of(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the known names, the name that was given, and the closest match."""
    known = sorted(known)
    more = f" and {len(known) - MAX_LISTED:,} more" if len(known) > MAX_LISTED else ""
    return f"one of {', '.join(known[:MAX_LISTED])}{more}, got {name!r}{closest(name, known)}"


def closest(name: str, known: Iterable[object], cutoff: float = 0.6) -> str:
    """The known name that is closest to a wrong one, as the end of an error message; nothing if none is close."""
    matcher, best, found = SequenceMatcher(b=name[:MAX_NAME_LENGTH]), cutoff, None
    for other in map(str, known):
        matcher.set_seq1(other[:MAX_NAME_LENGTH])
        if matcher.real_quick_ratio() < best or matcher.quick_ratio() < best:  # upper limits, faster to compute
            continue
        ratio = matcher.ratio()
        if ratio > best or (found is None and ratio == best):  # the first one of equally close names
            best, found = ratio, other
    return "" if found is None else f"; did you mean {found!r}?"


def shown(value: object) -> str:
    """The value in an error message, in a few hundred characters at most."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    try:
        return f"{value!r:.200}"
    except ValueError:  # Python refuses to write out integers of more than 4,300 digits
        return f"a {type(value).__name__} with an integer of too many digits"


def check_int(minimum: int, **values: object) -> None:
    """Each value must be an integer of at least `minimum`."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise SightlineError(f"{name} must be an integer of at least {minimum}, got {shown(value)}")


def check_max(maximum: int, **values: int) -> None:
    """Each value must be at most `maximum`."""
    for name, value in values.items():
        if not value <= maximum:
            raise SightlineError(f"{name} must be at most {maximum:,}, got {shown(value)}")


def check_divides(name: str, value: int, *, fix: str = "", **divisors: int) -> None:
    """Each divisor must divide the value of this name; `fix` ends the message."""
    for divisor_name, divisor in divisors.items():
        if value % divisor:
            raise SightlineError(f"{divisor_name} must divide {name}={shown(value)}, got {shown(divisor)}{fix}")


def check_fraction(**values: float) -> None:
    """Each value must be at least 0 and below 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise SightlineError(f"{name} must be at least 0 and below 1, got {shown(value)}")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """The value must be one of the known names."""
    known = tuple(known)
    if value not in known:
        raise SightlineError(f"{name} must be {one_of(str(value), known)}")


def check_page_size(limit: int | None = None, /, **values: int) -> None:
    """Each number of examples must fit on one page (default limit: `MAX_EXAMPLES_PER_PAGE`)."""
    limit = limits.MAX_EXAMPLES_PER_PAGE if limit is None else limit
    for name, value in values.items():
        fix = "show fewer, or leave out the page" if value else "give at least one"
        if not 1 <= value <= limit:
            raise SightlineError(f"{name} must be 1 to {limit} to be shown on one page, got {shown(value)}; {fix}")
