"""Folders of idx files, as MNIST has them."""

import gzip
import re
import zlib
from pathlib import Path

import numpy as np

from ....errors import SightlineError
from ..datasets import Splits
from .arrays import Array, build, check_room, read_exactly, read_names, stored_bytes

_NAME = re.compile(r"(train|t10k|test|val|valid|validation)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_ROLES = {
    "train": "train",
    "t10k": "test",
    "test": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}


def is_idx(path: Path) -> bool:
    """Whether files with the names of MNIST's are in this folder."""
    return path.is_dir() and any(_NAME.fullmatch(entry.name) for entry in path.iterdir())


def read_idx(path: Path, size: int | None, channels: int | None) -> Splits:
    """A folder of `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]` and the same for t10k."""
    found: dict[tuple[str, str], Path] = {}
    for file in sorted(path.iterdir()):
        if match := _NAME.fullmatch(file.name):
            key = (_ROLES[match[1]], match[2])
            if key in found and found[key].name != file.name.removesuffix(".gz"):  # zipped beside unzipped is one file
                raise SightlineError(
                    f"{path} must hold one file of {key[0]} {key[1]}, got {found[key].name} and {file.name}"
                )
            found.setdefault(key, file)
    arrays: dict[str, tuple[Array, Array]] = {}
    for role in sorted({role for role, _ in found} | {"train"}):
        for what, example in (("images", "train-images-idx3-ubyte"), ("labels", "train-labels-idx1-ubyte")):
            if (role, what) not in found:
                raise SightlineError(f"{path} must hold the {what} of {role} (such as {example}), got no such file")
        images = _read_idx_file(found[role, "images"], 3)
        arrays[role] = images[:, None], _read_idx_file(found[role, "labels"], 1)
    return build(arrays, path, read_names(path, "classes.txt", "labels.txt"), size, channels, "idx files")


def _read_idx_file(path: Path, dimensions: int) -> Array:
    zipped = path.suffix == ".gz"
    stored = stored_bytes(path)
    head = 4 + 4 * dimensions
    try:
        with gzip.GzipFile(path) if zipped else path.open("rb") as file:
            start = file.read(head)
            if len(start) < head or start[:4] != bytes((0, 0, 8, dimensions)):
                raise SightlineError(
                    f"{path} must start with the bytes 0 0 8 {dimensions} of an idx file of unsigned bytes "
                    f"with {dimensions} dimensions, got {' '.join(map(str, start[:4])) or 'nothing'}"
                )
            shape = tuple(int.from_bytes(start[i : i + 4], "big") for i in range(4, head, 4))
            expected = check_room(path, shape, np.dtype(np.uint8))
            most = stored * 1032 if zipped else stored - head  # deflate cannot do better than 1032 to 1
            if expected > most:
                raise SightlineError(
                    f"{path} must hold {expected:,} bytes as its header says, got at most {max(most, 0):,}"
                )
            return read_exactly(path, file, expected).reshape(shape)
    except (OSError, EOFError, zlib.error) as error:
        raise SightlineError(
            f"{path} must be a whole idx file, got an error: {error}; copy or download it again"
        ) from error
