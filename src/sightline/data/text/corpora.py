"""Parallel text: sentences in one language beside the same in another.

It is read from two aligned files (train.de, train.en), from a tab-separated file, or from a folder with training,
validation and test sets of either form; any of them may be packed by gzip.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import SightlineError, check_fraction, check_int
from . import number_words
from .lines import read_lines

PAD, BOS, EOS, UNK = range(4)
"""The first ids of every vocabulary: filling, the beginning and the end of a sentence, and what is unknown."""
NUMBERS = "numbers"
"""The name of the pair that needs no download."""
TABLES = (".tsv", ".txt", ".tab")
NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""What the files of a folder begin with."""


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    dropped: int = 0
    """Pairs that were left out because one side of them was empty."""

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise SightlineError(
                f"there must be a translation for each sentence, got {len(self.source):,} and {len(self.target):,}"
            )
        if not self.source:
            raise SightlineError("a set must hold at least one pair of sentences that are not empty, got none")

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Sequence[int]) -> "Pairs":
        """These pairs, in this order."""
        return Pairs(tuple(self.source[i] for i in indices), tuple(self.target[i] for i in indices))

    def digest(self) -> str:
        """The same for the same sentences in the same order."""
        both = "\n".join(itertools.chain(self.source, ("",), self.target))
        return hashlib.sha256(both.encode()).hexdigest()


@dataclass(frozen=True)
class TextSplits:
    """A corpus: what to learn from, and where there is, what to choose and to judge by."""

    train: Pairs
    validation: Pairs | None = None
    test: Pairs | None = None


def load(
    source: str | Path,
    *,
    languages: tuple[str, str] = ("de", "en"),
    columns: tuple[int, int] = (1, 2),
    header: bool = False,
) -> TextSplits:
    """A corpus by the path of a folder, of a tab-separated file, or of two aligned files less their endings.

    languages: the endings of aligned files, from and to; columns: where the two stand in a tab-separated file, counted
    from 1; header: whether its first line names them. `numbers` is a pair that needs no file.
    """
    if str(source) == NUMBERS:
        return number_splits()
    path = Path(source).expanduser()
    if not path.is_dir():
        return TextSplits(_read(path, languages, columns, header))
    found = {part: _find(path, part, languages) for part in NAMES}
    if found["train"] is None:
        raise SightlineError(
            f"a folder of text must hold train.{languages[0]} and train.{languages[1]}, or train.tsv, got neither "
            f"in {path}; the path of one file is taken too"
        )
    return TextSplits(
        **{part: _read(stem, languages, columns, header) for part, stem in found.items() if stem is not None}
    )


def files_of(source: str | Path, languages: tuple[str, str] = ("de", "en")) -> dict[str, frozenset[Path]]:
    """The files that each part is read from, links followed; none where there are none."""
    path = Path(source).expanduser()
    stems = {part: _find(path, part, languages) for part in NAMES} if path.is_dir() else {"train": path}
    return {part: _files(stem, languages) for part, stem in stems.items() if stem is not None}


def _files(path: Path, languages: tuple[str, str]) -> frozenset[Path]:
    sides = [path] if path.is_file() else [_one_of(path, language) for language in languages]
    return frozenset(side.resolve() for side in sides if side is not None)


def number_splits() -> TextSplits:
    """German number words and the English ones: 6,000 to learn from, 300 to choose by and 500 to judge by."""
    german, english = number_words.pairs(6800)
    every = Pairs(german, english)
    return TextSplits(every.take(range(800, 6800)), validation=every.take(range(300)), test=every.take(range(300, 800)))


