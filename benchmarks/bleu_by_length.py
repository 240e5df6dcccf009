"""BLEU against the length of the source, for several translators: where one context vector is too small.

    python benchmarks/bleu_by_length.py runs/multi30k-rnn runs/multi30k-rnn-attention runs/multi30k-transformer

A run that `sightline evaluate` has judged already is not judged again; --data judges all of them by another set.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from sightline import evaluate
from sightline.tasks.translation.evaluate import span
from sightline.view import figures as pictures

INKS = ("#1f6feb", "#e08a00", "#1b2a41", "#2da44e", "#8250df", "#cf222e")


def by_length(run: Path, data: str | None, device: str) -> list[dict[str, Any]]:
    """The groups of one run, from its last evaluation or a new one."""
    kept = run / "evaluation.json"
    if data is None and kept.is_file():
        groups: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))["by_length"]
        return groups
    return list(evaluate(run, data, device).by_length)


def draw(runs: dict[str, list[dict[str, Any]]], least_pairs: int) -> Any:
    """A line for each run; groups of fewer pairs than `least_pairs` say little and are left out."""
    figure, axes = pictures.figure(size=(7.2, 4.2))
    ax = axes[0, 0]
    starts = sorted({group["least"] for groups in runs.values() for group in groups if group["pairs"] >= least_pairs})
    names = {group["least"]: span(group) for groups in runs.values() for group in groups}
    for ink, (name, groups) in zip(INKS, runs.items(), strict=False):
        shown = [group for group in groups if group["pairs"] >= least_pairs]
        places = [starts.index(group["least"]) for group in shown]
        ax.plot(places, [group["bleu"] for group in shown], marker="o", color=ink, linewidth=1.8, label=name)
    ax.set_xticks(range(len(starts)), [names[start] for start in starts])
    ax.set_xlabel("words of the source")
    ax.set_ylabel("BLEU, lower-cased")
    ax.set_ylim(bottom=0)
    ax.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    ax.legend(frameon=False)
    return figure


def main() -> None:
    """Judge, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help=f"folders of runs, at most {len(INKS)}")
    parser.add_argument("--data", help="another set to judge by")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--least", type=int, default=20, help="pairs a group must have to be drawn")
    parser.add_argument("--out", type=Path, default=Path("bleu-by-length.png"))
    told = parser.parse_args()
    if len(told.runs) > len(INKS):
        parser.error(f"at most {len(INKS)} runs, got {len(told.runs)}")
    runs = {run.name: by_length(run, told.data, told.device) for run in told.runs}
    for name, groups in runs.items():
        print(name)
        for group in groups:
            print(f"  {span(group):>8} words  BLEU {group['bleu']:5.1f}  {group['pairs']:5,} pairs")
    if not any(group["pairs"] >= told.least for groups in runs.values() for group in groups):
        parser.error(f"no group has {told.least} pairs; lower --least")
    print(f"wrote {pictures.save(draw(runs, told.least), told.out)}")


if __name__ == "__main__":
    main()
