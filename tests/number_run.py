"""A translation run on German number words, trained for two steps."""

from pathlib import Path

import sightline
from sightline.data.text.corpora import load_parallel

SMALL = (
    "task=translation",
    "model.kind=rnn_attention",
    "model.rnn.hidden_size=8",
    "model.rnn.embed_dim=6",
    "tokenizer.kind=character",
    "search.num_beams=2",
    "data.max_tokens=40",
    "training.steps=2",
    "training.batch_size=128",
    "training.evaluate_every=2",
    "training.device=cpu",
)


def write_corpus(folder: Path, *, train: int, validation: int, test: int, max_chars: int) -> Path:
    """Write aligned files of number words whose German side is shorter than `max_chars`."""
    numbers = load_parallel("numbers").train
    pairs = [pair for pair in zip(numbers.source, numbers.target, strict=True) if len(pair[0]) < max_chars]
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for name, count in (("train", train), ("val", validation), ("test", test)):
        for i, language in enumerate(("de", "en")):
            lines = (f"{pair[i]}\n" for pair in pairs[start : start + count])
            (folder / f"{name}.{language}").write_text("".join(lines))
        start += count
    return folder


def train(home: Path, *changes: str) -> Path:
    """Write a corpus and train a run on it, both in `home`."""
    corpus = write_corpus(home / "corpus", train=60, validation=5, test=11, max_chars=24)
    return sightline.train(None, [*SMALL, *changes, f"data.source={corpus}", f"out={home / 'run'}"], quiet=True).folder
