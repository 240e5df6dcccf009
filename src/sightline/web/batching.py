"""Batching: requests that arrive while a batch runs are the next batch."""

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .. import limits
from .errors import BusyError
from .lanes import timely
from .metrics import BATCH_SIZE, REFUSED, WAITING


@dataclass(eq=False)
class _Job:
    key: Hashable
    item: Any
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"

    def finish(self, result: Any) -> None:
        """Set the result, or the error, in the event loop of the request."""
        with suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(self._set, result)

    def _set(self, result: Any) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class Batcher:
    """Runs items of the same key together.

    `run(key, items)` returns a result for each item, in one of the threads. No request waits for others to come: a
    batch is what has arrived while all threads were busy.
    """

    def __init__(
        self, name: str, run: Callable[[Any, list[Any]], Sequence[Any]], max_batch: int = 32, threads: int = 1
    ) -> None:
        self.name, self._run, self.max_batch = name, run, max_batch
        self._jobs: list[_Job] = []
        self._changed, self._closed = threading.Condition(), False
        options: dict[str, Any] = {"target": self._work, "name": f"sightline-{name}", "daemon": True}
        self._threads = [threading.Thread(**options) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    async def submit(self, key: Hashable, item: Any) -> Any:
        """The result for an item; `BusyError` if too many wait, or at the deadline of the request."""
        loop = asyncio.get_running_loop()
        job = _Job(key, item, loop, loop.create_future())
        with self._changed:
            is_full = len(self._jobs) >= limits.MAX_WEB_WAITING
            if not is_full and not self._closed:
                self._jobs.append(job)
                self._changed.notify()
        if self._closed or is_full:
            REFUSED.labels("busy").inc()
            raise BusyError(f"waiting requests must be at most {limits.MAX_WEB_WAITING}, got more; try again")
        WAITING.labels(self.name).inc()
        try:
            return await timely(job.future)
        finally:
            WAITING.labels(self.name).dec()

    def close(self) -> None:
        """Finish all that waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while batch := self._next():
            BATCH_SIZE.labels(self.name).observe(len(batch))
            for job, result in zip(batch, self._results(batch), strict=True):
                job.finish(result)

    def _next(self) -> list[_Job]:
        """The oldest job and those of the same key; waits for one. Empty when closed."""
        with self._changed:
            while True:
                self._jobs = [job for job in self._jobs if not job.future.done()]  # without those that were given up
                if self._jobs:
                    key = self._jobs[0].key
                    batch = [job for job in self._jobs if job.key == key][: self.max_batch]
                    taken = set(map(id, batch))
                    self._jobs = [job for job in self._jobs if id(job) not in taken]
                    return batch
                if self._closed:
                    return []
                self._changed.wait()

    def _results(self, batch: list[_Job]) -> Sequence[Any]:
        """A result or an error for each job. If a batch fails, its items run alone, so that one costs no other."""
        try:
            return self._run(batch[0].key, [job.item for job in batch])
        except Exception as error:
            if len(batch) == 1:
                return [error]
            return [result for job in batch for result in self._results([job])]
