"""BLEU by source length for several translation runs, as a table and a figure.

    python -m benchmarks.bleu_by_length runs/multi30k-rnn runs/multi30k-rnn-attention runs/multi30k-transformer

The last evaluation of a run is reused; --data evaluates all runs on another data set.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from sightline import evaluate
from sightline.tasks.translation.evaluate import word_range
from sightline.view import figures

COLORS = ("#1f6feb", "#e08a00", "#1b2a41", "#2da44e", "#8250df", "#cf222e")


def by_length(run: Path, data: str | None, device: str) -> list[dict[str, Any]]:
    """The length groups of a run, from its last evaluation or a new one."""
    stored = run / "evaluation.json"
    if data is None and stored.is_file():
        groups: list[dict[str, Any]] = json.loads(stored.read_text(encoding="utf-8"))["by_length"]
        return groups
    return list(evaluate(run, data, device).to_dict()["by_length"])


def draw(runs: dict[str, list[dict[str, Any]]], min_pairs: int) -> Any:
    """One line per run; groups with fewer than `min_pairs` pairs are left out."""
    figure, axes = figures.figure(size=(7.2, 4.2))
    ax = axes[0, 0]
    names = {group["min_words"]: word_range(group) for groups in runs.values() for group in groups}
    drawn = {name: [group for group in groups if group["pairs"] >= min_pairs] for name, groups in runs.items()}
    starts = sorted({group["min_words"] for groups in drawn.values() for group in groups})
    for color, (name, groups) in zip(COLORS, drawn.items(), strict=False):
        positions = [starts.index(group["min_words"]) for group in groups]
        ax.plot(positions, [group["bleu"] for group in groups], marker="o", color=color, linewidth=1.8, label=name)
    ax.set_xticks(range(len(starts)), [names[start] for start in starts])
    ax.set_xlabel("source words")
    ax.set_ylabel("BLEU, lower-cased")
    ax.set_ylim(bottom=0)
    ax.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    ax.legend(frameon=False)
    return figure


def main() -> None:
    """Print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help=f"folders of at most {len(COLORS)} runs")
    parser.add_argument("--data", help="another data set to evaluate on")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--min-pairs", type=int, default=20, help="smallest group that is drawn")
    parser.add_argument("--out", type=Path, default=Path("bleu-by-length.png"))
    args = parser.parse_args()
    if len(args.runs) > len(COLORS):
        parser.error(f"at most {len(COLORS)} runs, got {len(args.runs)}")
    runs = {run.name: by_length(run, args.data, args.device) for run in args.runs}
    for name, groups in runs.items():
        print(name)
        for group in groups:
            print(f"  {word_range(group):>8} words  BLEU {group['bleu']:5.1f}  {group['pairs']:5,} pairs")
    if not any(group["pairs"] >= args.min_pairs for groups in runs.values() for group in groups):
        parser.error(f"no group has {args.min_pairs} pairs; lower --min-pairs")
    print(f"wrote {figures.save(draw(runs, args.min_pairs), args.out)}")


if __name__ == "__main__":
    main()
