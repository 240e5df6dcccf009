"""Text files from outside as lines: UTF-8, packed or not, and never more than a machine can hold."""

import gzip
import shlex
import zlib
from pathlib import Path

from ...errors import SightlineError

MOST_BYTES = 1 << 30
"""No file of text may be larger, unpacked."""
MOST_CHARACTERS = 100_000
"""No line may be longer: what is, is no sentence."""
MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""How files in other encodings begin."""
AT_ONCE = 1 << 20


def read_lines(path: Path) -> list[str]:
    """The lines of a file, less what ends them; only a line feed ends a line, as line numbers count them."""
    return lines_of(_unpacked(path), str(path))


def lines_of(data: bytes, name: str) -> list[str]:
    """The same of bytes that go by this name."""
    if len(data) > MOST_BYTES:
        raise SightlineError(f"{name} must be at most {MOST_BYTES:,} bytes of text, got more")
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            raise SightlineError(
                f"{name} must be text in UTF-8, got {encoding}; convert it: {_conversion(encoding, name)}"
            )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise SightlineError(
            f"{name} must be text in UTF-8, got the byte 0x{data[error.start]:02x} in line {number:,}; if it is "
            f"Latin-1, convert it: {_conversion('LATIN1', name)}"
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, 1):
        if len(line) > MOST_CHARACTERS:
            raise SightlineError(
                f"line {number:,} of {name} must be at most {MOST_CHARACTERS:,} characters, got {len(line):,}"
            )
    return lines


def _conversion(encoding: str, name: str) -> str:
    return f"iconv -f {encoding} -t UTF-8{'' if name == '-' else f' {shlex.quote(name)} > converted.txt'}"


def _unpacked(path: Path) -> bytes:
    """The bytes of the file, unpacked if gzip packed it, read no further than is allowed."""
    pieces, total = [], 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while piece := file.read(AT_ONCE):
                pieces.append(piece)
                total += len(piece)
                if total > MOST_BYTES:
                    raise SightlineError(f"{path} must be at most {MOST_BYTES:,} bytes of text, got more")
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise SightlineError(f"{path} must be a whole gzip file, got an error: {error}") from error
    return b"".join(pieces)
