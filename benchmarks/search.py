"""Searches on a CPU: samplers at the same budget, time outside trials, and kills at random moments.

    python -m benchmarks.search samplers     # random search against TPE with halving, as a table and a figure
    python -m benchmarks.search overhead     # the time that a search with two workers spends outside trials
    python -m benchmarks.search kills        # kill -9 of a search at 30 random moments

All train an image classifier on the embedded glyphs. `samplers` gives each search the same CPU time in one thread, so
that the result does not depend on what else the machine does; finished searches are reused. `--tiny` only shows that
everything runs.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from sightline.files import write_bytes
from sightline.run_config import read_values
from sightline.search import Results, read_space
from sightline.search.plan import Plan
from sightline.search.study import Study
from sightline.search.worker import run_worker
from sightline.view import figures

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "search-samplers.json"
FIGURE = ROOT / "docs" / "images" / "search-samplers.png"
SPACE = {
    "model.patch_size": [7, 14],
    "model.embed_dim": [16, 32, 64],
    "model.num_heads": [1, 2, 4, 8],
    "model.depth": {"min": 1, "max": 4},
    "model.mlp_ratio": [1.0, 2.0, 4.0],
    "model.dropout": {"min": 0.0, "max": 0.3},
    "model.attention_bias": [False, True],
    "training.learning_rate": {"min": 3e-4, "max": 3e-2, "log": True},
}
"""The space image_classification with smaller models, which train in seconds on one core."""
TRIAL = ["training.batch_size=32", "training.warmup_steps=9", "training.device=cpu", "training.log_every=90"]
METHODS = {"random search": ("random", "none"), "TPE with halving": ("tpe", "halving")}
SEEDS = range(5)
MAX_TRIALS = 2000
MAX_LINES = 60
"""Lines that a search may write to its journal before kill -9; a trial has about 14."""
MAX_DELAY = 2
"""Seconds between the last of these lines and kill -9."""
POINTS = 200
"""Times at which searches are compared."""


class BudgetSpentError(BaseException):
    """The CPU time of a search is spent."""


def search_for(method: str, seed: int, seconds: float, steps: int, folder: Path) -> dict[str, Any]:
    """Search until the CPU time of this process has risen by `seconds`; the time and the best accuracy when it rose."""
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    sampler, pruner = METHODS[method]
    changes = [*TRIAL, f"seed={seed}", f"training.steps={steps}", f"training.evaluate_every={max(1, steps // 9)}"]
    values, _ = read_values(None, changes)
    options: dict[str, Any] = {"sampler": sampler, "pruner": pruner, "seed": seed, "trials": MAX_TRIALS}
    plan = Plan(values=values, space=read_space(SPACE, values), name="search", folder=folder, **options)
    curve: list[tuple[float, float]] = []
    with plan.open_study(create=True) as study:
        started = time.process_time()

        def on_change() -> None:
            spent = time.process_time() - started
            if spent > seconds:
                raise BudgetSpentError
            best = Results.of(study).best
            if best is not None and (not curve or best["values"]["accuracy"] > curve[-1][1]):
                curve.append((round(spent, 2), best["values"]["accuracy"]))

        try:
            run_worker(plan, on_change=on_change)
        except BudgetSpentError:
            results = Results.of(study)
    shutil.rmtree(folder, ignore_errors=True)
    return {"method": method, "seed": seed, "curve": curve, "trials": results.finished, "states": results.counts}


def samplers(options: argparse.Namespace) -> None:
    """Compare the methods, print a table and draw the figure."""
    seconds, steps = (6.0, 3) if options.tiny else (options.seconds, options.steps)
    record = json.loads(options.record.read_text()) if options.record.is_file() else {}
    if (record.get("seconds"), record.get("steps")) != (seconds, steps):
        record = {"seconds": seconds, "steps": steps, "searches": []}
    done = {(search["method"], search["seed"]) for search in record["searches"]}
    left = [(method, seed) for seed in SEEDS[: 1 if options.tiny else None] for method in METHODS]
    left = [pair for pair in left if pair not in done]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        folders = [options.folder / f"{METHODS[method][0]}-{seed}" for method, seed in left]
        pending = [
            pool.submit(search_for, *pair, seconds, steps, folder) for pair, folder in zip(left, folders, strict=True)
        ]
        for future in pending:
            record["searches"].append(future.result())
            write_bytes(options.record, json.dumps(record, indent=1).encode())
            print(describe(record["searches"][-1]), flush=True)
    print(table(record))
    print(f"wrote {figures.save(draw(record), options.figure)}")


def describe(search: dict[str, Any]) -> str:
    """One search on one line."""
    states = ", ".join(f"{count} {state}" for state, count in search["states"].items())
    best = search["curve"][-1][1] if search["curve"] else float("nan")
    return f"{search['method']}, seed {search['seed']}: best accuracy {best:.4f}; {states}"


def best_at(curve: list[list[float]], seconds: float) -> float:
    """The best accuracy at a time; 0 before the first complete trial."""
    return max((value for spent, value in curve if spent <= seconds), default=0.0)


def table(record: dict[str, Any]) -> str:
    """The best accuracy of each method at a quarter, a half and all of the budget, and paired differences."""
    budget = record["seconds"]
    lines = [f"{'CPU seconds':12}" + "".join(f"{method:>26}" for method in METHODS) + f"{'difference, by seed':>44}"]
    for share in (0.25, 0.5, 1.0):
        found = {
            method: [best_at(s["curve"], share * budget) for s in record["searches"] if s["method"] == method]
            for method in METHODS
        }
        cells = "".join(
            f"{statistics.mean(v):>14.4f} ({min(v):.3f}-{max(v):.3f})"[-26:].rjust(26) for v in found.values()
        )
        differences = [tpe - other for other, tpe in zip(*found.values(), strict=True)]
        each = ", ".join(f"{d:+.3f}" for d in differences)
        lines.append(f"{share * budget:<12g}{cells}{each:>44}")
    return "\n".join(lines)


def draw(record: dict[str, Any]) -> Any:
    """The best accuracy against CPU time: a thin line for each seed, a thick one for their mean."""
    figure, axes = figures.figure(size=(7.2, 4.2))
    ax, times = axes[0, 0], [record["seconds"] * i / POINTS for i in range(1, POINTS + 1)]
    for color, method in zip(figures.LINE_COLORS, METHODS, strict=False):
        searches = [search for search in record["searches"] if search["method"] == method]
        lines = [[best_at(search["curve"], t) for t in times] for search in searches]
        for line in lines:
            ax.plot(times, line, color=color, linewidth=0.8, alpha=0.4, drawstyle="steps-post")
        mean = [statistics.mean(values) for values in zip(*lines, strict=True)]
        label = f"{method}, mean of {len(lines)} seeds"
        ax.plot(times, mean, color=color, linewidth=2.2, drawstyle="steps-post", label=label)
    ax.set_xlabel("CPU time of the search, in seconds")
    ax.set_ylabel("best validation accuracy so far")
    ax.set_ylim(0, 1)
    ax.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    ax.legend(frameon=False, loc="lower right")
    return figure


def command(folder: Path, options: argparse.Namespace, *words: object) -> list[str]:
    """The `sightline search` command of a small search."""
    space = folder.with_suffix(".yaml")
    space.parent.mkdir(parents=True, exist_ok=True)
    space.write_text(json.dumps(SPACE), encoding="utf-8")
    changes = [*TRIAL, f"training.steps={3 if options.tiny else options.steps}", "training.evaluate_every=10"]
    search = [sys.executable, "-m", "sightline", "search", *changes, "--space", space, "--out", folder, *words]
    return [str(word) for word in search]


def overhead(options: argparse.Namespace) -> None:
    """Run a search with two workers and print the share of the time that is not spent in trials."""
    folder, trials = options.folder / "overhead", 2 if options.tiny else options.trials
    shutil.rmtree(folder, ignore_errors=True)
    words, log = command(folder, options, "--trials", trials, "--workers", 2), folder.with_suffix(".txt")
    before, last = dict[int, float](), dict[int, float]()
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None:
            last |= cpu_seconds(process.pid)
            if not count_in(folder, '"index"'):  # no trial has started
                before = dict(last)
            time.sleep(0.2)
    [line] = re.findall(r"^.* outside trials$", log.read_text(), re.MULTILINE)
    total, workers = sum(last.values()), sorted(last, key=lambda pid: -last[pid])[:2]
    in_trials = sum(last[pid] - before.get(pid, 0.0) for pid in workers)
    start, outside = sum(before.values()), 1 - in_trials / total
    print(f"{trials} trials of at most {options.steps} steps, wall-clock time: {line}")
    print(f"CPU time of all processes: {total:.0f} s, {outside:.1%} outside trials, {start:.1f} s before the first one")


def cpu_seconds(session: int) -> dict[int, float]:
    """The CPU time of each process of a session (Linux). It does not depend on what else the machine does."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                found[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def count_in(folder: Path, text: str) -> int:
    """How often a journal has a text."""
    journal = folder / "journal.log"
    return journal.read_text().count(text) if journal.exists() else 0


