"""Text corpora: parallel text for translation and monolingual text for language models.

Parallel text is read from two aligned files (train.de, train.en), from a tab-separated file, or from a folder with
training, validation and test sets in either form. Monolingual text is read from a text file with one sentence per
line, or from a folder of such files. All files can be compressed with gzip.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar

import numpy as np

from ... import limits, seeds
from ...errors import SightlineError, check_fraction, check_int
from ...names import display_path
from . import number_words
from .reading import iter_lines, read_lines

NUMBERS = "numbers"
"""Name of the built-in corpus."""
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""File names of each split of a folder, without suffixes."""
_TABLE_SUFFIXES = (".tsv", ".txt", ".tab")


@dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    num_dropped: int = 0
    """Pairs skipped because one side is empty."""

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise SightlineError(
                f"target must have one sentence for each of {len(self.source):,} in source, got {len(self.target):,}"
            )
        if not self.source:
            raise SightlineError("parallel text must have at least one pair of sentences, got none")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def split_keys(self) -> tuple[str, ...]:
        """Texts that decide which pairs stay together in a split: the target sentences."""
        return self.target

    def take(self, indices: Sequence[int]) -> Self:
        """The pairs at these indices."""
        return type(self)(tuple(self.source[i] for i in indices), tuple(self.target[i] for i in indices))

    def digest(self) -> str:
        """SHA-256 of all sentences in their order."""
        return _digest(itertools.chain(self.source, ("",), self.target))


@dataclass(frozen=True)
class MonolingualText:
    """Sentences of one language."""

    sentences: tuple[str, ...]
    num_dropped: int = 0
    """Empty lines skipped."""

    def __post_init__(self) -> None:
        if not self.sentences:
            raise SightlineError("monolingual text must have at least one sentence, got none")

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def split_keys(self) -> tuple[str, ...]:
        """Texts that decide which sentences stay together in a split: the sentences."""
        return self.sentences

    def take(self, indices: Sequence[int]) -> Self:
        """The sentences at these indices."""
        return type(self)(tuple(self.sentences[i] for i in indices))

    def digest(self) -> str:
        """SHA-256 of all sentences in their order."""
        return _digest(self.sentences)


Corpus = TypeVar("Corpus", ParallelText, MonolingualText)


@dataclass(frozen=True)
class TextSplits(Generic[Corpus]):
    """Training, validation and test set of a corpus."""

    train: Corpus
    validation: Corpus | None = None
    test: Corpus | None = None


def load_parallel(
    source: str | Path,
    *,
    languages: tuple[str, str] = ("de", "en"),
    columns: tuple[int, int] = (1, 2),
    header: bool = False,
) -> TextSplits[ParallelText]:
    """Load parallel text from a folder, a tab-separated file, or two aligned files.

    Args:
        source: Folder, tab-separated file, aligned files without their language suffixes, or the name `numbers`.
        languages: Source and target language, the suffixes of aligned files.
        columns: Columns of the source and target language in a tab-separated file, counted from 1.
        header: Skip the first line of a tab-separated file.
    """
    if str(source) == NUMBERS:
        return number_splits()
    path = Path(source).expanduser()
    if not path.is_dir():
        return TextSplits(_read_parallel(path, languages, columns, header))
    stems = _find_parallel(path, languages)
    if "train" not in stems:
        raise SightlineError(
            f"a folder of parallel text must contain train.{languages[0]} and train.{languages[1]}, or train.tsv, got "
            f"neither in {display_path(path)}; or give the path of one file"
        )
    return TextSplits(**{split: _read_parallel(stem, languages, columns, header) for split, stem in stems.items()})


def load_monolingual(source: str | Path) -> TextSplits[MonolingualText]:
    """Load monolingual text, one sentence per line, from a file or from the .txt and .txt.gz files of a folder.

    Files of a folder named train, validation (or valid, val, dev) or test belong to that split, also with a suffix
    such as train-01.txt. Without files named train, all other files are the training set. The name `numbers` loads
    English number words.
    """
    if str(source) == NUMBERS:
        return TextSplits(
            **{split: MonolingualText(text.target) for split, text in vars(number_splits()).items() if text is not None}
        )
    path = Path(source).expanduser()
    if not path.is_dir():
        if not path.is_file():
            raise SightlineError(
                f"monolingual text must be a text file or a folder of .txt files, got {display_path(path)!r}, which "
                f"does not exist"
            )
        return TextSplits(_read_monolingual([path], path))
    files = _find_monolingual(path)
    if "train" not in files:
        raise SightlineError(
            f"a folder of monolingual text must contain .txt or .txt.gz files for training, got none in "
            f"{display_path(path)}"
        )
    return TextSplits(**{split: _read_monolingual(paths, path) for split, paths in files.items()})


