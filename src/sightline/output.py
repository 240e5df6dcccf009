"""Records written as text, JSON, JSON Lines or CSV, one at a time."""

import csv
import json
import math
import re
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from .errors import check_choice
from .files import atomic_write
from .names import REPLACEMENT, display_path, printable_lines

FORMATS = ("text", "json", "jsonl", "csv")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters other than tab and newline, and surrogates, which stand for undecodable bytes of file names."""


class RecordWriter:
    """Writes each record as it comes, so memory does not grow with their number.

    A record has a text for people and a dict for programs. JSON is one array, JSON Lines one object per line. CSV has
    one column for each key of the flattened dict: `columns`, or the keys of the first record without an error, and
    `error` if some records can have one. Control characters are escaped in JSON and replaced elsewhere, so file names
    cannot send escape sequences to a terminal.
    """

    def __init__(
        self, stream: IO[str], format: str, columns: Sequence[str] | None = None, *, with_errors: bool = False
    ):
        check_choice("format", format, FORMATS)
        self.stream, self.format, self.columns, self.with_errors = stream, format, columns, with_errors
        self._count = 0
        self._csv: Any = None
        self._held: list[dict[str, Any]] = []
        """Rows of errors before the first record that shows the columns."""

    def write(self, record: Mapping[str, Any], text: str) -> None:
        """Write one record."""
        if self.format == "text":
            self.stream.write(f"{printable_lines(text)}\n")
        elif self.format == "csv":
            self._write_row(flatten(record))
        else:
            data = json.dumps(finite(record), ensure_ascii=False, allow_nan=False)
            data = CONTROL_CHARACTERS.sub(lambda match: json.dumps(match[0])[1:-1], data)
            start = "" if self.format == "jsonl" else ",\n" if self._count else "[\n"
            self.stream.write(f"{start}{data}" + ("\n" if self.format == "jsonl" else ""))
        self._count += 1
        if self.stream is sys.stdout:
            self.stream.flush()

    def close(self) -> None:
        """Write what ends the output."""
        if self.format == "json":
            self.stream.write("\n]\n" if self._count else "[]\n")
        elif self.format == "csv" and self._csv is None and (self.columns or self._held):
            self._start_csv(self.columns or list(self._held[0]))

    def _write_row(self, row: dict[str, Any]) -> None:
        if self._csv is None and self.columns is None and self.with_errors and row.get("error") is not None:
            self._held.append(row)
            return
        if self._csv is None:
            names = [name for name in row if name != "error" or not self.with_errors]
            self._start_csv(self.columns or [*names, *["error"] * self.with_errors])
        self._csv.writerow([_cell(row.get(name)) for name in self.columns or ()])

    def _start_csv(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self._csv = csv.writer(self.stream, lineterminator="\n")
        self._csv.writerow(map(_cell, columns))
        for row in self._held:
            self._csv.writerow([_cell(row.get(name)) for name in columns])


def output_format(format: str | None, out: Path | None) -> str:
    """The given format, or that of the ending of the file; otherwise text."""
    endings = {".json": "json", ".jsonl": "jsonl", ".csv": "csv"}
    return format or endings.get("" if out is None else out.suffix.lower(), "text")


@contextmanager
def record_writer(
    out: Path | None, format: str, columns: Sequence[str] | None = None, *, with_errors: bool = False
) -> Iterator[RecordWriter]:
    """A writer to a file, which appears when all records are written, or to standard output, a pipe or a device."""
    is_direct = out is not None and out.exists() and not out.is_file()
    with ExitStack() as stack:
        stream: IO[str] = sys.stdout
        if out is not None:
            part = stack.enter_context(nullcontext(out) if is_direct else atomic_write(out))
            stream = stack.enter_context(part.open("w", encoding="utf-8", newline=""))
        writer = RecordWriter(stream, format, columns, with_errors=with_errors)
        yield writer
        writer.close()
    if out is not None and not is_direct:
        sys.stderr.write(f"wrote {display_path(out)}\n")


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Lines of a table with aligned columns; the columns in `right` are right-aligned."""
    from rich.cells import cell_len

    columns = []
    for i, cells in enumerate(zip(*rows, strict=True)):
        width = max(map(cell_len, cells))
        padding = [" " * (width - cell_len(cell)) for cell in cells]
        columns.append([pad + cell if i in right else cell + pad for cell, pad in zip(cells, padding, strict=True)])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def finite(value: Any) -> Any:
    """The value with None for numbers that JSON cannot represent: NaN and infinities."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    value = json.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple) else value
    return CONTROL_CHARACTERS.sub(REPLACEMENT, value) if isinstance(value, str) else value


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
