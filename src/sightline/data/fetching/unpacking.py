"""Files of tar archives, read in order and within limits. Nothing is written to a path that an archive names."""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from ... import limits
from ...errors import SightlineError, check, reraise
from ...names import display_path, printable
from ...progress import Progress

_EXTENDED_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_ERRORS = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, OSError)


class _TarInfo(tarfile.TarInfo):
    """Refuses extended headers that would take much memory before they are read."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in (*_EXTENDED_HEADERS, b"X") and info.size > limits.MAX_TAR_HEADER_BYTES:
            raise SightlineError(f"a header must have at most {limits.MAX_TAR_HEADER_BYTES:,} bytes, got {info.size:,}")
        return info


@dataclass(frozen=True)
class TarEntry:
    """A file of a tar archive, which is read before the next one."""

    name: str
    size: int
    archive: str
    content: IO[bytes]

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`."""
        with reraise(f"{printable(self.name)} in {self.archive} must be complete", *_ERRORS, fix="download it again"):
            return self.content.read(size)

    def copy_to(self, target: Path) -> None:
        """Write the content to a file."""
        with target.open("wb") as file:
            while chunk := self.read(1 << 20):
                file.write(chunk)


def tar_files(path: Path, progress: Progress | None = None) -> Iterator[TarEntry]:
    """Each file of a gzip-compressed tar archive, in its order.

    Links, devices, sparse files and names outside the archive are refused, and so are too many or too large files.
    """
    name, total, count = display_path(path), 0, 0
    size = path.stat().st_size
    with (
        reraise(f"{name} must be a complete tar.gz archive", *_ERRORS, SightlineError, fix="download it again"),
        path.open("rb") as compressed,
        tarfile.open(fileobj=compressed, mode="r|gz", tarinfo=_TarInfo, bufsize=1 << 20) as archive,
    ):
        for entry in archive:
            parts = entry.name.split("/")
            is_inside = (
                entry.name and not entry.name.startswith("/") and not {"..", ""} & {*parts[:-1], parts[-1] or "."}
            )
            check(is_inside and "\\" not in entry.name, f"entries must be relative paths, got {entry.name!r:.200}")
            count += 1
            check(count <= limits.MAX_ARCHIVE_ENTRIES, f"it must have at most {limits.MAX_ARCHIVE_ENTRIES:,} entries")
            if entry.isdir():
                continue
            is_file = entry.isreg() and not entry.issparse()
            check(is_file, f"entries must be files and folders, got another kind: {printable(entry.name):.200}")
            total += entry.size
            maximum = limits.MAX_UNPACKED_BYTES
            check(total <= maximum, f"it must unpack to at most {maximum:,} bytes, got more")
            content = archive.extractfile(entry)
            if content is not None:
                yield TarEntry(entry.name, entry.size, name, content)
            if progress is not None:
                progress(min(compressed.tell(), size), size)
