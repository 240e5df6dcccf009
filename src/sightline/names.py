"""Names from outside, as text that is safe to show."""


def printable(text: str) -> str:
    """One harmless line: what a terminal or a font could stumble over is replaced."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shortened(text: str, most: int) -> str:
    """One harmless line of at most this many letters, its white space folded."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"
