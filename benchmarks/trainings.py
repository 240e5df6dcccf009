"""Trainings beside each other on one device, each in a process of its own, within limits of time.

A finished run is not trained again. One that was stopped or killed continues from its last checkpoint.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sightline.files import CARD, CONFIG, EVALUATION

SECONDS_TO_STOP = 20.0
"""Time to save a checkpoint after a limit, before a process is killed."""
ERROR_CHARS = 500


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `Trainings`."""
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time (default: 1)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop all trainings after this time")
    parser.add_argument("--run-seconds", type=float, default=math.inf, help="stop each training after this time")


def is_trained(run: Path) -> bool:
    """Whether a run is finished: its model card is written last."""
    return (run / CARD).is_file()


class Trainings:
    """Trains runs, `parallel` at a time. The output of each is in a text file beside its folder."""

    def __init__(self, parallel: int = 1, seconds: float = math.inf, run_seconds: float = math.inf):
        """seconds: for all runs, from now on; run_seconds: for each run. What is over is stopped, with a checkpoint."""
        self.end, self.run_seconds = time.monotonic() + seconds, run_seconds
        self.executor = ThreadPoolExecutor(max(1, parallel))

    def add(self, config: Path, changes: Sequence[str], run: Path, *, evaluate: bool = False) -> Future[bool]:
        """Train a run when it is its turn, and evaluate it if desired; the result says whether that is done."""
        return self.executor.submit(self._train, config, changes, run, evaluate)

    def _train(self, config: Path, changes: Sequence[str], run: Path, evaluate: bool) -> bool:
        start = time.monotonic()
        end = min(self.end, start + self.run_seconds)
        resume = ["--resume"] if (run / CONFIG).is_file() else []
        train = ["train", str(config), *changes, f"out={run}", *resume]
        if not is_trained(run) and not self._call(train, run, end):
            return False
        is_evaluated = not evaluate or (run / EVALUATION).is_file()
        if not is_evaluated and not self._call(["evaluate", str(run)], run, end):
            return False
        _report(f"{run}: finished after {time.monotonic() - start:.0f} s")
        return True

    def _call(self, arguments: Sequence[str], run: Path, end: float) -> bool:
        """Call `sightline` and stop it at a time; returns whether it has succeeded."""
        if time.monotonic() >= end:
            _report(f"{run}: no time left to {arguments[0]} it")
            return False
        run.parent.mkdir(parents=True, exist_ok=True)
        log = run.with_name(f"{run.name}.txt")
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(sightline_command(arguments), stdout=file, stderr=subprocess.STDOUT)
            try:
                code = process.wait(None if math.isinf(end) else max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                _stop(process)
                _report(f"{run}: stopped at its limit of time; see {log}")
                return False
        if code:
            _report(f"{run}: {arguments[0]} failed: {log.read_text(encoding='utf-8').strip()[-ERROR_CHARS:]}")
        return code == 0


def sightline_command(arguments: Sequence[str]) -> list[str]:
    """The command line of `sightline` with these arguments, in this Python."""
    return [sys.executable, "-m", "sightline", *arguments]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
