"""Atomic writes, bounded reads, and the names of a run's files."""

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import SightlineError

CONFIG, WEIGHTS, CARD, DATA = "config.yaml", "model.safetensors", "README.md", "data.json"
LOG, EVALUATION, CHECKPOINTS = "metrics.jsonl", "evaluation.json", "checkpoints"
"""Files of a run."""
MAX_JSON_BYTES = 1 << 24
"""Size limit of a JSON file of a run."""


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


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run."""
    if not path.is_file():
        raise SightlineError(f"a run must have a file {path.name}, got none in {path.parent}")
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise SightlineError(f"{path} must be at most {MAX_JSON_BYTES:,} bytes, got {size:,}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SightlineError(f"{path} must be JSON, got an error: {error}") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; an error names the file."""
    try:
        with atomic_write(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} cannot be written: {error.strerror}; earlier files are intact: free some space, then continue "
            f"with --resume",
        ) from error