def kills(options: argparse.Namespace) -> None:
    """Kill a search with its workers at random moments and continue it; no trial may be lost or end twice."""
    draw, trials, count = random.Random(0), 4 if options.tiny else 90, 2 if options.tiny else 30
    folder = options.folder / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    words = ("--trials", trials, "--workers", 2, "--sampler", "random", "--pruner", "none")
    before: dict[int, Any] = {}
    moments = Counter[str]()
    for number in range(1, count + 1):
        process = subprocess.Popen(command(folder, options, *words), stderr=subprocess.DEVNULL, start_new_session=True)
        is_killed = _kill_later(process, folder, draw)
        moments["killed" if is_killed else "ended before"] += 1
        after = complete(folder)
        lost = {index for index, trial in before.items() if after.get(index) != trial}
        if lost:
            raise SystemExit(f"trials {sorted(lost)} are lost or were run again")
        news, before = len(after) - len(before), after
        moments["killed with new complete trials"] += news > 0 and is_killed
        print(f"{number}: {news} trials more are complete, {len(after)} of {trials}", flush=True)
    subprocess.run(command(folder, options, *words), check=True)
    if sorted(complete(folder)) != list(range(trials)):
        raise SystemExit("some trials are missing")
    print(f"{dict(moments)}; every trial is complete, none was lost and none ended twice")


