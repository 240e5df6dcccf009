"""Identity of data sources: whether two names or paths refer to the same data."""

import glob
from collections.abc import Iterable
from pathlib import Path

from .images.paths import is_hidden

BUILTIN_SOURCES = frozenset({"glyphs", "numbers", "sentences", "shapes"})
"""Names of data sets that are generated and need no file."""


def same_source(a: str | Path, b: str | Path) -> bool:
    """True if two sources are the same data, for images and for text.

    A source is a built-in name, a file, a folder, or two aligned text files without their language suffixes. Paths are
    compared after resolving `~`, relative paths and links. A folder is the same source as its only .npz or .zip file,
    and as another folder whose entries link to the same files.
    """
    if str(a) == str(b) or BUILTIN_SOURCES & {a, b}:
        return str(a) == str(b)
    first, second = (single_archive(Path(source).expanduser()) for source in (a, b))
    if first.exists() and second.exists():
        are_folders = first.is_dir() and second.is_dir()
        return first.samefile(second) or (are_folders and _same_files(first.iterdir(), second.iterdir()))
    files = (path.parent.glob(f"{glob.escape(path.name)}.*") for path in (first, second))
    return first.resolve() == second.resolve() or _same_files(*files)


def single_archive(path: Path) -> Path:
    """The only .npz or .zip file of a folder without subfolders, else the path itself."""
    if path.is_dir() and not any(entry.is_dir() for entry in path.iterdir() if not is_hidden(entry.name)):
        for pattern in ("*.npz", "*.zip"):
            if len(files := sorted(path.glob(pattern))) == 1:
                return files[0]
    return path


def _same_files(first: Iterable[Path], second: Iterable[Path]) -> bool:
    a, b = ({path.resolve() for path in paths} for paths in (first, second))
    return bool(a) and a == b
