"""Worker processes of a search. One that is killed is replaced, and its trial is run again."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..errors import SightlineError, check
from .liveness import new_name
from .plan import Plan
from .study import Study
from .worker import run_worker

SECONDS_BETWEEN_UPDATES = 0.5
MAX_DEATHS = 3
"""The search stops if so many workers die without a trial that ends between them."""


@dataclass
class WorkerPool:
    """The worker processes of a plan on this machine."""

    plan: Plan
    size: int
    study: Study
    seconds: float = 0.0
    """Time of the workers that have ended."""
    seconds_in_trials: float = 0.0
    _processes: "list[_Process]" = field(default_factory=list)

    def run(self, update: Callable[[], int]) -> None:
        """Run all trials. `update` is called regularly and returns the number of trials that have ended."""
        context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload([__name__])  # its import takes seconds; workers are forked in milliseconds
        self._processes = [_Process(context, self.plan, number, self.size) for number in range(self.size)]
        deaths, ended_before = 0, update()
        try:
            while self._processes:
                wait([worker.process.sentinel for worker in self._processes], timeout=SECONDS_BETWEEN_UPDATES)
                ended = update()
                for worker in [worker for worker in self._processes if not worker.process.is_alive()]:
                    self._processes.remove(worker)
                    if not self._finish(worker):
                        deaths, ended_before = deaths + 1 if ended == ended_before else 1, ended
                        check(deaths < MAX_DEATHS, f"workers must not die, got {deaths} that were {worker.cause}")
                        self._processes.append(_Process(context, self.plan, worker.number, self.size))
        finally:
            for worker in self._processes:
                worker.process.terminate()
            for worker in self._processes:
                worker.process.join()

    def _finish(self, worker: "_Process") -> bool:
        """Count the time of a process that has ended; False if it was killed."""
        self.seconds += time.monotonic() - worker.started
        message = worker.receive()
        if isinstance(message, Exception):
            raise message
        if message is None:
            self.study.lose_killed(worker.name, worker.cause)
            return False
        self.seconds_in_trials += message
        return True


class _Process:
    """A process that runs `run_worker`."""

    def __init__(self, context: Any, plan: Plan, number: int, workers: int):
        self.number, self.name, self.started = number, new_name(), time.monotonic()
        self._receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=worker_process, args=(plan, self.name, number, workers, sender))
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


def worker_process(plan: Plan, name: str, number: int, workers: int, connection: Connection) -> None:
    """The main function of a worker process: sends the seconds in trials, or an error."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    count = torch.cuda.device_count()
    device = f"cuda:{number % count}" if count > 1 and plan.config.training.device in ("auto", "cuda") else None
    try:
        connection.send(run_worker(plan, name=name, device=device))
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
