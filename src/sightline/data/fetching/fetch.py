"""`fetch` downloads, checks, unpacks and arranges a public data set as the configs expect it."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import check, check_choice
from ...files import atomic_write, locked_folder
from ...names import display_path
from ...progress import Progress
from .catalog import DATA_FOLDER, DATASETS, Output, PublicDataset
from .download import obtain

DOWNLOADS = ".downloads"
"""Folder of downloads that are not arranged yet, in the data folder."""


def fetch(
    name: str,
    folder: str | Path = DATA_FOLDER,
    *,
    mirror: str | None = None,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> list[Path]:
    """Fetch a public data set into a folder, and return the files and folders that were written.

    Args:
        name: One of `DATASETS`.
        folder: What exists in it is kept, and is not fetched again.
        mirror: A folder or an address with copies of the files, to use instead of their addresses.
        progress: Called with the number of finished bytes or images and the total, for each step.
        report: Called with one line of text about each step.
    """
    check_choice("name", name, DATASETS)
    dataset, root = DATASETS[name], Path(folder).expanduser()
    tell = report or (lambda line: None)
    advance = progress or (lambda done, total: None)
    check(dataset.outputs, f"name must be a data set with a public address, got {name!r}; {dataset.instructions}")
    missing = [output for output in dataset.outputs if not (root / output.path).exists()]
    if not missing:
        return []
    tell(f"{dataset.title}\nlicense: {dataset.license}")
    downloads, written = root / DOWNLOADS / name, []
    with locked_folder(downloads):
        for output in missing:
            files = []
            for file in output.files:
                size = "size unknown" if file.size is None else f"{file.size:,} bytes"
                tell(f"{file.name} ({size}) from {mirror or file.address}")
                if file.digest is None:
                    tell(f"{file.name} has no digest to check, because it changes at its address")
                files.append(obtain(file, downloads, mirror, advance))
            target = root / output.path
            _arrange(output, [*files, *(root / path for path in output.uses)], target, advance)
            tell(f"wrote {display_path(target)}")
            written.append(target)
        for path in downloads.iterdir():
            if not path.name.startswith("."):
                path.unlink()
    for empty in (downloads, downloads.parent):
        with suppress(OSError):
            empty.rmdir()
    return written


def summary() -> str:
    """One line for each data set: its name, what it is, and the bytes to download, or how to get it by hand."""
    fetched = {name: dataset for name, dataset in DATASETS.items() if dataset.outputs}
    by_hand = {name: dataset for name, dataset in DATASETS.items() if not dataset.outputs}
    lines = [f"{name:<14} {dataset.title} ({_cost(dataset)})" for name, dataset in fetched.items()]
    lines += ["", "These have no public address, so `sightline fetch` cannot download them:"]
    lines += [f"{name:<14} {dataset.title}. To get it, {dataset.instructions}" for name, dataset in by_hand.items()]
    return "\n".join(lines)


def _cost(dataset: PublicDataset) -> str:
    return "size unknown" if dataset.size is None else f"{dataset.size / 1e6:,.0f} MB"


def _arrange(output: Output, files: list[Path], target: Path, progress: Progress) -> None:
    from . import arrange

    function = getattr(arrange, output.arrange)
    with atomic_write(target) if target.suffix else _atomic_folder(target) as part:
        function(files, part, progress)


@contextmanager
def _atomic_folder(path: Path) -> Iterator[Path]:
    """Yield the path of a folder to create, which becomes `path` when the block succeeds and is removed otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
