"""Names and paths from outside, as text that is safe to print."""

import os
from unicodedata import category

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text on one line. Characters that are not printable, such as terminal escapes, become U+FFFD."""
    return "".join(char if char.isprintable() or category(char) == "Zs" else REPLACEMENT for char in text)


def printable_lines(text: str) -> str:
    """The text with the same lines, each printable."""
    return "\n".join(map(printable, text.split("\n")))


def display_path(path: str | os.PathLike[str]) -> str:
    """A path for a message. A file name can contain terminal escapes and newlines."""
    return printable(os.fspath(path))


def shortened(text: str, max_chars: int) -> str:
    """The text on one line of at most `max_chars` characters, with single spaces."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
