"""Downloads over HTTP: bounded, checked by size and digest, and continued after a break."""

import hashlib
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from ... import limits
from ...errors import SightlineError, check
from ...names import display_path
from ...progress import Progress
from .catalog import PublicFile

ATTEMPTS = 4
"""Connections that are tried if no bytes arrive. One that brings some is not counted."""
RETRY_SECONDS = 2.0
"""Pause before the second attempt, which doubles for each further one."""
TIMEOUT_SECONDS = 60
CHUNK_BYTES = 1 << 18
_ANOTHER_FILE = "the address has another file now; use a copy with --mirror"
_RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}


class _BrokenConnectionError(Exception):
    """A connection ended too early."""


def obtain(file: PublicFile, folder: Path, mirror: str | None = None, progress: Progress | None = None) -> Path:
    """The path of a file whose size and digest are right.

    `mirror` is a folder or an address with a file of the same name. From a folder the file is used in place. Otherwise
    it is downloaded into `folder`; what a broken download has left there is continued.
    """
    if mirror is not None and not _is_address(mirror):
        path = Path(mirror).expanduser() / file.name
        check(path.is_file(), f"mirror must be a folder with a file {file.name}, got {display_path(mirror)!r}")
        _check_content(path, file, display_path(path), fix="download it again")
        return path
    address = file.address if mirror is None else f"{mirror.rstrip('/')}/{file.name}"
    path, part = folder / file.name, folder / f"{file.name}.part"
    if file.digest is None:
        part.unlink(missing_ok=True)  # the file may have changed since
    elif path.is_file():
        return path
    was_resumed = part.exists()
    _receive_all(address, part, file, progress)
    try:
        _check_content(part, file, address, fix=_ANOTHER_FILE)
    except SightlineError:
        part.unlink()
        if not was_resumed:
            raise
        return obtain(file, folder, mirror, progress)  # the part may have been of another file
    part.replace(path)
    return path


def _is_address(mirror: str) -> bool:
    return urlsplit(mirror).scheme in ("http", "https")


def _receive_all(address: str, part: Path, file: PublicFile, progress: Progress | None) -> None:
    """Continue the download until it is complete, over as many connections as it takes."""
    attempts = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _receive(address, part, file, progress)
            return
        except (_BrokenConnectionError, HTTPException, OSError) as error:
            if isinstance(error, OSError) and error.filename is not None and not isinstance(error, HTTPError):
                raise  # of the disk
            if isinstance(error, HTTPError) and error.code == 416 and before:
                return  # nothing is left to send; the digest tells whether the part is complete
            if isinstance(error, HTTPError) and error.code not in _RETRIED_STATUS:
                message = f"{address} must be a file, got HTTP status {error.code} {error.reason}"
                raise SightlineError(f"{message}; use a copy with --mirror") from error
            arrived = (part.stat().st_size if part.exists() else 0) > before
            attempts = 0 if arrived else attempts + 1
            if attempts == ATTEMPTS:
                reason = getattr(error, "reason", None) or error
                message = f"{address} must be reachable, got an error: {reason!s:.200}"
                raise SightlineError(
                    f"{message}; run the command again to continue, or use a copy with --mirror"
                ) from error
            time.sleep(0 if arrived else RETRY_SECONDS * 2 ** (attempts - 1))


def _receive(address: str, part: Path, file: PublicFile, progress: Progress | None) -> None:
    """Append to a part of a file what is missing, over one connection."""
    start = part.stat().st_size if part.exists() else 0
    if file.size is not None and start >= file.size:
        return
    with _open(address, start) as response:
        if response.status != 206:
            start = 0  # the server sends the file from its beginning
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            part.unlink(missing_ok=True)
            raise _BrokenConnectionError("the server continued at another place")
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else file.size
        if total is not None:
            _check_size(address, total, file, part, is_complete=True)
        with part.open("ab" if start else "wb") as target:
            done = start
            while chunk := response.read(CHUNK_BYTES):
                done += len(chunk)
                _check_size(address, done, file, part)
                target.write(chunk)
                if progress is not None and total:
                    progress(done, total)
    if total is not None and done < total:
        raise _BrokenConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _check_size(address: str, size: int, file: PublicFile, part: Path, *, is_complete: bool = False) -> None:
    """The size of the file, or of what has arrived of it."""
    maximum = limits.MAX_DOWNLOAD_BYTES if file.size is None else file.size
    if size > maximum or (is_complete and file.size not in (None, size)):
        part.unlink(missing_ok=True)
        rule = f"{address} must have {'at most ' if file.size is None else ''}{maximum:,} bytes"
        raise SightlineError(f"{rule}, got {size:,}{'' if is_complete else ' or more'}; {_ANOTHER_FILE}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP addresses only, and never from HTTPS to HTTP."""

    def redirect_request(self, request: Any, file: Any, code: int, message: str, headers: Any, address: str) -> Any:
        old, new = urlsplit(request.full_url).scheme, urlsplit(address).scheme
        if new != "https" and (new != "http" or old == "https"):
            raise SightlineError(f"{request.full_url} must redirect to an HTTPS address, got {address!r:.200}")
        return super().redirect_request(request, file, code, message, headers, address)


@contextmanager
def _open(address: str, start: int) -> Iterator[Any]:
    """A response that starts at this byte, if the server can."""
    headers = {"User-Agent": "sightline", "Accept-Encoding": "identity"} | (
        {"Range": f"bytes={start}-"} if start else {}
    )
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_SECONDS) as response:
        yield response


def _check_content(path: Path, file: PublicFile, name: str, *, fix: str) -> None:
    size = path.stat().st_size
    check(file.size in (None, size), f"{name} must have {file.size or 0:,} bytes, got {size:,}; {fix}")
    if file.digest is None:
        return
    algorithm, _, expected = file.digest.partition(":")
    with path.open("rb") as content:
        actual = hashlib.file_digest(content, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    check(actual == expected, f"{name} must have the {algorithm} digest {expected}, got {actual}; {fix}")
