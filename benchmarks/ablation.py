"""The few-shot design with one choice changed at a time: same recipe, same seed, judged on the same episodes.

    python benchmarks/ablation.py configs/few-shot-cub-conv4.yaml [key=value ...] [--at-once 11]

Trains what is not trained yet, `--at-once` side by side (for a GPU that one does not fill), then compares all with
the first and with the baselines on its embeddings. `trained-protonet` is a prototypical network that also learns
from the plain classifier beside it, as ours does; `trained-protonet-alone` learns from episodes alone.
"""

import argparse
import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ONE_VECTOR = ("model.tokens=pooled", "model.patch_matching=false")
PROTONET = ("model.depth=0", "model.metric=euclidean", *ONE_VECTOR)
CHOICES: dict[str, tuple[str, ...]] = {
    "ours": (),
    "trained-protonet": PROTONET,
    "trained-protonet-alone": (*PROTONET, "auxiliary=0"),
    "dot": ("model.score=dot",),
    "no-labels": ("model.label_embeddings=false",),
    "fixed-temperature": ("model.learn_temperature=false",),
    "depth-0": ("model.depth=0",),
    "depth-2": ("model.depth=2",),
    "depth-4": ("model.depth=4",),
    "one-vector": ONE_VECTOR,
    "no-parts": ("model.patch_matching=false",),
}
BASELINES = "protonet,matching,nearest,logistic,svm"


def sightline(*words: str) -> None:
    """The command, as a user runs it."""
    done = subprocess.run([sys.executable, "-m", "sightline", *words], capture_output=words[0] == "train", text=True)
    if done.returncode:
        raise SystemExit(f"sightline {' '.join(words)} failed: {(done.stderr or '').strip()[-500:]}")


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("changes", nargs="*", help="key=value, for all of them")
    parser.add_argument("--at-once", type=int, default=1)
    asked = parser.parse_args()
    digest = hashlib.sha256(" ".join([asked.recipe.read_text(), *asked.changes]).encode()).hexdigest()[:8]
    home = Path("runs") / f"ablation-{asked.recipe.stem}-{digest}"

    def trained(name: str) -> Path:
        run = home / name
        sightline("train", str(asked.recipe), *asked.changes, *CHOICES[name], f"out={run}", "--resume")
        print(f"{name}: trained", file=sys.stderr, flush=True)
        return run

    with ThreadPoolExecutor(max(1, asked.at_once)) as side_by_side:
        runs = list(side_by_side.map(trained, CHOICES))
    sightline("compare", *map(str, runs), "--with", BASELINES, "--out", str(home / "table.md"))


if __name__ == "__main__":
    main()
