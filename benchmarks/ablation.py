"""Ablation of the few-shot model: one component changed at a time, with the same config, seeds and test episodes.

    python -m benchmarks.ablation configs/few-shot-cub-conv4.yaml [key=value ...] [--seeds 3] [--parallel 11]

Variants that are not trained yet are trained, `--parallel` at a time on one GPU. When all variants of a seed have
ended, they are compared with the first, and with baselines on its embeddings. The table has the mean over the seeds of
each accuracy and of each difference to the first variant, with standard deviations over the seeds. It is printed after
each seed. `trained-protonet` is a prototypical network with the auxiliary classifier, `trained-protonet-alone` one
without it.

`--seconds` stops all trainings after this time, `--run-seconds` each of them. Variants that are not finished are left
out of the table. The same command goes on after an interruption: it reuses finished runs and comparisons, and continues
the others from their last checkpoints.
"""

import argparse
import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline import compare
from sightline.files import write_bytes

from .trainings import Trainings, add_options, is_trained

POOLED = ("model.tokens=pooled", "model.patch_matching=false")
PROTONET = ("model.depth=0", "model.metric=euclidean", "model.readout=prototypes", *POOLED)
VARIANTS: dict[str, tuple[str, ...]] = {
    "full": (),
    "trained-protonet": PROTONET,
    "trained-protonet-alone": (*PROTONET, "auxiliary_loss_weight=0"),
    "dot": ("model.score=dot",),
    "no-label-embeddings": ("model.label_embeddings=false",),
    "fixed-temperature": ("model.learn_temperature=false",),
    "depth-0": ("model.depth=0",),
    "depth-2": ("model.depth=2",),
    "depth-4": ("model.depth=4",),
    "pooled": POOLED,
    "no-patch-matching": ("model.patch_matching=false",),
}
BASELINES = ("protonet", "matching", "nearest", "logistic", "svm")

Values = dict[str, dict[str, list[tuple[float, float]]]]
"""By name of a variant or baseline and by setting: accuracy and difference in percent, for each seed."""


def compared(folder: Path, seed: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """The results of the trained variants and of the baselines for one seed; none if the first variant is missing."""
    trained = [name for name in names if is_trained(folder / f"{name}-{seed}")]
    if names[0] not in trained:
        return []
    path = folder / f"comparison-{seed}.json"
    if path.is_file():
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if stored["variants"] == trained:
            return list(stored["results"])
    results = compare([folder / f"{name}-{seed}" for name in trained], baselines=BASELINES).to_records()
    for row in results:
        row["name"] = row["name"].removesuffix(f"-{seed}").rpartition("/")[2]
    write_bytes(path, json.dumps({"variants": trained, "results": results}, indent=1).encode())
    return results


def add(values: Values, results: Sequence[dict[str, Any]]) -> None:
    """Add the results of one seed."""
    for row in results:
        values[row["name"]][row["setting"]].append((100 * row["accuracy"], 100 * (row["difference"] or 0.0)))


def print_table(values: Values) -> None:
    """Means and standard deviations over the seeds, and the number of seeds."""
    settings = list(next(iter(values.values())))
    print(f"{'':24}{'seeds':>5}" + "".join(f"{setting:>18}{'difference':>18}" for setting in settings))
    for name, by_setting in values.items():
        cells = (spread(column) for setting in settings for column in zip(*by_setting[setting], strict=True))
        print(f"{name:24}{len(by_setting[settings[0]]):5}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def spread(values: tuple[float, ...]) -> str:
    """The mean, and the standard deviation of several values."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train missing variants, and print the table after each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("changes", nargs="*", help="key=value, for all variants")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each variant")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="default: all")
    add_options(parser)
    options = parser.parse_args(arguments)
    digest = hashlib.sha256(" ".join([options.config.read_text(), *options.changes]).encode()).hexdigest()[:8]
    folder = Path("runs") / f"ablation-{options.config.stem}-{digest}"
    trainings = Trainings(options.parallel, options.seconds, options.run_seconds)
    futures = {
        (seed, name): trainings.add(
            options.config, [*options.changes, *VARIANTS[name], f"seed={seed}"], folder / f"{name}-{seed}"
        )
        for seed in range(options.seeds)
        for name in options.variants
    }
    values: Values = defaultdict(lambda: defaultdict(list))
    for seed in range(options.seeds):
        for name in options.variants:
            futures[seed, name].result()
        add(values, compared(folder, seed, options.variants))
        if values:
            print(f"means over seeds 0 to {seed}, with standard deviations; accuracy and difference to the first in %")
            print_table(values)
    missing = [f"{name}-{seed}" for (seed, name), future in futures.items() if not future.result()]
    if missing:
        raise SystemExit(f"not finished: {', '.join(missing)}; the same command goes on with them")


if __name__ == "__main__":
    main()