def source_files(source: str | Path, languages: tuple[str, str] = ("de", "en")) -> dict[str, frozenset[Path]]:
    """Resolved files of each split of parallel text. Empty sets if no files exist."""
    path = Path(source).expanduser()
    result = {}
    for split, stem in (_find_parallel(path, languages) if path.is_dir() else {"train": path}).items():
        files = [stem] if stem.is_file() else [_language_file(stem, language) for language in languages]
        result[split] = frozenset(file.resolve() for file in files if file is not None)
    return result


def number_splits() -> TextSplits[ParallelText]:
    """German and English number words: 6,000 pairs for training, 300 for validation, 500 for test."""
    german, english = number_words.pairs(6800)
    pairs = ParallelText(german, english)
    return TextSplits(pairs.take(range(800, 6800)), pairs.take(range(300)), pairs.take(range(300, 800)))


def split(corpus: Corpus, fraction: float, seed: int) -> tuple[Corpus, Corpus]:
    """Split a corpus at random into the rest and a held-out fraction.

    Pairs with the same target sentence, or equal sentences, are never in both. Case and spaces are ignored.
    """
    check_fraction(fraction=fraction)
    check_int(0, seed=seed)
    keys = list(map(_normalized, corpus.split_keys))
    unique = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    if len(unique) < 2:
        raise SightlineError(f"a corpus must have at least 2 different sentences to be split, got {len(unique)}")
    count = min(max(round(fraction * len(unique)), 1), len(unique) - 1)
    is_held_out = np.zeros(len(unique), dtype=bool)
    is_held_out[seeds.make_generator(seed, seeds.DATA).permutation(len(unique))[:count]] = True
    sides: tuple[list[int], list[int]] = ([], [])
    for i, key in enumerate(keys):
        sides[int(is_held_out[unique[key]])].append(i)
    return corpus.take(sides[0]), corpus.take(sides[1])


def extend_training(
    train: ParallelText, extra: Iterable[ParallelText], held_out: Iterable[ParallelText]
) -> ParallelText:
    """Append extra pairs to the training pairs, except those with a target sentence of a held-out set."""
    excluded = {_normalized(text) for pairs in held_out for text in pairs.target}
    source, target, num_dropped = [*train.source], [*train.target], train.num_dropped
    for pairs in extra:
        num_dropped += pairs.num_dropped
        kept = [i for i, text in enumerate(pairs.target) if _normalized(text) not in excluded]
        source += [pairs.source[i] for i in kept]
        target += [pairs.target[i] for i in kept]
    return ParallelText(tuple(source), tuple(target), num_dropped)


def _digest(sentences: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sentences).encode()).hexdigest()


def _normalized(text: str) -> str:
    """Lowercase with single spaces."""
    return " ".join(text.split()).lower()


