"""Labeled texts for a classifier: tab-separated files, and what their owner should know about them."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from ..data.images.checks import Finding
from ..data.text.labeled import MIN_CHECKED, check_columns, has_unique_labels, load_labeled
from ..errors import SightlineWarning, check
from ..names import display_path, shortened

COLUMNS = (1, 2)
"""The columns of texts and labels, counted from 1."""
TABLE_SUFFIXES = (".tsv", ".tsv.gz")
OTHER_SUFFIXES = (".csv", ".txt", ".json", ".jsonl", ".xlsx", ".parquet")
"""Files that may hold texts and are not read."""


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
    check_columns(rows, source, columns, f"pass --columns, such as {columns[1]},{columns[0]}, or reorder the columns")
    if len(rows) >= MIN_CHECKED and has_unique_labels(rows):
        found = f"nearly every label of {display_path(source)} occurs once, such as {shortened(rows.labels[-1], 40)!r}"
        warnings.warn(f"{found}; --columns names the columns of text and label", SightlineWarning, stacklevel=2)
    groups: dict[str, list[str]] = {}
    for text, label in zip(rows.texts, rows.labels, strict=True):
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
