"""Texts with labels, for text classifiers: a tab-separated file, or a folder with several sets."""

import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import check
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
HEADER_WORD = re.compile(
    r"texts?|sentences?|documents?|questions?|reviews?|comments?|messages?|tweets?|utterances?|titles?|content|input|x"
    r"|labels?|class(es)?|categor(y|ies)|targets?|topics?|intents?|sentiments?|emotions?|languages?|tags?|output|y",
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
    return TextSplits(
        **{
            split: LabeledText(*without_empty(read_table(table, columns, header), table, "text with a label"))
            for split, table in tables.items()
        }
    )


def check_labels(text: LabeledText, source: str) -> str:
    """A training set must have labels that repeat; returns a warning if its first line looks like a header, else ""."""
    count, different = len(text), len(text.classes)
    found = f"{different:,} different ones of {count:,} texts in {source}, such as {shortened(text.labels[-1], 40)!r}"
    fix = "if the label is in the first column, set data.columns=[2,1]"
    is_plausible = count < MIN_CHECKED or 2 * different <= count
    check(is_plausible, f"labels must repeat, at most half of them can be different, got {found}; {fix}")
    is_header = HEADER_WORD.fullmatch(text.texts[0]) and HEADER_WORD.fullmatch(text.labels[0])
    if not is_header or text.labels.count(text.labels[0]) > 1:
        return ""
    cells = f"{text.texts[0]!r} and {text.labels[0]!r}"
    return f"the first line of {source} looks like a header, {cells}; set data.header=true to skip it"


def labeled_files(source: str | Path) -> dict[str, frozenset[Path]]:
    """Resolved files of each split."""
    return {} if str(source) == SENTENCES else source_files(source, ())
