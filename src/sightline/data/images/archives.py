"""Zip files: validated before anything is read, and never extracted to disk."""

import os
import stat
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path

from ... import limits
from ...errors import SightlineError, check, reraise
from ...names import display_path, printable
from .paths import is_hidden

READ_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""Errors of `zipfile` for damaged files."""
_COMPRESSION_TYPES = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile decompresses other types all at once


class Archive:
    """Files of a zip file. Hidden files are skipped. Reading is thread-safe."""

    def __init__(self, path: Path) -> None:
        self.name = display_path(path)
        with reraise(f"{self.name} must be a complete zip file", *READ_ERRORS, ValueError):
            self._zip = zipfile.ZipFile(path)
        self._entries = self._validated_entries()
        self.files = sorted(self._entries)
        """Paths of all files, sorted."""

    def read(self, file: str) -> bytes:
        """Bytes of one file, at most as many as its entry declares."""
        entry = self._entries[file]
        rule = f"{printable(file)} in {self.name} must be intact"
        with reraise(rule, *READ_ERRORS, fix="create the zip file again"), self._zip.open(entry) as stream:
            return stream.read(entry.file_size)  # without a size, zipfile decompresses everything first

    def _validated_entries(self) -> dict[str, zipfile.ZipInfo]:
        entries = self._zip.infolist()
        count, maximum = len(entries), limits.MAX_ARCHIVE_ENTRIES
        check(count <= maximum, f"{self.name} must have at most {maximum:,} entries, got {count:,}")
        files: dict[str, zipfile.ZipInfo] = {}
        for entry in entries:
            names = entry.filename.rstrip("/").split("/")
            if "\\" in entry.orig_filename or ":" in names[0] or any(name in ("", ".", "..") for name in names):
                raise SightlineError(f"entries of {self.name} must be relative paths, got {entry.filename!r:.200}")
            where = f"{printable(entry.filename)} in {self.name}"
            size, maximum = entry.file_size, limits.MAX_IMAGE_BYTES
            check(size <= maximum, f"{where} must be at most {maximum:,} bytes, got {size:,}")
            check_compression(where, entry)
            check(not stat.S_ISLNK(entry.external_attr >> 16), f"{where} must be a file or folder, got a link")
            if entry.is_dir() or any(map(is_hidden, names)):
                continue
            check(entry.filename not in files, f"{self.name} must have each file once, got {entry.filename!r} twice")
            files[entry.filename] = entry
        total, maximum = sum(entry.file_size for entry in files.values()), limits.MAX_ARCHIVE_BYTES
        check(total <= maximum, f"{self.name} must decompress to at most {maximum:,} bytes, got {total:,}")
        return files


def open_archive(path: Path) -> Archive:
    """The archive at a path. Threads share one; each process opens its own."""
    return _open_archive(path, os.getpid(), path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=4)
def _open_archive(path: Path, process_id: int, modified: int) -> Archive:
    return Archive(path)


def check_compression(where: str, entry: zipfile.ZipInfo) -> None:
    """An entry must be stored or deflated, which can be decompressed in pieces."""
    kind = entry.compress_type
    check(kind in _COMPRESSION_TYPES, f"{where} must be stored or deflated, got compression type {kind}")
