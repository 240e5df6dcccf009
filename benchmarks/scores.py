"""Compare dot and cosine attention on the test sets: the same configs and the same three seeds.

    python -m benchmarks.scores configs/cifar10.yaml configs/multi30k-transformer.yaml [key=value ...]

The metric is accuracy in percent (few-shot: at each setting of the config) or lower-cased BLEU. Prints the mean of each
score and the mean of the paired differences, with 95% intervals (Student's t over the seeds). Finished runs are reused,
so the command can be interrupted and repeated.
"""

import hashlib
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sightline import config, evaluate, registry, train

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


def metrics(path: Path, score: str, seed: int, changes: list[str]) -> dict[str, float]:
    """Train and evaluate one run, unless it is finished."""
    values = config.read(path)
    task = values.get("task", registry.DEFAULT)
    if task == "translation" and values["model"].get("kind", "transformer") != "transformer":
        raise SystemExit(f"{path} must be of kind transformer to have a dot or cosine score throughout")
    digest = hashlib.sha256(" ".join([path.read_text(), *changes]).encode()).hexdigest()[:8]
    folder = Path("runs") / "scores" / f"{path.stem}-{score}-{seed}-{digest}"
    result = folder / "evaluation.json"
    if not result.is_file():
        key = SCORE_KEYS.get(task, "model.score")
        is_started = (folder / "config.yaml").is_file()
        train(path, [*changes, f"{key}={score}", f"seed={seed}", f"out={folder}"], resume=is_started, quiet=True)
        evaluate(folder)
    return METRICS[task](json.loads(result.read_text()))


def interval(values: list[float]) -> str:
    """Mean and half width of its 95% interval."""
    half = T_QUANTILES[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {half:.2f}"


def main() -> None:
    """Print a row for each config and metric."""
    paths = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    changes = [argument for argument in sys.argv[1:] if "=" in argument]
    print(f"changes to the configs: {' '.join(changes) or 'none'}")
    print("| config | dot | cosine | cosine - dot | each run: dot; cosine |")
    print("| --- | --- | --- | --- | --- |")
    for path in paths:
        results = {score: [metrics(path, score, seed, changes) for seed in SEEDS] for score in ("dot", "cosine")}
        for name in results["dot"][0]:
            dot, cosine = ([run[name] for run in results[score]] for score in ("dot", "cosine"))
            difference = interval([c - d for d, c in zip(dot, cosine, strict=True)])
            each = "; ".join(", ".join(f"{value:.2f}" for value in values) for values in (dot, cosine))
            row = (f"{path.stem}, {name}", interval(dot), interval(cosine), difference, each)
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
