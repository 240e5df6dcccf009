"""Lines of text files: UTF-8, optionally compressed with gzip, read lazily and within limits."""

import codecs
import gzip
import itertools
import math
import shlex
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ... import limits
from ...errors import SightlineError, reraise
from ...names import display_path

STDIN = "standard input"
_BYTE_ORDER_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),  # starts like UTF-16
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


@contextmanager
def open_text(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """A file, opened to read bytes. `.gz` files are decompressed."""
    name = display_path(path)
    with (
        reraise(f"{name} must be readable", OSError),
        reraise(f"{name} must be a complete gzip file", gzip.BadGzipFile, zlib.error, EOFError),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
    ):
        yield file


def iter_lines(path: Path) -> Iterator[str]:
    """Lines of a file without their line ends. Only a line feed ends a line. `.gz` files are decompressed."""
    name, max_chars = display_path(path), limits.MAX_LINE_CHARS
    with open_text(path) as file:
        for number, line in enumerate(stream_lines(file, name, max_bytes=limits.MAX_TEXT_BYTES), 1):
            if len(line) > max_chars:
                raise SightlineError(f"line {number:,} of {name} must be at most {max_chars:,} characters, got more")
            yield line


def stream_lines(file: IO[bytes] | gzip.GzipFile, name: str, *, max_bytes: float = math.inf) -> Iterator[str]:
    """Lines of an open file of at most `max_bytes`; `name` is used in error messages.

    A line over the limit is cut to one character more than the limit, so memory is bounded and the line can be refused.
    """
    max_chars, num_bytes = limits.MAX_LINE_CHARS, 0
    chunk_size = 4 * max_chars + 8  # a UTF-8 character has at most 4 bytes
    for number in itertools.count(1):
        line = rest = file.readline(chunk_size)
        num_bytes += len(line)
        while len(rest) == chunk_size and not rest.endswith(b"\n") and num_bytes <= max_bytes:
            rest = file.readline(chunk_size)
            num_bytes += len(rest)
        if num_bytes > max_bytes:
            raise SightlineError(f"{name} must be at most {max_bytes:,} bytes of text, got more")
        if not line:
            return
        is_cut = rest is not line
        yield _decode(line, name, number, errors="replace" if is_cut else "strict")[: max_chars + 1]


def _decode(line: bytes, name: str, number: int, errors: str = "strict") -> str:
    """The text of a line without its line end."""
    if number == 1:
        for encoding, marks in _BYTE_ORDER_MARKS.items():
            if line.startswith(marks):
                command = _conversion_command(encoding, name)
                raise SightlineError(f"{name} must be UTF-8, got {encoding}; convert it: {command}")
        line = line.removeprefix(codecs.BOM_UTF8)
    try:
        return line.decode("utf-8", errors).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        byte, fix = line[error.start], f"if it is Latin-1, convert it: {_conversion_command('LATIN1', name)}"
        raise SightlineError(f"{name} must be UTF-8, got the byte 0x{byte:02x} in line {number:,}; {fix}") from error


def _conversion_command(encoding: str, name: str) -> str:
    return f"iconv -f {encoding} -t UTF-8{'' if name == STDIN else f' {shlex.quote(name)} > converted.txt'}"
