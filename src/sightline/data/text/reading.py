"""Lines of text files: UTF-8, optionally compressed with gzip, read lazily and within limits."""

import gzip
import shlex
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ... import limits
from ...errors import SightlineError
from ...names import display_path

STDIN = "standard input"
_BYTE_ORDER_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def iter_lines(path: Path) -> Iterator[str]:
    """Lines of a file without their line ends. Only a line feed ends a line. `.gz` files are decompressed."""
    name = display_path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from _iter_lines(file, name)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise SightlineError(f"{name} must be a complete gzip file, got an error: {error}") from error
    except OSError as error:
        raise SightlineError(f"{name} must be readable, got an error: {error}") from error


def read_lines(path: Path) -> list[str]:
    """All lines of a file."""
    return list(iter_lines(path))


def stream_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Lines of an open file of any size; `name` is used in error messages.

    A line over the limit is cut to one character more than the limit, so memory is bounded and the line can be refused.
    """
    max_chars = limits.MAX_LINE_CHARS
    max_bytes = 4 * max_chars + 8  # a UTF-8 character has at most 4 bytes
    number = 0
    while line := file.readline(max_bytes):
        number += 1
        rest = line
        while len(rest) == max_bytes and not rest.endswith(b"\n"):
            rest = file.readline(max_bytes)
        is_cut = rest is not line
        yield _decode(line, name, number, errors="ignore" if is_cut else "strict")[: max_chars + 1]


def _iter_lines(file: IO[bytes] | gzip.GzipFile, name: str) -> Iterator[str]:
    max_chars, max_bytes = limits.MAX_LINE_CHARS, limits.MAX_TEXT_BYTES
    too_long = f"of {name} must be at most {max_chars:,} characters, got"
    total = number = 0
    while line := file.readline(4 * max_chars + 2):  # a UTF-8 character has at most 4 bytes
        number += 1
        total += len(line)
        if total > max_bytes:
            raise SightlineError(f"{name} must be at most {max_bytes:,} bytes of text, got more")
        if len(line) > 4 * max_chars and not line.endswith(b"\n"):
            raise SightlineError(f"line {number:,} {too_long} more")
        text = _decode(line, name, number)
        if len(text) > max_chars:
            raise SightlineError(f"line {number:,} {too_long} {len(text):,}")
        yield text


def _decode(line: bytes, name: str, number: int, errors: str = "strict") -> str:
    """The text of a line without its line end."""
    if number == 1:
        _check_encoding(line, name)
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return line.decode("utf-8", errors).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SightlineError(
            f"{name} must be UTF-8, got the byte 0x{line[error.start]:02x} in line {number:,}; if it is Latin-1, "
            f"convert it: {_conversion_command('LATIN1', name)}"
        ) from error


def _check_encoding(start: bytes, name: str) -> None:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            raise SightlineError(
                f"{name} must be UTF-8, got {encoding}; convert it: {_conversion_command(encoding, name)}"
            )


def _conversion_command(encoding: str, name: str) -> str:
    return f"iconv -f {encoding} -t UTF-8{'' if name == STDIN else f' {shlex.quote(name)} > converted.txt'}"