def _without_gz(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".gz" else path


def _find_parallel(folder: Path, languages: tuple[str, str]) -> dict[str, Path]:
    """The table of each split, or its aligned files without their suffixes. Exact names precede names with a suffix."""
    exact: dict[str, set[Path]] = {}
    prefixed: dict[str, set[Path]] = {}
    for path in folder.iterdir():
        plain = _without_gz(path)
        if plain.suffix.removeprefix(".") in languages:
            stem = plain.with_suffix("")
        elif plain.suffix in _TABLE_SUFFIXES:
            stem = path
        else:
            continue
        if split := _split_of(plain.stem):
            (exact if plain.stem in SPLIT_NAMES[split] else prefixed).setdefault(split, set()).add(stem)
    result = {}
    for split, stems in (prefixed | exact).items():
        if len(stems) > 1:
            names = ", ".join(sorted(stem.name for stem in stems))
            raise SightlineError(
                f"{display_path(folder)} must contain one {split} set, got {names}; keep one and evaluate on the "
                f"others with sightline evaluate RUN --data FILE"
            )
        result[split] = stems.pop()
    return result


def _find_monolingual(folder: Path) -> dict[str, list[Path]]:
    """Text files of each split, in the order of their names."""
    paths = sorted(path for path in folder.iterdir() if _without_gz(path).suffix == ".txt" and path.is_file())
    if len(paths) > limits.MAX_TEXT_FILES:
        raise SightlineError(
            f"{display_path(folder)} must contain at most {limits.MAX_TEXT_FILES:,} text files, got {len(paths):,}"
        )
    files: dict[str, list[Path]] = {}
    for path in paths:
        files.setdefault(_split_of(_without_gz(path).stem), []).append(path)
    other = files.pop("", [])
    if "train" not in files and other:
        files["train"] = other
    return files


def _split_of(stem: str) -> str:
    """The split of a file name such as train, train-01 or test_2016; "" for other names."""
    for split, names in SPLIT_NAMES.items():
        if any(stem == name or stem.startswith((f"{name}_", f"{name}.", f"{name}-")) for name in names):
            return split
    return ""


def _read_parallel(path: Path, languages: tuple[str, str], columns: tuple[int, int], header: bool) -> ParallelText:
    if path.is_file():
        return _without_empty(_read_table(path, columns, header), path)
    source, target = (_language_file(path, language) for language in languages)
    if source is None and target is None:
        raise SightlineError(
            f"data must be a folder, a tab-separated file, or two aligned files without their suffixes .{languages[0]} "
            f"and .{languages[1]}, got {display_path(path)!r}, which is none of them"
        )
    if source is None or target is None:
        missing = languages[0] if source is None else languages[1]
        raise SightlineError(
            f"{path.name}.{languages[0]} and {path.name}.{languages[1]} must both exist, got no .{missing} in "
            f"{display_path(path.parent)}; set data.languages for other languages"
        )
    return _without_empty(_read_aligned(source, target), path)


def _language_file(path: Path, language: str) -> Path | None:
    """The file of a language for a path without suffixes."""
    files = (path.with_name(f"{path.name}.{language}{suffix}") for suffix in ("", ".gz"))
    return next((file for file in files if file.is_file()), None)


def _read_aligned(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise SightlineError(
            f"{source.name} and {target.name} must have the same number of lines, got {len(sides[0]):,} and "
            f"{len(sides[1]):,} in {display_path(source.parent)}"
        )
    yield from zip(*sides, strict=True)


def _read_table(path: Path, columns: tuple[int, int], header: bool) -> Iterator[tuple[str, str]]:
    num_columns = max(columns)
    for number, line in enumerate(iter_lines(path), 1):
        if header and number == 1:
            continue
        cells = line.split("\t")
        if len(cells) >= num_columns:
            yield cells[columns[0] - 1], cells[columns[1] - 1]
        elif line.strip():
            raise SightlineError(
                f"line {number} of {display_path(path)} must have at least {num_columns} columns separated by tabs, "
                f"got {len(cells)}: {line[:60]!r}"
            )
        else:
            yield "", ""


def _without_empty(pairs: Iterator[tuple[str, str]], path: Path) -> ParallelText:
    """Pairs without those that have an empty side."""
    stripped = [(source.strip(), target.strip()) for source, target in pairs]
    kept = [pair for pair in stripped if all(pair)]
    if not kept:
        raise SightlineError(f"{display_path(path)} must contain at least one pair of sentences, got none")
    sources, targets = zip(*kept, strict=True)
    return ParallelText(sources, targets, num_dropped=len(stripped) - len(kept))


def _read_monolingual(paths: Sequence[Path], source: Path) -> MonolingualText:
    """Sentences of all files."""
    sentences: list[str] = []
    num_lines = num_chars = 0
    for line in itertools.chain.from_iterable(map(iter_lines, paths)):
        num_lines += 1
        num_chars += len(line)
        if num_chars > limits.MAX_CORPUS_CHARS:
            raise SightlineError(
                f"{display_path(source)} must have at most {limits.MAX_CORPUS_CHARS:,} characters in a split, got more"
            )
        if line := line.strip():
            sentences.append(line)
    if not sentences:
        raise SightlineError(f"{display_path(source)} must contain at least one sentence, got none")
    return MonolingualText(tuple(sentences), num_dropped=num_lines - len(sentences))