def split(pairs: Pairs, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """The rest and the held-out share, the same for the same seed; no target sentence stands on both sides."""
    check_fraction(share=share)
    check_int(0, seed=seed)
    unique = {text: i for i, text in enumerate(dict.fromkeys(map(_plain, pairs.target)))}
    if len(unique) < 2:
        raise SightlineError(f"target must have at least 2 different sentences to be divided, got {len(unique)}")
    count = min(max(round(share * len(unique)), 1), len(unique) - 1)
    held = np.zeros(len(unique), dtype=bool)
    held[np.random.default_rng(seed).permutation(len(unique))[:count]] = True
    sides: tuple[list[int], list[int]] = ([], [])
    for i, text in enumerate(pairs.target):
        sides[int(held[unique[_plain(text)]])].append(i)
    return pairs.take(sides[0]), pairs.take(sides[1])


def joined(pairs: Pairs, more: Iterable[Pairs], held_out: Iterable[Pairs]) -> Pairs:
    """With more pairs after them, less those whose target sentence is held out, to choose or to judge by."""
    held = {_plain(text) for one in held_out for text in one.target}
    source, target, dropped = [*pairs.source], [*pairs.target], pairs.dropped
    for one in more:
        dropped += one.dropped
        kept = [i for i, text in enumerate(one.target) if _plain(text) not in held]
        source += [one.source[i] for i in kept]
        target += [one.target[i] for i in kept]
    return Pairs(tuple(source), tuple(target), dropped)


def _plain(text: str) -> str:
    """What two sentences have in common that differ in case and spaces alone."""
    return " ".join(text.split()).lower()


def _find(folder: Path, part: str, languages: tuple[str, str]) -> Path | None:
    """The file of this part, or the two aligned ones less their endings."""
    for name in NAMES[part]:
        exact, longer = set(), set()
        for path in folder.iterdir():
            plain = path.with_suffix("") if path.suffix == ".gz" else path
            if plain.suffix.removeprefix(".") in languages:
                stem = plain.with_suffix("")
            elif plain.suffix in TABLES:
                stem = path
            else:
                continue
            if plain.stem == name:
                exact.add(stem)
            elif part == "test" and plain.stem.startswith(("test_", "test.", "test-")):
                longer.add(stem)
        for found in (exact, longer):
            if len(found) > 1:
                names = ", ".join(sorted(one.name for one in found))
                raise SightlineError(
                    f"{folder} must hold one {part} set, got {names}; leave one there, and judge by others with "
                    f"sightline evaluate RUN --data FILE"
                )
            if found:
                return found.pop()
    return None


def _read(path: Path, languages: tuple[str, str], columns: tuple[int, int], header: bool) -> Pairs:
    if path.is_file():
        return _complete(_table(path, columns, header), path)
    source, target = (_one_of(path, language) for language in languages)
    if source is None and target is None:
        raise SightlineError(
            f"data must be a folder, a tab-separated file, or two aligned files less their endings .{languages[0]} and "
            f".{languages[1]}, got {str(path)!r}, which is none of them"
        )
    if source is None or target is None:
        lacking = languages[0] if source is None else languages[1]
        raise SightlineError(
            f"{path.name}.{languages[0]} and {path.name}.{languages[1]} must both be there, got no .{lacking} in "
            f"{path.parent}; other languages go by data.languages"
        )
    return _complete(_aligned(source, target), path)


def _one_of(path: Path, language: str) -> Path | None:
    """The file of this language beside a path less its ending."""
    files = (path.with_name(f"{path.name}.{language}{packed}") for packed in ("", ".gz"))
    return next((file for file in files if file.is_file()), None)


def _aligned(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise SightlineError(
            f"{source.name} and {target.name} must have as many lines, for they are read side by side, got "
            f"{len(sides[0]):,} and {len(sides[1]):,} in {source.parent}"
        )
    yield from zip(*sides, strict=True)


def _table(path: Path, columns: tuple[int, int], header: bool) -> Iterator[tuple[str, str]]:
    wanted, first = max(columns), 2 if header else 1
    for number, line in enumerate(read_lines(path)[first - 1 :], first):
        cells = line.split("\t")
        if len(cells) < wanted:
            if not line.strip():
                yield "", ""
                continue
            raise SightlineError(
                f"line {number} of {path} must have at least {wanted} columns, separated by tabs, got {len(cells)}: "
                f"{line[:60]!r}"
            )
        yield cells[columns[0] - 1], cells[columns[1] - 1]


def _complete(pairs: Iterator[tuple[str, str]], path: Path) -> Pairs:
    """Without those that have an empty side."""
    every = [(source.strip(), target.strip()) for source, target in pairs]
    kept = [pair for pair in every if all(pair)]
    if not kept:
        raise SightlineError(f"{path} must hold at least one pair of sentences that are not empty, got none")
    sources, targets = zip(*kept, strict=True)
    return Pairs(sources, targets, dropped=len(every) - len(kept))
