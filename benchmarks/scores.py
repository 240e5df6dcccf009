"""Dot against cosine attention: the same recipes, the same seeds, three of each, on the test sets.

    python benchmarks/scores.py configs/cifar10.yaml configs/fashion-mnist.yaml [key=value ...]

Prints the mean of each with its 95% interval (Student's t over the seeds) and the paired difference with its own. Runs
that are finished are not run again, so the command can be broken off and repeated.
"""

import hashlib
import json
import statistics
import sys
from pathlib import Path

from sightline import evaluate, train

SEEDS = (0, 1, 2)
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5% points of Student's t, by the number of seeds."""


def accuracy(config: Path, score: str, seed: int, changes: list[str]) -> float:
    """Of one run on its test set, in percent."""
    digest = hashlib.sha256(" ".join([config.read_text(), *changes]).encode()).hexdigest()[:8]
    folder = Path("runs") / "scores" / f"{config.stem}-{score}-{seed}-{digest}"
    result = folder / "evaluation.json"
    if not result.is_file():
        train(config, [*changes, f"model.score={score}", f"seed={seed}", f"out={folder}"], resume=True, quiet=True)
        evaluate(folder)
    return 100 * float(json.loads(result.read_text())["accuracy"])


def interval(values: list[float]) -> str:
    """Mean and half of its 95% interval."""
    half = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {half:.2f}"


def main() -> None:
    """A row for each recipe."""
    configs = [Path(word) for word in sys.argv[1:] if "=" not in word]
    changes = [word for word in sys.argv[1:] if "=" in word]
    print(f"changes to the recipes: {' '.join(changes) or 'none'}")
    print("| recipe | dot | cosine | cosine - dot | each run: dot; cosine |")
    print("| --- | --- | --- | --- | --- |")
    for config in configs:
        dot, cosine = ([accuracy(config, score, seed, changes) for seed in SEEDS] for score in ("dot", "cosine"))
        difference = interval([c - d for d, c in zip(dot, cosine, strict=True)])
        each = "; ".join(", ".join(f"{value:.2f}" for value in values) for values in (dot, cosine))
        print(f"| {config.stem} | {interval(dot)} | {interval(cosine)} | {difference} | {each} |", flush=True)


if __name__ == "__main__":
    main()
