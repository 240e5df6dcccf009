"""Which workers are alive, so that the trials of dead ones are run again.

A worker holds a lock on a file, which the operating system releases when the worker dies. Other machines may not see
the lock; they look at the time at which the worker last touched the file, or at Optuna's heartbeat in a database.
"""

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from optuna.storages._heartbeat import is_heartbeat_enabled

from .. import files

HEARTBEAT_SECONDS, GRACE_SECONDS = 30, 150
"""Time between two heartbeats, and the time after the last one from which on a worker of another machine is dead."""
WORKERS = "workers"


def machine() -> str:
    """An identifier of this machine since it was started."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname()


def new_name() -> str:
    """A name for a worker of this machine."""
    return f"{_prefix()}{secrets.token_hex(6)}"


def _prefix() -> str:
    return f"{files.digest(machine().encode())[:8]}-"


@contextmanager
def living_pool(folder: Path) -> Iterator[str]:
    """A context in which a pool of workers is alive; yields its name."""
    name = new_name()
    try:
        with files.locked_file(folder / WORKERS / name):
            yield name
    finally:
        with suppress(OSError):
            (folder / WORKERS).rmdir()


class Worker:
    """This process as a worker: a context that shows other processes that it is alive."""

    def __init__(self, folder: Path, storage: Any, pool: str = ""):
        """`folder` is that of the journal, or of the search if its trials are in a database; `pool` is the name of the
        pool that started the worker."""
        self.name, self.pool = new_name(), pool
        self.machine = machine()
        self.trial_id: int | None = None
        """The running trial in the storage."""
        self._folder, self._storage = folder / WORKERS, storage
        self.has_heartbeat: bool = is_heartbeat_enabled(storage)
        """Whether the storage is a database."""
        self._path = self._folder / self.name
        self._stack, self._stop = ExitStack(), threading.Event()

    def __enter__(self) -> Self:
        self._stack.callback(self._remove_folder)
        self._stack.enter_context(files.locked_file(self._path))
        thread = threading.Thread(target=self._beat_forever, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._stop.set)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def id(self) -> dict[str, str]:
        """What a trial stores of its worker."""
        return {"name": self.name, "machine": self.machine, "pool": self.pool}

    def beat(self) -> None:
        """Show that this worker is alive."""
        with suppress(OSError):
            os.utime(self._path)
        if self.has_heartbeat and self.trial_id is not None:
            self._storage.record_heartbeat(self.trial_id)

    def was_killed(self, other: dict[str, str]) -> bool:
        """Whether a dead worker died alone, and not its whole pool."""
        return bool(other["pool"]) and not self.is_dead({**other, "name": other["pool"]})

    def is_dead(self, other: dict[str, str]) -> bool:
        """Whether another worker is dead; False if only a database can tell."""
        path = self._folder / other["name"]
        if other["machine"] == self.machine and (path.exists() or not self.has_heartbeat):
            locked = files.is_locked(path)
            if locked is not None:
                return not locked
        if self.has_heartbeat:
            return False
        with suppress(OSError):
            self.beat()
            return self._path.stat().st_mtime - path.stat().st_mtime > GRACE_SECONDS
        return not path.exists()

    def _beat_forever(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(Exception):  # a database that does not answer now may answer later
                self.beat()

    def _remove_folder(self) -> None:
        """Remove the files of dead workers of this machine, and the folder if it is empty."""
        with suppress(OSError):
            for path in self._folder.glob(f"{_prefix()}*"):
                if files.is_locked(path) is False:
                    path.unlink(missing_ok=True)
            self._folder.rmdir()
