"""Prepare a data set for text classification: in which language, English, German or Korean, a Tatoeba sentence is.

    python -m benchmarks.languages data/de_en.tsv data/ko_en.tsv.gz data/languages

The first file has German and English in its first two columns (`sightline fetch tatoeba`); the second has Korean,
English and the source, of which the rows of source tatoeba are used. It writes train.tsv, val.tsv and test.tsv with
text and label, and texts/train.txt and texts/val.txt with the texts alone, to pretrain a masked language model on.
"""

import argparse
import random
from pathlib import Path

from sightline.data.text.reading import iter_lines

PER_LANGUAGE = 3500
"""Sentences of each language."""
SIZES = {"val": 500, "test": 2000}
"""Sentences of each held-out set."""


def main() -> None:
    """Read both files and write the sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("german", type=Path)
    parser.add_argument("korean", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    pairs = [line.split("\t") for line in iter_lines(arguments.german)]
    korean = [line.split("\t") for line in iter_lines(arguments.korean)]
    texts = {
        "German": [row[0] for row in pairs],
        "English": [row[1] for row in pairs],
        "Korean": [row[0] for row in korean if row[2] == "tatoeba"],
    }
    write_sets(texts, arguments.out)


def write_sets(texts: dict[str, list[str]], out: Path, *, per_language: int = PER_LANGUAGE) -> None:
    """Write a random sample of different sentences of each language, divided into sets."""
    generator, rows = random.Random(0), list[tuple[str, str]]()
    for label, sentences in texts.items():
        different = sorted({sentence.strip() for sentence in sentences if sentence.strip()})
        rows += [(text, label) for text in generator.sample(different, min(per_language, len(different)))]
    generator.shuffle(rows)
    (out / "texts").mkdir(parents=True, exist_ok=True)
    for name, size in {**SIZES, "train": len(rows)}.items():
        size = min(size, len(rows) // 4) if name != "train" else size
        part, rows = rows[:size], rows[size:]
        (out / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in part), encoding="utf-8")
        if name != "test":
            (out / "texts" / f"{name}.txt").write_text("".join(f"{text}\n" for text, _ in part), encoding="utf-8")
        print(f"{out / name}.tsv: {len(part):,} texts")


if __name__ == "__main__":
    main()
