"""The process that workers of a search are forked from. It imports what they need once."""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MODULES = ("sightline.search.pool", "sightline.training.loop", "torch._dynamo")
"""What every worker imports, which takes seconds. An optimizer imports the last one."""


def start_server() -> None:
    """Start the process, unless it runs, so that it imports modules while this process does something else."""
    if sys.platform != "win32":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload([*MODULES])
        with _interrupts_ignored():
            forkserver.ensure_running()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A context in which processes are started that do not stop, with a traceback, when Ctrl-C stops this one."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
