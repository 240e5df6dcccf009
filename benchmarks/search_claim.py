"""Does accuracy rise with heads, head dimension and sequence length, in that order, and do more blocks always help?

    python -m benchmarks.search_claim --data data/fashion-mnist --workers 12

A random search without pruning over benchmarks/search_claim.yaml; workers share one GPU. The same command continues an
interrupted search. Prints the change of the accuracy by each doubling, from a linear regression on all settings, and
the mean accuracy by depth, with 95% bootstrap intervals over trials, and draws both. `--analyze FOLDER` reads a
finished search. `--tiny` trains on the embedded glyphs for a few steps.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from sightline.search import Results, search
from sightline.search.analysis import Interval, mean_interval
from sightline.search.report import read_results
from sightline.view import figures

ROOT = Path(__file__).parents[1]
SPACE = Path(__file__).with_suffix(".yaml")
FIGURE = ROOT / "docs" / "images" / "search-claim.png"
IMAGE_SIZE = 28
CONFIG = (
    "model.embed_dim=64", "model.pool=mean", "augment.crop=1", "augment.flip=true", "label_smoothing=0.05",
    "training.optimizer=muon", "training.batch_size=512", "training.warmup_steps=60", "training.ema_decay=0.99",
)  # fmt: skip
FACTORS = {
    "heads": lambda s: np.log2(s["model.num_heads"]),
    "head dimension": lambda s: np.log2(s["model.head_dim"]),
    "sequence length": lambda s: 2 * np.log2(IMAGE_SIZE / s["model.patch_size"]),
    "blocks": lambda s: np.log2(s["model.depth"]),
    "learning rate": lambda s: np.log2(s["training.learning_rate"]),
}
"""Columns of the regression: a step of 1 is a doubling."""
CLAIM = ("heads", "head dimension", "sequence length")
NUM_RESAMPLES = 2000


def run_search(options: argparse.Namespace) -> Results:
    """Search, or continue a search."""
    steps = 3 if options.tiny else options.steps
    changes = [*CONFIG, f"training.steps={steps}", f"training.evaluate_every={steps}", f"training.log_every={steps}"]
    if options.tiny:
        changes += ["augment.flip=false", "training.warmup_steps=1", "training.batch_size=16"]
    else:
        changes += [f"data.source={options.data}", "data.validation_fraction=0.1"]
    trials, workers = (10, 1) if options.tiny else (options.trials, options.workers)
    finished = search(
        {"task": "image_classification"}, SPACE, changes,
        trials=trials, workers=workers, sampler="random", pruner="none", out=options.out, timeout=options.timeout,
    )  # fmt: skip
    print(finished.usage)
    return finished.results


def regress(columns: Any, values: Any) -> Any:
    """Coefficients of columns (N, F) for values (N,): (F,), without the intercept."""
    design = np.column_stack([columns, np.ones(len(columns))])
    return np.linalg.lstsq(design, values, rcond=None)[0][:-1]


def effects(results: Results) -> dict[str, tuple[Interval, Any]]:
    """The change of the accuracy by a doubling of each factor, in percentage points, and its resampled values."""
    trials, random = results.complete, np.random.default_rng(0)
    columns = np.array([[factor(trial["settings"]) for factor in FACTORS.values()] for trial in trials])
    values = 100 * np.array([trial["values"]["accuracy"] for trial in trials])
    indices = random.integers(len(trials), size=(NUM_RESAMPLES, len(trials)))
    drawn = np.array([regress(columns[i], values[i]) for i in indices])
    whole = regress(columns, values)
    return {name: (Interval.of(float(whole[j]), drawn[:, j]), drawn[:, j]) for j, name in enumerate(FACTORS)}


def by_depth(results: Results) -> dict[int, Interval]:
    """The mean accuracy for each number of blocks, in percent."""
    random, groups = np.random.default_rng(1), dict[int, list[float]]()
    for trial in results.complete:
        groups.setdefault(trial["settings"]["model.depth"], []).append(100 * trial["values"]["accuracy"])
    return {depth: mean_interval(np.array(groups[depth]), random) for depth in sorted(groups)}


def report(results: Results) -> str:
    """The answer in numbers."""
    found, depths = effects(results), by_depth(results)
    lines = [f"{len(results.complete)} complete trials; accuracy in percentage points by a doubling, 95% interval"]
    for name, (effect, _) in found.items():
        lines.append(f"  {name:16} {effect.value:+.2f}  ({effect.low:+.2f} to {effect.high:+.2f})")
    for first, second in itertools.pairwise(CLAIM):
        share = float((found[first][1] > found[second][1]).mean())
        lines.append(f"{first} above {second}: in {share:.1%} of the resamples")
    lines.append("mean accuracy by blocks")
    lines += [f"  {depth}  {mean.value:.2f}  ({mean.low:.2f} to {mean.high:.2f})" for depth, mean in depths.items()]
    falls = [b for a, b in itertools.pairwise(depths) if depths[b].value < depths[a].value]
    lines.append(f"one more block lowers the mean at: {', '.join(map(str, falls)) or 'none'}")
    return "\n".join(lines)


def draw(results: Results) -> Any:
    """The effect of each factor, and the accuracy by blocks, with intervals."""
    figure, axes = figures.figure(1, 2, size=(9.6, 3.8))
    found = {name: effect for name, (effect, _) in effects(results).items() if name != "learning rate"}
    _errorbars(axes[0, 0], range(len(found)), list(found.values()), "none")
    axes[0, 0].axhline(0, color=figures.COLORS["gray"], linewidth=0.8)
    axes[0, 0].set_xticks(range(len(found)), [name.replace(" ", "\n") for name in found])
    axes[0, 0].set_ylabel("percentage points by a doubling")
    depths = by_depth(results)
    _errorbars(axes[0, 1], list(depths), list(depths.values()), "-")
    axes[0, 1].set_xlabel("blocks")
    axes[0, 1].set_ylabel("mean validation accuracy, %")
    figure.suptitle(f"{len(results.complete)} trials, 95% bootstrap intervals", color=figures.COLORS["ink"])
    return figure


def _errorbars(ax: Any, xs: Any, intervals: list[Interval], line: str) -> None:
    errors = [[i.value - i.low for i in intervals], [i.high - i.value for i in intervals]]
    values, color = [i.value for i in intervals], figures.COLORS["blue"]
    ax.errorbar(list(xs), values, yerr=errors, fmt="o", linestyle=line, color=color, capsize=3)
    ax.grid(axis="y", color="#e6e9ed", linewidth=0.8)


def main() -> None:
    """Search, print the answer and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data/fashion-mnist", help="images of 28 x 28 pixels")
    parser.add_argument("--trials", type=int, default=220)
    parser.add_argument("--workers", type=int, default=12, help="trials that share the GPU")
    parser.add_argument("--steps", type=int, default=600, help="training steps of a trial")
    parser.add_argument("--timeout", type=float, help="seconds after which no further trial is started")
    parser.add_argument("--out", type=Path, default=Path("searches/claim"))
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--analyze", type=Path, metavar="FOLDER", help="a finished search, or its trials.json")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test the script")
    options = parser.parse_args()
    results = read_results(options.analyze) if options.analyze else run_search(options)
    print(report(results))
    print(f"wrote {figures.save(draw(results), options.figure)}")


if __name__ == "__main__":
    main()
