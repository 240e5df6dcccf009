"""Bounded thread pools: slow work of one kind does not stop work of another kind."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from .. import limits
from . import deadlines
from .errors import BusyError
from .metrics import REFUSED, WAITING

P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """Threads for one kind of work, with a bounded number of calls that wait."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self._waiting = name, 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"sightline-{name}")

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function in a thread; `BusyError` if too many calls wait, or at the deadline of the request."""
        if self._waiting >= limits.MAX_WEB_WAITING:
            REFUSED.labels("busy").inc()
            raise BusyError(f"waiting requests must be at most {limits.MAX_WEB_WAITING}, got more; try again")
        self._waiting += 1
        WAITING.labels(self.name).inc()
        call = partial(copy_context().run, function, *args, **options)
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        future.add_done_callback(self._done)
        return await timely(future)

    def _done(self, future: "asyncio.Future[T]") -> None:
        self._waiting -= 1
        WAITING.labels(self.name).dec()
        if not future.cancelled():
            future.exception()  # a request that was given up must not leave a warning

    def close(self) -> None:
        """Finish what has begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)


async def timely(future: "asyncio.Future[T]") -> T:
    """The result of a future, or `BusyError` at the deadline of the request. What has begun in a thread ends there."""
    try:
        return await asyncio.wait_for(future, deadlines.remaining())
    except TimeoutError:
        REFUSED.labels("time").inc()
        rule = f"a request must be answered in {limits.MAX_WEB_SECONDS} seconds"
        raise BusyError(f"{rule}, got no answer; try again") from None
