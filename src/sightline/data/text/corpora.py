"""Text corpora: parallel text for translation and monolingual text for language models.

Parallel text is read from two aligned files (train.de, train.en), from a tab-separated file, or from a folder with
training, validation and test sets in either form. Monolingual text is read from a text file with one sentence per
line, or from a folder of such files. All files can be compressed with gzip.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np

from ... import limits, seeds
from ...errors import SightlineError, check, check_fraction, check_int
from ...files import digest
from ...names import display_path
from ..fetching.catalog import fetch_hint
from . import number_words
from .generated_sentences import SENTENCES, sentences
from .reading import iter_lines

NUMBERS = "numbers"
"""Name of the built-in parallel corpus."""
NUM_GENERATED = 6800
"""Sentences of a built-in corpus."""
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""File names of each split of a folder, without suffixes."""
_TABLE_SUFFIXES = (".tsv", ".txt", ".tab")


@dataclass(frozen=True)
class Corpus(ABC):
    """Sentences of one language, or of two languages with each sentence beside its translation."""

    @property
    @abstractmethod
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The sentences of each language."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Sentences that stay together in a split where they are equal."""
        return self.sides[-1]

    def __post_init__(self) -> None:
        counts = [len(side) for side in self.sides]
        is_valid = counts[0] and len({*counts}) == 1
        check(is_valid, f"a corpus must have sentences, as many in each language, got {counts}")

    def __len__(self) -> int:
        return len(self.sides[0])

    def take(self, indices: Iterable[int]) -> Self:
        """The sentences at these indices."""
        return type(self)(*(tuple(side[i] for i in indices) for side in self.sides))

    def digest(self) -> str:
        """SHA-256 of all sentences in their order."""
        return digest("\n\n".join("\n".join(side) for side in self.sides).encode())


@dataclass(frozen=True)
class ParallelText(Corpus):
    """Sentences and their translations."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    num_dropped: int = 0
    """Pairs skipped because one side is empty."""

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        return self.source, self.target


@dataclass(frozen=True)
class MonolingualText(Corpus):
    """Sentences of one language."""

    sentences: tuple[str, ...]
    num_dropped: int = 0
    """Empty lines skipped."""

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        return (self.sentences,)


AnyCorpus = TypeVar("AnyCorpus", bound=Corpus)


@dataclass(frozen=True)
class TextSplits(Generic[AnyCorpus]):
    """Training, validation and test set of a corpus."""

    train: AnyCorpus
    validation: AnyCorpus | None = None
    test: AnyCorpus | None = None
    tokenized: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Token ids that were computed from the corpus, by the options of the tokenizer."""


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
        return generated_splits(ParallelText(*number_words.pairs(NUM_GENERATED)))
    path = Path(source).expanduser()
    stems = find_tables(path, languages)
    files = f"train.{languages[0]} and train.{languages[1]}, or train.tsv"
    fix = f"got neither in {display_path(path)}; or give the path of one file"
    check("train" in stems, f"a folder of parallel text must contain {files}, {fix}")
    return TextSplits(**{split: _read_parallel(stem, languages, columns, header) for split, stem in stems.items()})


def load_monolingual(source: str | Path) -> TextSplits[MonolingualText]:
    """Load monolingual text, one sentence per line, from a file or from the .txt and .txt.gz files of a folder.

    Files of a folder named train, validation (or valid, val, dev) or test belong to that split, also with a suffix
    such as train-01.txt. Without files named train, all other files are the training set. The name `numbers` loads
    English number words, the name `sentences` those of a small grammar.
    """
    if str(source) == NUMBERS:
        return generated_splits(MonolingualText(number_words.pairs(NUM_GENERATED)[1]))
    if str(source) == SENTENCES:
        return generated_splits(MonolingualText(sentences(NUM_GENERATED)[0]))
    path = Path(source).expanduser()
    rule = "monolingual text must be a text file or a folder of .txt files"
    check(path.exists(), f"{rule}, got {display_path(path)!r}, which does not exist")
    files = _find_monolingual(path) if path.is_dir() else {"train": [path]}
    rule = "a folder of monolingual text must contain .txt or .txt.gz files for training"
    check("train" in files, f"{rule}, got none in {display_path(path)}")
    return TextSplits(**{split: _read_monolingual(paths, path) for split, paths in files.items()})


