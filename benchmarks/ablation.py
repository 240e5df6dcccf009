"""Ablation of the few-shot model: one component changed at a time, with the same config, seed and test episodes.

    python -m benchmarks.ablation configs/few-shot-cub-conv4.yaml [key=value ...] [--parallel 11]

Variants that are not trained yet are trained, `--parallel` at a time on one GPU. All are then compared with the first,
and with baselines on its embeddings. `trained-protonet` is a prototypical network with the auxiliary classifier,
`trained-protonet-alone` one without it.
"""

import argparse
import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

POOLED = ("model.tokens=pooled", "model.patch_matching=false")
PROTONET = ("model.depth=0", "model.metric=euclidean", *POOLED)
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
BASELINES = "protonet,matching,nearest,logistic,svm"


def sightline(*arguments: str) -> None:
    """Run the command `sightline`."""
    is_quiet = arguments[0] == "train"
    result = subprocess.run([sys.executable, "-m", "sightline", *arguments], capture_output=is_quiet, text=True)
    if result.returncode:
        raise SystemExit(f"sightline {' '.join(arguments)} failed: {(result.stderr or '').strip()[-500:]}")


def main() -> None:
    """Train missing variants, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("changes", nargs="*", help="key=value, for all variants")
    parser.add_argument("--parallel", type=int, default=1, help="variants trained at a time")
    arguments = parser.parse_args()
    digest = hashlib.sha256(" ".join([arguments.config.read_text(), *arguments.changes]).encode()).hexdigest()[:8]
    folder = Path("runs") / f"ablation-{arguments.config.stem}-{digest}"

    def train(name: str) -> Path:
        run = folder / name
        resume = ["--resume"] if (run / "config.yaml").is_file() else []
        sightline("train", str(arguments.config), *arguments.changes, *VARIANTS[name], f"out={run}", *resume)
        print(f"{name}: trained", file=sys.stderr, flush=True)
        return run

    with ThreadPoolExecutor(max(1, arguments.parallel)) as executor:
        runs = [str(run) for run in executor.map(train, VARIANTS)]
    table = str(folder / "table.md")
    sightline("compare", *runs, "--with", BASELINES)
    sightline("compare", *runs, "--with", BASELINES, "--format", "markdown", "--out", table)


if __name__ == "__main__":
    main()
