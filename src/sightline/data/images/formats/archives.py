"""Zip files from elsewhere: checked before any of it is read, and never unpacked onto the disk."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ....errors import SightlineError
from ..reading import MOST_BYTES
from .npz import BROKEN, check_packed

MOST_ENTRIES: Final = 1_000_000
"""No zip file holds more entries than this."""
MOST_TOTAL: Final = 1 << 34
"""No zip file holds more bytes than this, all of it unpacked."""


class Archive:
    """The files of a zip by their names; what is hidden is passed over."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        entries = archive.infolist()
        if len(entries) > MOST_ENTRIES:
            raise SightlineError(f"{path} must hold at most {MOST_ENTRIES:,} entries, got {len(entries):,}")
        self._files: dict[str, zipfile.ZipInfo] = {}
        for entry in entries:
            parts = _checked(path, entry)
            if entry.is_dir() or any(part.startswith((".", "__")) for part in parts):
                continue
            if entry.filename in self._files:
                raise SightlineError(f"{path} must hold each file once, got {entry.filename!r} twice; pack it again")
            self._files[entry.filename] = entry
        total = sum(entry.file_size for entry in self._files.values())
        if total > MOST_TOTAL:
            raise SightlineError(f"{path} must unpack to at most {MOST_TOTAL:,} bytes, got {total:,}")

    @property
    def files(self) -> list[str]:
        """The names, in order."""
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        """One file, never more of it than the archive says and no more than a picture may have."""
        entry = self._files[name]
        try:
            with self._archive.open(entry) as file:
                return file.read(entry.file_size)  # without a number all would be unpacked before it is cut
        except BROKEN as error:
            raise SightlineError(
                f"{name} in {self.path} must be whole, got an error: {error}; pack it again"
            ) from error


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """A zip file to read from."""
    try:
        archive = zipfile.ZipFile(path)
    except (*BROKEN, ValueError) as error:
        raise SightlineError(f"{path} must be a whole zip file, got an error: {error}; pack it again") from error
    with archive:
        yield Archive(path, archive)


def _checked(path: Path, entry: zipfile.ZipInfo) -> list[str]:
    """The parts of an entry's name, if it stays where it belongs and is not too large."""
    name = entry.filename
    parts = name.rstrip("/").split("/")
    if "\\" in entry.orig_filename or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise SightlineError(f"names in {path} must be plain paths below it, got {name!r:.200}; pack it again")
    if entry.file_size > MOST_BYTES:
        raise SightlineError(f"{name} in {path} must be at most {MOST_BYTES:,} bytes, got {entry.file_size:,}")
    check_packed(f"{name} in {path}", entry)
    return parts