def monolingual_files(source: str | Path) -> dict[str, frozenset[Path]]:
    """Resolved files of each split of monolingual text."""
    path = Path(source).expanduser()
    files = _find_monolingual(path) if path.is_dir() else {"train": [path]} if path.is_file() else {}
    return {split: frozenset(file.resolve() for file in paths) for split, paths in files.items()}


def source_files(source: str | Path, languages: tuple[str, ...] = ("de", "en")) -> dict[str, frozenset[Path]]:
    """Resolved files of each split of parallel text. Empty sets if no files exist."""
    result = {}
    for split, stem in find_tables(Path(source).expanduser(), languages).items():
        files = [stem] if stem.is_file() else [_language_file(stem, language) for language in languages]
        result[split] = frozenset(file.resolve() for file in files if file is not None)
    return result


def generated_splits(corpus: AnyCorpus) -> TextSplits[AnyCorpus]:
    """A generated corpus: 300 sentences for validation, 500 for test, the others for training."""
    train, validation, test = (corpus.take(range(*ends)) for ends in ((800, len(corpus)), (0, 300), (300, 800)))
    return TextSplits(train, validation, test)


def split(corpus: AnyCorpus, fraction: float, seed: int) -> tuple[AnyCorpus, AnyCorpus]:
    """Split a corpus at random into the rest and a held-out fraction.

    Pairs with the same target sentence, or equal sentences, are never in both. Case and spaces are ignored.
    """
    check_fraction(fraction=fraction)
    check_int(0, seed=seed)
    keys = list(map(normalized, corpus.keys))
    unique = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    check(len(unique) > 1, f"a corpus must have at least 2 different sentences to be split, got {len(unique)}")
    count = min(max(round(fraction * len(unique)), 1), len(unique) - 1)
    is_held_out = np.zeros(len(unique), dtype=bool)
    is_held_out[seeds.make_generator(seed, seeds.DATA).permutation(len(unique))[:count]] = True
    held_out = is_held_out[[unique[key] for key in keys]]
    return corpus.take(np.flatnonzero(~held_out).tolist()), corpus.take(np.flatnonzero(held_out).tolist())


def extend_training(
    train: ParallelText, extra: Iterable[ParallelText], held_out: Iterable[ParallelText]
) -> ParallelText:
    """Append extra pairs to the training pairs, except those with a target sentence of a held-out set."""
    excluded = {normalized(text) for pairs in held_out for text in pairs.target}
    rows, num_dropped = list(zip(*train.sides, strict=True)), train.num_dropped
    for pairs in extra:
        num_dropped += pairs.num_dropped
        rows += [row for row in zip(*pairs.sides, strict=True) if normalized(row[1]) not in excluded]
    source, target = zip(*rows, strict=True)
    return ParallelText(source, target, num_dropped)


def normalized(text: str) -> str:
    """Lowercase with single spaces."""
    return " ".join(text.split()).lower()