def _kill_later(process: subprocess.Popen[bytes], folder: Path, draw: random.Random) -> bool:
    """Kill a session after a random number of lines in its journal and a random delay; False if it ended before.

    The number of lines does not depend on the speed of the machine.
    """
    last = count_in(folder, "\n") + draw.randrange(MAX_LINES)
    while process.poll() is None and count_in(folder, "\n") < last:
        time.sleep(0.01)
    try:
        process.wait(draw.uniform(0, MAX_DELAY))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def complete(folder: Path) -> dict[int, Any]:
    """The complete trials in a journal; an index with two of them is an error."""
    if not (folder / "journal.log").exists():
        return {}
    with Study("", "search", folder) as study:
        done = [trial for trial in study._attempts() if trial.state.name == "COMPLETE"]
    found = {trial.user_attrs["index"]: (trial.params, trial.values) for trial in done}
    if len(found) < len(done):
        raise SystemExit("a trial ended twice")
    return found


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("samplers", "overhead", "kills"))
    parser.add_argument("--seconds", type=float, default=50, help="CPU time of each search of samplers")
    parser.add_argument("--steps", type=int, default=90, help="training steps of a trial")
    parser.add_argument("--trials", type=int, default=24, help="trials of overhead")
    parser.add_argument("--processes", type=int, default=2, help="searches of samplers at the same time")
    parser.add_argument("--folder", type=Path, default=Path("searches/benchmark"))
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test the script")
    options = parser.parse_args()
    measurements: dict[str, Callable[[argparse.Namespace], None]] = {
        "samplers": samplers, "overhead": overhead, "kills": kills
    }  # fmt: skip
    measurements[options.name](options)


if __name__ == "__main__":
    main()
