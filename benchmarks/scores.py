"""Compare dot and cosine attention on the test sets: the same configs and the same three seeds.

    python -m benchmarks.scores configs/cifar10.yaml configs/multi30k-transformer.yaml [key=value ...] [--parallel 6]

The metric is accuracy in percent (few-shot: at each setting of the config) or lower-cased BLEU. Prints the mean of each
score and the mean of the paired differences, with 95% intervals (Student's t over the seeds). Finished runs are reused,
so the command can be interrupted and repeated. `--seconds` and `--run-seconds` stop trainings after this time; seeds
without both scores are then left out.
"""

import argparse
import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sightline import config, registry
from sightline.files import EVALUATION

from .trainings import Trainings, add_options

SCORES = ("dot", "cosine")
SEEDS = (0, 1, 2)
T_QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5% quantiles of Student's t distribution, by the number of seeds."""

SCORE_KEYS = {"translation": "model.transformer.score"}
"""Config key of the score by task, if it is not model.score."""
METRICS: dict[str, Callable[[Any], dict[str, float]]] = {
    "image_classification": lambda result: {"accuracy": 100 * result["accuracy"]},
    "translation": lambda result: {"BLEU": result["bleu_lowercase"]},
    "few_shot": lambda result: {name: 100 * setting["accuracy"] for name, setting in result["settings"].items()},
}
"""Metrics of an evaluation by task."""


def task_of(path: Path) -> str:
    """The task of a config, after a check that its model has a score."""
    values = config.read(path)
    task: str = values.get("task", registry.DEFAULT)
    if task == "translation" and values["model"].get("kind", "transformer") != "transformer":
        raise SystemExit(f"{path} must be of kind transformer to have a dot or cosine score throughout")
    return task


def run_folder(path: Path, score: str, seed: int, changes: Sequence[str]) -> Path:
    """The folder of a run; that of the same config and changes is found again."""
    digest = hashlib.sha256(" ".join([path.read_text(), *changes]).encode()).hexdigest()[:8]
    return Path("runs") / "scores" / f"{path.stem}-{score}-{seed}-{digest}"


def metrics(path: Path, changes: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """By metric and score: the values of the seeds that both scores are evaluated for."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in SEEDS:
        results = {score: run_folder(path, score, seed, changes) / EVALUATION for score in SCORES}
        for score, result in results.items() if all(result.is_file() for result in results.values()) else ():
            for name, value in METRICS[task_of(path)](json.loads(result.read_text())).items():
                found.setdefault(name, {score: [] for score in SCORES})[score].append(value)
    return found


def interval(values: list[float]) -> str:
    """Mean and half width of its 95% interval."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    half = T_QUANTILES[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {half:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and evaluate missing runs, then print a row for each config and metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", metavar="CONFIG or key=value")
    add_options(parser)
    options = parser.parse_args(arguments)
    paths = [Path(word) for word in options.words if "=" not in word]
    changes = [word for word in options.words if "=" in word]
    trainings = Trainings(options.parallel, options.seconds, options.run_seconds)
    futures = []
    for path in paths:
        key = SCORE_KEYS.get(task_of(path), "model.score")
        for seed in SEEDS:
            for score in SCORES:
                run = run_folder(path, score, seed, changes)
                futures.append(trainings.add(path, [*changes, f"{key}={score}", f"seed={seed}"], run, evaluate=True))
    finished = [future.result() for future in futures]
    print(f"changes to the configs: {' '.join(changes) or 'none'}")
    print("| config | dot | cosine | cosine - dot | each run: dot; cosine |")
    print("| --- | --- | --- | --- | --- |")
    for path in paths:
        for name, results in metrics(path, changes).items():
            dot, cosine = (results[score] for score in SCORES)
            difference = interval([c - d for d, c in zip(dot, cosine, strict=True)])
            each = "; ".join(", ".join(f"{value:.2f}" for value in values) for values in (dot, cosine))
            row = (f"{path.stem}, {name}", interval(dot), interval(cosine), difference, each)
            print(f"| {' | '.join(row)} |", flush=True)
    if not all(finished):
        raise SystemExit(f"{finished.count(False)} of {len(finished)} runs are not finished; the same command goes on")


if __name__ == "__main__":
    main()
