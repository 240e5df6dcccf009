"""Labeled texts for a classifier: tab-separated files, and what their owner should know about them."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..data.images.checks import Finding
from ..data.text.labeled import HEADER_WORD, LabeledText, load_labeled
from ..errors import SightlineError, SightlineWarning, check
from ..names import display_path, shortened

COLUMNS = (1, 2)
"""The columns of texts and labels, counted from 1."""
TABLE_SUFFIXES = (".tsv", ".tsv.gz")
OTHER_SUFFIXES = (".csv", ".txt", ".json", ".jsonl", ".xlsx", ".parquet")
"""Files that may hold texts and are not read."""
MIN_ROWS = 4
"""Rows from which on the columns are checked."""
MAX_UNIQUE = 0.9
"""Share of labels that occur once from which on they are likely to be texts, if they are longer than the texts."""


def is_table(path: str | Path) -> bool:
    """Whether a path is that of a tab-separated file; an error if it is another file that may hold texts."""
    name = str(path).lower()
    if not Path(path).expanduser().is_file():
        return False
    rule = "a file of texts must be tab-separated, with a text and a label in each line, and end in .tsv"
    is_other = name.removesuffix(".gz").endswith(OTHER_SUFFIXES)
    fix = "convert it; or pass {label: texts} to FewShotClassifier.fit in Python"
    check(not is_other, f"{rule}, got {display_path(path)!r}; {fix}")
    return name.endswith(TABLE_SUFFIXES)


def read_table(source: str | Path, columns: tuple[int, int] = COLUMNS, *, header: bool = False) -> dict[str, list[str]]:
    """Texts by label from a tab-separated file. `header` skips the first line; a likely header is skipped, too."""
    rows = load_labeled(source, columns=columns, header=header).train
    texts, labels = rows.texts, rows.labels
    if not header and _begins_with_header(rows):
        found = f"the first line of {display_path(source)} looks like a header ({texts[0]!r}, {labels[0]!r})"
        warnings.warn(f"{found}; it is skipped", SightlineWarning, stacklevel=2)
        texts, labels = texts[1:], labels[1:]
    _check_columns(texts, labels, source)
    groups: dict[str, list[str]] = {}
    for text, label in zip(texts, labels, strict=True):
        groups.setdefault(label, []).append(text)
    return groups


def parse_columns(value: str) -> tuple[int, int]:
    """The columns of texts and labels, such as `2,3`."""
    parts = value.split(",")
    is_valid = len(parts) == 2 and all(part.strip().isdecimal() and int(part) > 0 for part in parts)
    check(is_valid, f"columns must be two numbers from 1 on, such as 2,3 for text and label, got {value!r}")
    return int(parts[0]), int(parts[1])


def duplicate_findings(texts: Sequence[str], labels: Sequence[str]) -> list[Finding]:
    """Texts that occur more than once, the worst first: those with several labels. Case and spaces do not count."""
    groups: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        groups.setdefault(" ".join(text.casefold().split()), []).append(i)
    findings = []
    for group in groups.values():
        classes = sorted({labels[i] for i in group})
        name = f"“{shortened(texts[group[0]], 60)}”"
        if len(classes) > 1:
            findings.append((0, f"{name}: the same text in {len(classes)} classes: {', '.join(classes[:3])}"))
        elif len(group) > 1:
            findings.append((1, f"{name}: the same text {len(group)} times in {classes[0]}"))
    return [Finding("duplicate", text) for _, text in sorted(findings, key=lambda pair: pair[0])]


def _begins_with_header(rows: LabeledText) -> bool:
    """Whether the first line has names of columns: both cells, or only the label, which is then alone to occur once."""
    has_text_name, has_label_name = (HEADER_WORD.fullmatch(column[0]) is not None for column in rows.sides)
    counts = Counter(rows.labels)
    is_alone = counts.pop(rows.labels[0]) == 1 and bool(counts)
    return has_label_name and is_alone and (has_text_name or min(counts.values()) > 1)


def _check_columns(texts: Sequence[str], labels: Sequence[str], source: str | Path) -> None:
    """Labels that nearly all differ and are longer than the texts are texts themselves."""
    unique = sum(count == 1 for count in Counter(labels).values())
    if len(labels) < MIN_ROWS or unique < MAX_UNIQUE * len(labels) or sum(map(len, labels)) <= sum(map(len, texts)):
        return
    rule = f"column 1 of {display_path(source)} must be the text and column 2 its label"
    got = f"got {len(set(labels)):,} labels in {len(labels):,} lines, such as “{shortened(labels[0], 60)}”"
    fix = "name the columns of text and label, such as --columns 2,1 of `sightline fit`, or reorder them"
    raise SightlineError(f"{rule}, {got}; {fix}")
