"""Texts with labels, for text classifiers: a tab-separated file, or a folder with several sets."""

from dataclasses import dataclass
from pathlib import Path

from ...errors import check
from ...names import display_path
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


def labeled_files(source: str | Path) -> dict[str, frozenset[Path]]:
    """Resolved files of each split."""
    return {} if str(source) == SENTENCES else source_files(source, ())
