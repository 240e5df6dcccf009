"""Ablation of the few-shot model: one component changed at a time, with the same config, seeds and test episodes.

    python -m benchmarks.ablation configs/few-shot-cub-conv4.yaml [key=value ...] [--seeds 3] [--parallel 11]

Variants that are not trained yet are trained, `--parallel` at a time on one GPU. All variants of a seed are then
compared with the first, and with baselines on its embeddings. The table has the mean over the seeds of each accuracy
and of each difference to the first variant, with standard deviations over the seeds. `trained-protonet` is a
prototypical network with the auxiliary classifier, `trained-protonet-alone` one without it.
"""

import argparse
import hashlib
import statistics
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from sightline import compare

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


def train(config: Path, changes: list[str], run: Path) -> None:
    """Train a run, or go on with it."""
    resume = ["--resume"] if (run / "config.yaml").is_file() else []
    command = [sys.executable, "-m", "sightline", "train", str(config), *changes, f"out={run}", *resume]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command[2:])} failed: {result.stderr.strip()[-500:]}")
    print(f"{run}: trained", file=sys.stderr, flush=True)


def compared(folder: Path, seeds: int, names: list[str]) -> Values:
    """The results of all variants and baselines."""
    values: Values = defaultdict(lambda: defaultdict(list))
    for seed in range(seeds):
        runs = [folder / f"{name}-{seed}" for name in names]
        for row in compare(runs, baselines=BASELINES).to_records():
            name = row["name"].removesuffix(f"-{seed}").rpartition("/")[2]
            values[name][row["setting"]].append((100 * row["accuracy"], 100 * (row["difference"] or 0.0)))
    return values


def print_table(values: Values) -> None:
    """Means and standard deviations over the seeds."""
    settings = list(next(iter(values.values())))
    print(f"{'':24}" + "".join(f"{setting:>18}{'difference':>18}" for setting in settings))
    for name, by_setting in values.items():
        cells = (spread(column) for setting in settings for column in zip(*by_setting[setting], strict=True))
        print(f"{name:24}" + "".join(f"{cell:>18}" for cell in cells))


def spread(values: tuple[float, ...]) -> str:
    """The mean, and the standard deviation of several values."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def main() -> None:
    """Train missing variants, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("changes", nargs="*", help="key=value, for all variants")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each variant")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="default: all")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    arguments = parser.parse_args()
    digest = hashlib.sha256(" ".join([arguments.config.read_text(), *arguments.changes]).encode()).hexdigest()[:8]
    folder = Path("runs") / f"ablation-{arguments.config.stem}-{digest}"
    with ThreadPoolExecutor(max(1, arguments.parallel)) as executor:
        tasks = [
            executor.submit(
                train,
                arguments.config,
                [*arguments.changes, *VARIANTS[name], f"seed={seed}"],
                folder / f"{name}-{seed}",
            )
            for seed, name in product(range(arguments.seeds), arguments.variants)
        ]
        for task in tasks:
            task.result()
    print(f"means over {arguments.seeds} seeds with standard deviations; accuracy and difference to the first in %")
    print_table(compared(folder, arguments.seeds, arguments.variants))


if __name__ == "__main__":
    main()
