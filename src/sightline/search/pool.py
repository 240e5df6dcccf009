"""Worker processes of a search. One that is killed is replaced, and its trial is run again."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..errors import SightlineError, check
from .liveness import living_pool
from .plan import Plan
from .study import Study
from .worker import run_worker

SECONDS_BETWEEN_UPDATES = 0.5
MAX_DEATHS = 3
"""The search stops if each worker dies so often before a trial ends."""


@dataclass
class WorkerPool:
    """The worker processes of a plan on this machine."""

    plan: Plan
    size: int
    study: Study
    deadline: float
    """The `time.time()` after which no trial is started."""
    seconds: float = 0.0
    """Time of the workers that have ended."""
    seconds_in_trials: float = 0.0

    def run(self, update: Callable[[], int]) -> None:
        """Run all trials. `update` is called regularly and returns the number of trials that have ended."""
        context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        with living_pool(self.study.folder) as name:
            start = partial(_Process, context, self.plan, name, self.size, self.deadline)
            processes = [start(number) for number in range(self.size)]
            try:
                self._run(processes, start, update)
            finally:
                for worker in processes:
                    worker.process.terminate()
                for worker in processes:
                    worker.process.join()

    def _run(self, processes: "list[_Process]", start: "Callable[[int], _Process]", update: Callable[[], int]) -> None:
        """Replace processes that are killed until all have ended."""
        deaths, ended_before = 0, update()
        while processes:
            wait([worker.process.sentinel for worker in processes], timeout=SECONDS_BETWEEN_UPDATES)
            ended = update()
            for worker in [worker for worker in processes if not worker.process.is_alive()]:
                processes.remove(worker)
                if not self._finish(worker):
                    deaths, ended_before = deaths + 1 if ended == ended_before else 1, ended
                    rule = "workers must not die before a trial ends"
                    check(deaths < MAX_DEATHS * self.size, f"{rule}, got {deaths} that did; {worker.cause}")
                    processes.append(start(worker.number))

    def _finish(self, worker: "_Process") -> bool:
        """Count the time of a process that has ended; False if it was killed."""
        self.seconds += time.monotonic() - worker.started
        message = worker.receive()
        if isinstance(message, Exception):
            raise message
        self.seconds_in_trials += message or 0.0
        return message is not None


class _Process:
    """A process that runs `run_worker`."""

    def __init__(self, context: Any, plan: Plan, pool: str, workers: int, deadline: float, number: int):
        self.number, self.started = number, time.monotonic()
        self._receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=worker_process, args=(plan, pool, workers, deadline, number, sender))
        self.process.start()
        sender.close()

    def receive(self) -> Any:
        """What the process sent before it ended; None if it was killed."""
        with self._receiver:
            try:
                return self._receiver.recv()
            except EOFError:
                return None

    @property
    def cause(self) -> str:
        """How the process ended."""
        code = self.process.exitcode
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def worker_process(plan: Plan, pool: str, workers: int, deadline: float, number: int, connection: Connection) -> None:
    """The main function of a worker process: sends the seconds in trials, or an error."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by the process that this one was forked from
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    count = torch.cuda.device_count()
    device = f"cuda:{number % count}" if count > 1 and plan.config.training.device in ("auto", "cuda") else None
    try:
        connection.send(run_worker(plan, pool=pool, device=device, deadline=deadline))
    except (SightlineError, OSError) as error:
        connection.send(error)
    except KeyboardInterrupt as stop:
        sys.exit(getattr(stop, "exit_code", 130))


def _stop_with_parent() -> None:
    """Stop this process, as SIGTERM does, when the process that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
