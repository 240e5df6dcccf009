"""A worker: runs trials of a search in this process until none is left."""

import math
import time
from collections.abc import Callable
from functools import partial

from .. import seeds
from ..errors import check
from .liveness import Worker
from .plan import Plan
from .results import Results
from .space import Settings, stored
from .study import Study, make_pruner, make_sampler, work
from .trial import TrialRunner

MAX_FIRST_FAILURES = 5
"""A search stops if so many trials failed and no other has ended."""


def run_worker(
    plan: Plan,
    *,
    pool: str = "",
    device: str | None = None,
    deadline: float = math.inf,
    on_change: Callable[[], object] = lambda: None,
) -> float:
    """Run trials; return the seconds in trials.

    `pool` is the name of the pool of this process. No trial is started after `deadline`, a `time.time()`. `on_change`
    is called after every evaluation and every trial.
    """
    runner, sampler, pruner = TrialRunner(plan, device, on_change), plan.sampler, make_pruner(plan.pruner)
    with plan.open_study() as study, Worker(study.folder, study.storage, pool) as worker:
        if not study.trials():
            runner.check_space()
        samplers, grid = partial(make_sampler, sampler, plan.seed), shuffled_grid(plan)
        claim = partial(study.claim, worker, plan.trials, samplers, pruner, grid)

        def on_finish() -> None:
            on_change()
            check_failures(study)

        return work(study, worker, lambda: None if time.time() > deadline else claim(), runner, on_finish)


def shuffled_grid(plan: Plan) -> list[Settings]:
    """The combinations of a grid in random order, so that the first ones represent all; empty for other samplers."""
    if plan.sampler != "grid":
        return []
    grid = plan.space.grid()
    order = seeds.make_generator(plan.seed, seeds.SEARCH).permutation(len(grid))
    return [{key: stored(value) for key, value in grid[i].items()} for i in order]


def check_failures(study: Study) -> None:
    """Stop a search if its first trials all failed."""
    ended = [trial for trial in Results.of(study).trials if trial["state"] != "running"]
    if len(ended) >= MAX_FIRST_FAILURES:
        reason = f"{len(ended)} that failed; trial {ended[0]['trial']}: {ended[0]['message']}"
        check({trial["state"] for trial in ended} != {"failed"}, f"some trials must succeed, got {reason}")
