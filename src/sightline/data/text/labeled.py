"""Texts with labels, for text classifiers: a tab-separated file, or a folder with several sets."""

import re
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import SightlineWarning, check
from ...names import display_path, shortened
from ..fetching.catalog import fetch_hint
from .corpora import (
    NUM_GENERATED,
    Corpus,
    TextSplits,
    find_tables,
    generated_splits,
    read_table,
    source_files,
    without_empty,
)
from .generated_sentences import SENTENCES, sentences

MIN_CHECKED = 20
"""Texts of a training set whose labels are checked: fewer may each have a class of its own."""
MIN_ROWS = 4
"""Rows from which on swapped columns are found."""
MAX_UNIQUE = 0.9
"""Share of labels that occur once from which on they are likely to be texts."""
HEADER_WORD = re.compile(
    r"texts?|sentences?|documents?|questions?|reviews?|comments?|messages?|tweets?|utterances?|titles?|content"
    r"|labels?|class(es)?|categor(y|ies)|targets?|topics?|intents?|sentiments?|emotions?|languages?|tags?",
    re.IGNORECASE,
)
"""Names of columns."""


@dataclass(frozen=True)
class LabeledText(Corpus):
    """Texts and the label of each."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    num_dropped: int = 0
    """Rows skipped because the text or the label is empty."""

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        return self.texts, self.labels

    @property
    def keys(self) -> tuple[str, ...]:
        return self.texts

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels in alphabetical order."""
        return tuple(sorted(set(self.labels)))


def load_labeled(
    source: str | Path, *, columns: tuple[int, int] = (1, 2), header: bool = False
) -> TextSplits[LabeledText]:
    """Load labeled texts from a tab-separated file, or from a folder with train.tsv and perhaps val and test.

    `columns` are those of the text and of the label, counted from 1. `header` skips the first line. The name
    `sentences` loads generated sentences with their topics.
    """
    if str(source) == SENTENCES:
        return generated_splits(LabeledText(*sentences(NUM_GENERATED)))
    path = Path(source).expanduser()
    tables = find_tables(path)
    rule = "labeled text must be a tab-separated file, or a folder with train.tsv"
    check(
        path.is_dir() or path.is_file(), f"{rule}, got {display_path(path)!r}, which does not exist{fetch_hint(path)}"
    )
    check("train" in tables, f"{rule}, got {display_path(path)!r}, which has none")
    return TextSplits(**{split: _read_labeled(table, columns, header) for split, table in tables.items()})


def _read_labeled(path: Path, columns: tuple[int, int], header: bool) -> LabeledText:
    """The rows of a table. Without `header`, a first line of two names of columns is skipped with a warning."""
    rows = LabeledText(*without_empty(read_table(path, columns, header), path, "text with a label"))
    first = rows.texts[0], rows.labels[0]
    if header or not all(map(HEADER_WORD.fullmatch, first)) or rows.labels.count(first[1]) > 1 or len(rows) == 1:
        return rows
    found = f"the first line of {display_path(path)} looks like a header, {first[0]!r} and {first[1]!r}; it is skipped"
    warnings.warn(found, SightlineWarning, stacklevel=3)
    return replace(rows, texts=rows.texts[1:], labels=rows.labels[1:])


def has_unique_labels(text: LabeledText) -> bool:
    """Whether nearly every label occurs once."""
    return sum(count == 1 for count in Counter(text.labels).values()) >= MAX_UNIQUE * len(text)


def check_columns(text: LabeledText, source: str | Path, columns: tuple[int, int], fix: str) -> None:
    """The column of labels must not be that of texts: where labels hardly repeat, texts must be texts.

    Texts that repeat are likely to be labels, and numbers to be those of lines, below a header.
    """
    is_other = 2 * len(set(text.texts)) <= len(text) or sum(not x.isdecimal() for x in text.texts) <= 1
    is_swapped = len(text) >= MIN_ROWS and has_unique_labels(text) and is_other
    rule = f"column {columns[0]} of {display_path(source)} must be the text and column {columns[1]} its label"
    got = f"got {len(text.classes):,} labels of {len(text):,} texts, such as {shortened(text.labels[-1], 40)!r}"
    check(not is_swapped, f"{rule}, {got}; {fix}")


def check_training_labels(text: LabeledText, source: str | Path, columns: tuple[int, int]) -> None:
    """The labels of a training set must repeat."""
    fix = f"if the label is in another column, set data.columns, such as [{columns[1]},{columns[0]}]"
    check_columns(text, source, columns, fix)
    is_doubtful = len(text) >= MIN_CHECKED and has_unique_labels(text)
    got = f"got {len(text.classes):,} labels of {len(text):,} texts in {display_path(source)}"
    example = f"such as {shortened(text.labels[-1], 40)!r}"
    check(not is_doubtful, f"labels must repeat, {got}, {example}; {fix}")


def labeled_files(source: str | Path) -> dict[str, frozenset[Path]]:
    """Resolved files of each split."""
    return {} if str(source) == SENTENCES else source_files(source, ())
