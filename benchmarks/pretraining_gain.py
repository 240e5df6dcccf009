"""The gain from pretraining: a text classifier from scratch and from a masked language model, with few labeled texts.

    python -m benchmarks.languages data/de_en.tsv data/ko_en.tsv.gz data/languages
    python -m benchmarks.pretraining_gain data/languages

The masked language model is trained on the texts without labels. Both classifiers have the same size, steps and
learning rate, and no validation set. The tokenizer of the one from scratch is trained on its labeled texts.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import sightline
from sightline.data.text.labeled import LabeledText, load_labeled
from sightline.predictor import Predictor

MODEL = ("model.embed_dim=96", "model.ffn_dim=192", "model.num_heads=4", "model.depth=2", "model.max_positions=48")
COMMON = ("data.max_tokens=48", "training.device=auto", "training.log_every=1000")
LABELED = (10, 100, 1000)


def main() -> None:
    """Pretrain once, then train classifiers with each number of labeled texts and each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with train.tsv, test.tsv and texts/")
    parser.add_argument("--labeled", type=int, nargs="+", default=LABELED)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pretraining-steps", type=int, default=1200)
    parser.add_argument("--steps", type=int, default=100)
    measure(parser.parse_args())


def measure(arguments: argparse.Namespace) -> None:
    """Print the mean test accuracy of both classifiers, and their difference."""
    splits = load_labeled(arguments.data)
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.perf_counter()
        pretrained = folder / "pretrained"
        pretrain(arguments.data, pretrained, arguments.pretraining_steps)
        print(f"pretraining: {arguments.pretraining_steps:,} steps, {time.perf_counter() - start:.0f} s")
        print(sightline.evaluate(pretrained, device="cpu"))
        print(f"test accuracy on {len(splits.test or ()):,} texts, mean and range over {arguments.seeds} seeds")
        for count in arguments.labeled:
            scores: dict[str, list[float]] = {"from scratch": [], "pretrained": []}
            for seed in range(arguments.seeds):
                source = sample(splits.train, count, seed, folder / f"{count}-{seed}.tsv")
                for kind in scores:
                    out = folder / f"{kind}-{count}-{seed}"
                    start_from = pretrained if kind == "pretrained" else None
                    predictor = classify(source, out, seed, arguments.steps, start_from)
                    scores[kind].append(predictor.evaluate(arguments.data / "test.tsv").accuracy)
            gain = statistics.mean(scores["pretrained"]) - statistics.mean(scores["from scratch"])
            shown = "  ".join(f"{kind} {_shown(values)}" for kind, values in scores.items())
            print(f"{count:>6,} labeled texts  {shown}  gain {100 * gain:+.1f} points")


def pretrain(data: Path, out: Path, steps: int) -> None:
    """Train a masked language model on the texts without labels."""
    training = (f"training.steps={steps}", "training.batch_size=2048", "training.learning_rate=2e-3")
    changes = (
        "tokenizer.kind=bpe",
        "tokenizer.vocab_size=3000",
        f"data.source={data / 'texts'}",
        f"out={out}",
        *training,
    )
    sightline.train(None, ["task=masked_lm", *MODEL, *COMMON, *changes], quiet=True)


def classify(source: Path, out: Path, seed: int, steps: int, start_from: Path | None) -> Predictor:
    """Train a classifier."""
    training = (f"training.steps={steps}", "training.batch_size=512", "training.learning_rate=1e-3", f"seed={seed}")
    data = (f"data.source={source}", "data.validation_fraction=0", f"out={out}")
    new = () if start_from is not None else (*MODEL, "tokenizer.kind=bpe", "tokenizer.vocab_size=3000")
    changes = ["task=text_classification", *COMMON, *training, *data, *new]
    sightline.train(None, changes, start_from=start_from, quiet=True)
    return sightline.load(out)


def sample(text: LabeledText, count: int, seed: int, path: Path) -> Path:
    """Write `count` random texts, at least one of each class, to a file."""
    order = random.Random(seed).sample(range(len(text)), len(text))
    first = [next(i for i in order if text.labels[i] == label) for label in text.classes]
    chosen = [*first, *(i for i in order if i not in first)][:count]
    path.write_text("".join(f"{text.texts[i]}\t{text.labels[i]}\n" for i in chosen), encoding="utf-8")
    return path


def _shown(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.1%} ({min(values):.1%} to {max(values):.1%})"


if __name__ == "__main__":
    main()
