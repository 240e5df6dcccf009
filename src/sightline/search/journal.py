"""The journal: Optuna's log of a study in one file that several processes append to."""

import contextlib
from pathlib import Path
from typing import IO, Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.storages.journal._file import BaseJournalFileLock

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]


def open_journal(path: Path) -> JournalStorage:
    """The storage in a journal file, which is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_JournalLock(path)))


class _JournalLock(BaseJournalFileLock):
    """A lock that the operating system releases when its process is killed.

    Optuna's locks are files, which a killed process leaves behind. They serve file systems that have no locks.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file: IO[Any] | None = None
        self._other = JournalFileSymlinkLock(str(journal))

    def acquire(self) -> bool:
        file = self._journal.with_name(f".{self._journal.name}.lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except (OSError, AttributeError):
            file.close()
            self._other.acquire()
        else:
            self._file = file
        self._remove_partial_line()
        return True

    def release(self) -> None:
        if self._file is None:
            self._other.release()
        else:
            self._file.close()
            self._file = None

    def _remove_partial_line(self) -> None:
        """Remove the end of the journal that a killed process did not finish, so that the next line can be read."""
        with contextlib.suppress(FileNotFoundError), self._journal.open("r+b") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - 1))
            if end and file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