def _without_gz(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".gz" else path


def find_tables(path: Path, languages: tuple[str, ...] = ()) -> dict[str, Path]:
    """The table of each split, or its aligned files without their suffixes.

    In a folder, exact names precede names with a suffix. A path that is not a folder is the training set.
    """
    if not path.is_dir():
        return {"train": path}
    exact: dict[str, set[Path]] = {}
    prefixed: dict[str, set[Path]] = {}
    for file in path.iterdir():
        plain = _without_gz(file)
        is_aligned = plain.suffix.removeprefix(".") in languages
        if (is_aligned or plain.suffix in _TABLE_SUFFIXES) and (split := _split_of(plain.stem)):
            found = exact if plain.stem in SPLIT_NAMES[split] else prefixed
            found.setdefault(split, set()).add(plain.with_suffix("") if is_aligned else file)
    for split, stems in (prefixed | exact).items():
        names = ", ".join(sorted(stem.name for stem in stems))
        fix = "keep one and evaluate on the others with sightline evaluate RUN --data FILE"
        check(len(stems) == 1, f"{display_path(path)} must contain one {split} set, got {names}; {fix}")
    return {split: stems.pop() for split, stems in (prefixed | exact).items()}


def _find_monolingual(folder: Path) -> dict[str, list[Path]]:
    """Text files of each split, in the order of their names."""
    paths = sorted(path for path in folder.iterdir() if _without_gz(path).suffix == ".txt" and path.is_file())
    maximum, name = limits.MAX_TEXT_FILES, display_path(folder)
    check(len(paths) <= maximum, f"{name} must contain at most {maximum:,} text files, got {len(paths):,}")
    files: dict[str, list[Path]] = {}
    for path in paths:
        files.setdefault(_split_of(_without_gz(path).stem), []).append(path)
    other = files.pop("", [])
    return files if "train" in files or not other else {**files, "train": other}


def _split_of(stem: str) -> str:
    """The split of a file name such as train, train-01 or test_2016; "" for other names."""
    for split, names in SPLIT_NAMES.items():
        if any(stem == name or stem.startswith((f"{name}_", f"{name}.", f"{name}-")) for name in names):
            return split
    return ""


def _read_parallel(path: Path, languages: tuple[str, str], columns: tuple[int, int], header: bool) -> ParallelText:
    rows = read_table(path, columns, header) if path.is_file() else _read_aligned(path, languages)
    return ParallelText(*without_empty(rows, path, "pair of sentences"))


def _read_aligned(path: Path, languages: tuple[str, str]) -> Iterable[tuple[str, ...]]:
    files = [_language_file(path, language) for language in languages]
    names, folder = " and ".join(f"{path.name}.{language}" for language in languages), display_path(path.parent)
    suffixes = " and ".join(f".{language}" for language in languages)
    rule = f"data must be a folder, a tab-separated file, or two aligned files without their suffixes {suffixes}"
    check(any(files), f"{rule}, got {display_path(path)!r}, which is none of them{fetch_hint(path)}")
    for file, language in zip(files, languages, strict=True):
        missing = f"no .{language} in {folder}; set data.languages for other languages"
        check(file is not None, f"{names} must both exist, got {missing}")
    sides = [list(iter_lines(file)) for file in files if file is not None]
    counts = " and ".join(f"{len(side):,}" for side in sides)
    check(len(sides[0]) == len(sides[1]), f"{names} must have the same number of lines, got {counts} in {folder}")
    return zip(*sides, strict=True)


def _language_file(path: Path, language: str) -> Path | None:
    """The file of a language for a path without suffixes."""
    files = (path.with_name(f"{path.name}.{language}{suffix}") for suffix in ("", ".gz"))
    return next((file for file in files if file.is_file()), None)


def read_table(path: Path, columns: tuple[int, int], header: bool) -> Iterator[tuple[str, ...]]:
    """The cells of two columns, counted from 1, of every line of a tab-separated file."""
    num_columns = max(columns)
    for number, line in enumerate(iter_lines(path), 1):
        if header and number == 1:
            continue
        cells = line.split("\t") if line.strip() else [""] * num_columns
        if len(cells) < num_columns:
            rule = f"line {number} of {display_path(path)} must have at least {num_columns} columns separated by tabs"
            raise SightlineError(f"{rule}, got {len(cells)}: {line[:60]!r}")
        yield cells[columns[0] - 1], cells[columns[1] - 1]


def _read_monolingual(paths: Sequence[Path], source: Path) -> MonolingualText:
    """Sentences of all files."""
    return MonolingualText(*without_empty(_iter_sentences(paths, source), source, "sentence"))


def _iter_sentences(paths: Sequence[Path], source: Path) -> Iterator[tuple[str, ...]]:
    num_chars, maximum, name = 0, limits.MAX_CORPUS_CHARS, display_path(source)
    for line in itertools.chain.from_iterable(map(iter_lines, paths)):
        num_chars += len(line)
        if num_chars > maximum:
            raise SightlineError(f"{name} must have at most {maximum:,} characters in a split, got more")
        yield (line,)


def without_empty(rows: Iterable[tuple[str, ...]], path: Path, kind: str) -> tuple[Any, ...]:
    """The sentences of each language, and the number of rows that were dropped because a side is empty."""
    stripped = [tuple(map(str.strip, row)) for row in rows]
    kept = [row for row in stripped if all(row)]
    check(kept, f"{display_path(path)} must contain at least one {kind}, got none")
    return *zip(*kept, strict=True), len(stripped) - len(kept)
