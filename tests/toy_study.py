"""A study whose trials take no time, and processes that work on it and are killed."""

import functools
import os
import random
import signal
import sys
from pathlib import Path

from optuna.trial import TrialState

from processes import FORKSERVER, TIMEOUT
from sightline.search.liveness import Worker
from sightline.search.study import INDEX, Outcome, Study, make_pruner, make_sampler, work

NAME = "search"
DONE = "done.txt"
"""File with a line for each trial that ran to its end: the index and the parameter."""


def create(folder: Path, url: str = "") -> Study:
    return Study(url, NAME, folder, ["maximize"])


def claimer(study: Study, worker: Worker, total: int, sampler: str = "random"):
    return functools.partial(
        study.claim, worker, total, lambda index: make_sampler(sampler, 0, index), make_pruner("none")
    )


def run_trials(folder: Path, total: int, url: str = "", run=None, on_finish=lambda: None) -> float:
    """Run the trials that are left in this process."""
    with Study(url, NAME, folder) as study, Worker(folder, study.storage) as worker:
        return work(
            study, worker, claimer(study, worker, total), run or functools.partial(toy_trial, folder), on_finish
        )


def toy_trial(folder: Path, claim) -> Outcome:
    x = claim.trial.suggest_float("x", 0, 1)
    with (folder / DONE).open("a") as file:
        file.write(f"{claim.index} {x}\n")
    return Outcome("complete", [x], {"seconds": 0.0})


def start(folder: Path, total: int, url: str = "", prepare=None):
    """A process that runs the trials that are left; `prepare` is called in it first."""
    process = FORKSERVER.Process(target=_start, args=(folder, total, url, prepare))
    process.start()
    return process


def _start(folder, total, url, prepare):
    if prepare is not None:
        prepare()
    run_trials(folder, total, url)


def values(study: Study) -> dict[int, float]:
    """The value of each index that is complete; no index has two complete trials."""
    complete = [trial for trial in study._attempts() if trial.state == TrialState.COMPLETE]
    result = {trial.user_attrs[INDEX]: trial.value for trial in complete}
    assert len(complete) == len(result)
    return result


def wait_in_first_trial(barrier) -> None:
    """Wait in the first trial of this process until the others are in theirs."""
    global toy_trial
    trial, is_first = toy_trial, True

    def waiting(*arguments):
        nonlocal is_first
        if is_first:
            is_first = False
            barrier.wait(TIMEOUT)
        return trial(*arguments)

    toy_trial = waiting


def kill_in_third_trial() -> None:
    """Kill this process in its third trial."""
    global toy_trial
    trial, calls = toy_trial, 0

    def killing(*arguments):
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return trial(*arguments)

    toy_trial = killing


def kill_after_writes(count: int, seed: int) -> None:
    """Kill this process at a random call of a function after it wrote to the journal `count` times.

    Unlike a time, a number of calls does not depend on how busy the machine is.
    """
    fsync, calls, left = os.fsync, 0, random.Random(seed).randrange(2000)

    def counted(file):
        nonlocal calls
        calls += 1
        if calls == count:
            sys.setprofile(count_down)
        fsync(file)

    def count_down(*_):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = counted
