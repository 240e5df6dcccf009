"""Dot against cosine attention: the same recipes, the same seeds, three of each, on the test sets.

    python benchmarks/scores.py configs/cifar10.yaml configs/multi30k-transformer.yaml [key=value ...]

Judged by accuracy in percent, for few-shot recipes at each of their settings, and translators by lower-cased BLEU.
Prints the mean of each with its 95% interval (Student's t over the seeds) and the paired difference with its own. Runs
that are finished are not run again, so the command can be broken off and repeated.
"""

import hashlib
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sightline import config, evaluate, train
from sightline import registry as catalogue

SEEDS = (0, 1, 2)
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5% points of Student's t, by the number of seeds."""


KEYS = {"translation": "model.transformer.score"}
"""What a task calls the score, where that is not model.score."""
FIGURES: dict[str, Callable[[Any], dict[str, float]]] = {
    "image_classification": lambda found: {"accuracy": 100 * found["accuracy"]},
    "translation": lambda found: {"BLEU": found["bleu_lowercase"]},
    "few_shot": lambda found: {name: 100 * one["accuracy"] for name, one in found["settings"].items()},
}
"""What an evaluation came to, by task."""


def figures(recipe: Path, score: str, seed: int, changes: list[str]) -> dict[str, float]:
    """Of one run on its test set."""
    values = config.read(recipe)
    task = values.get("task", catalogue.DEFAULT)
    if task == "translation" and values["model"].get("kind", "transformer") != "transformer":
        raise SystemExit(f"{recipe} must be of kind transformer to have a dot or cosine score throughout")
    digest = hashlib.sha256(" ".join([recipe.read_text(), *changes]).encode()).hexdigest()[:8]
    folder = Path("runs") / "scores" / f"{recipe.stem}-{score}-{seed}-{digest}"
    result = folder / "evaluation.json"
    if not result.is_file():
        key = KEYS.get(task, "model.score")
        train(recipe, [*changes, f"{key}={score}", f"seed={seed}", f"out={folder}"], resume=True, quiet=True)
        evaluate(folder)
    return FIGURES[task](json.loads(result.read_text()))


def interval(values: list[float]) -> str:
    """Mean and half of its 95% interval."""
    half = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {half:.2f}"


def main() -> None:
    """A row for each recipe and figure."""
    recipes = [Path(word) for word in sys.argv[1:] if "=" not in word]
    changes = [word for word in sys.argv[1:] if "=" in word]
    print(f"changes to the recipes: {' '.join(changes) or 'none'}")
    print("| recipe | dot | cosine | cosine - dot | each run: dot; cosine |")
    print("| --- | --- | --- | --- | --- |")
    for recipe in recipes:
        found = {score: [figures(recipe, score, seed, changes) for seed in SEEDS] for score in ("dot", "cosine")}
        for name in found["dot"][0]:
            dot, cosine = ([run[name] for run in found[score]] for score in ("dot", "cosine"))
            difference = interval([c - d for d, c in zip(dot, cosine, strict=True)])
            each = "; ".join(", ".join(f"{value:.2f}" for value in values) for values in (dot, cosine))
            row = (f"{recipe.stem}, {name}", interval(dot), interval(cosine), difference, each)
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
