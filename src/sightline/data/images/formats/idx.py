"""Idx files, the format of MNIST and Fashion-MNIST."""

import gzip
import re
import zlib
from pathlib import Path

import numpy as np

from ....errors import check, reraise
from ....names import display_path
from ..datasets import SPLIT_NAMES, Images
from .arrays import Array, check_array_bytes, file_size, image_sets, read_class_names, read_exactly

DESCRIPTION = "a folder of idx files as MNIST: train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz], t10k-…"

_SPLIT_NAMES = SPLIT_NAMES | {"t10k": "test"}
_FILE_NAME = re.compile(rf"({'|'.join(_SPLIT_NAMES)})-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_MAX_DEFLATE_RATIO = 1032


def detect(path: Path) -> bool:
    """Whether a folder contains files named as those of MNIST."""
    return path.is_dir() and any(_FILE_NAME.fullmatch(entry.name) for entry in path.iterdir())


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]` and those of other splits.

    Class names are read from `classes.txt` or `labels.txt` if it exists.
    """
    name = display_path(path)
    files: dict[tuple[str, str], Path] = {}
    for file in sorted(path.iterdir()):
        if match := _FILE_NAME.fullmatch(file.name):
            key = (_SPLIT_NAMES[match[1]], match[2])
            first = files.setdefault(key, file).name
            is_same = file.name in (first, f"{first}.gz")  # x and x.gz are the same file
            check(is_same, f"{name} must have one file of {' '.join(key)}, got {first} and {file.name}")
    arrays: dict[str, tuple[Array, Array]] = {}
    for split in sorted({split for split, _ in files} | {"train"}):
        for kind in ("images", "labels"):
            has_file = (split, kind) in files
            check(has_file, f"{name} must have a file of {split} {kind}, got none; see the names of MNIST")
        images, labels = _read_file(files[split, "images"], 3), _read_file(files[split, "labels"], 1)
        arrays[split] = images[:, None], labels
    return image_sets(arrays, path, read_class_names(path, "classes.txt", "labels.txt"), size, channels)


def _read_file(path: Path, dimensions: int) -> Array:
    name = display_path(path)
    is_compressed = path.suffix == ".gz"
    stored = file_size(path)
    header_size = 4 + 4 * dimensions
    rule, fix = f"{name} must be a complete idx file", "copy or download it again"
    with (
        reraise(rule, OSError, EOFError, zlib.error, fix=fix),
        gzip.GzipFile(path) if is_compressed else path.open("rb") as file,
    ):
        header = file.read(header_size)
        magic = " ".join(map(str, header[:4]))
        rule = f"{name} must start with the bytes 0 0 8 {dimensions} of an idx file with {dimensions} dimensions"
        has_header = len(header) == header_size and magic == f"0 0 8 {dimensions}"
        check(has_header, f"{rule}, got {magic or 'nothing'}")
        shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, header_size, 4))
        size = check_array_bytes(name, shape, np.dtype(np.uint8))
        available = stored * _MAX_DEFLATE_RATIO if is_compressed else stored - header_size
        check(size <= available, f"{name} must have {size:,} bytes according to its header, got at most {available:,}")
        return read_exactly(name, file, size).reshape(shape)
