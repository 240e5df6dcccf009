"""Files that appear whole or not at all."""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write to the path this yields; it becomes `path` when the block ends well, and is removed when it does not.

    The folder is made if it is not there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: Path, names: Iterable[str]) -> None:
    """Remove what a killed process left half written of these files; nothing else in the folder is touched."""
    own = set(names)
    for path in folder.glob(".*.part"):
        found = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.part", path.name)
        if found and found[1] in own:
            path.unlink()
