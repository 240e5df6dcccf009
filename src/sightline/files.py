"""Atomic writes, locks on folders, bounded reads, and the names of a run's files."""

import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from . import limits
from .errors import SightlineError, SightlineWarning, check, reraise

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

CONFIG, WEIGHTS, CARD, DATA = "config.yaml", "model.safetensors", "README.md", "data.json"
LOG, EVALUATION, CHECKPOINTS, LOCK = "metrics.jsonl", "evaluation.json", "checkpoints", ".lock"
"""Files of a run."""


def warn_of_path(name: str) -> None:
    """Warn that a path has the name of a generated data set, which is used instead."""
    if Path(name).exists():
        message = f"{name} is a generated data set, and {name} in this folder is not read; for that: ./{name}"
        warnings.warn(message, SightlineWarning, stacklevel=3)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds and is removed when it fails.

    The parent folder is created. Temporary files that a killed process left of the same path are removed. Every
    `OSError` names `path`.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with named_errors(path, part):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(path)
        try:
            with part.open("wb") as lock:
                _try_lock(lock)
                yield part
                with part.open("rb") as written:
                    os.fsync(written.fileno())
                part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def digest(data: bytes) -> str:
    """SHA-256 of the data."""
    return hashlib.sha256(data).hexdigest()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_write(path) as part:
        part.write_bytes(data)


@contextmanager
def named_errors(path: Path, part: Path | None = None) -> Iterator[None]:
    """Set the file name of every `OSError` without one, or of the temporary file `part`, to `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) not in (str(path), str(part)):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def read_json(path: Path) -> Any:
    """Read a JSON file of a run."""
    check(path.is_file(), f"a run must have a file {path.name}, got none in {path.parent}")
    size, limit = path.stat().st_size, limits.MAX_RUN_FILE_BYTES
    check(size <= limit, f"{path} must be at most {limit:,} bytes, got {size:,}")
    with reraise(f"{path} must be JSON", ValueError, RecursionError):
        return json.loads(path.read_text(encoding="utf-8"))


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's log, without damaged lines, such as one that was being written in a killed process."""
    path, records = folder / LOG, []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and type(record.get("step")) is int:
                records.append(record)
    return records


def stored_fingerprint(folder: Path, *keys: str) -> Any:
    """The entry of a run's fingerprint of its data at these keys; None if there is none."""
    value = read_json(folder / DATA) if (folder / DATA).is_file() else None
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, which is created; the operating system releases it when the process dies.

    Folders that were created and are empty at the end are removed again.
    """
    check(folder.is_dir() or not folder.exists(), f"out must be a folder, got {str(folder)!r}, which is a file")
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    while True:
        file = path.open("wb")
        if not _try_lock(file):
            file.close()
            fix = "wait for it, or use another folder"
            raise SightlineError(f"out must not be in use, got {str(folder)!r}, which another process writes to; {fix}")
        if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            break
        file.close()  # the process that held the lock has removed the file since it was opened
    _held_locks.add(file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        _held_locks.discard(file)
        file.close()
        with suppress(OSError):
            for empty in created:
                empty.rmdir()


_held_locks: set[IO[Any]] = set()


def _close_locks() -> None:
    for file in _held_locks:
        file.close()


if hasattr(os, "register_at_fork"):
    # a forked data worker shares the lock, and would hold it after its parent was killed
    os.register_at_fork(after_in_child=_close_locks)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold a lock on a new file until it is removed at the end; the operating system releases it, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        _try_lock(file)
        _held_locks.add(file)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            _held_locks.discard(file)


def is_locked(path: Path) -> bool | None:
    """Whether a process holds a lock on a file; None if the file system has no locks."""
    try:
        with path.open("rb") as file:
            locked = _lock(file)
    except FileNotFoundError:
        return False
    return None if locked is None else not locked


def _try_lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock."""
    return _lock(file) is not False


def _lock(file: IO[Any]) -> bool | None:
    """Lock an open file: False if another process holds the lock, None if the file system has no locks."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:
            pass
    return None


def remove_stale_parts(path: Path) -> None:
    """Remove temporary files of `path` that no process holds a lock on."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if not re.fullmatch(r"[0-9a-f]{8}", part.name[len(path.name) + 2 : -len(".part")]):
            continue
        with suppress(OSError), part.open("rb") as file:
            if _try_lock(file):
                part.unlink(missing_ok=True)


def versions() -> str:
    """The versions of this package, torch and Python."""
    import platform
    from importlib.metadata import version

    from . import __version__

    return f"sightline {__version__}, torch {version('torch')}, Python {platform.python_version()}"


def is_finished(folder: Path) -> bool:
    """Whether training ended: the model card is written last. A copy without checkpoints counts as finished."""
    return (folder / CARD).is_file() or not (folder / CHECKPOINTS).is_dir()


def resume_command(folder: Path) -> str:
    """The command that continues the training of a run."""
    return f"sightline train {shlex.quote(str(folder))} --resume"


def warn_unfinished(folder: Path) -> None:
    """Warn if a run is not fully trained."""
    if not is_finished(folder):
        message = f"{folder} is not fully trained; finish it with: {resume_command(folder)}"
        warnings.warn(message, SightlineWarning, stacklevel=3)
