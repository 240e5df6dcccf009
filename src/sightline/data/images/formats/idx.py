"""Idx files, the format of MNIST and Fashion-MNIST."""

import gzip
import re
import zlib
from pathlib import Path

import numpy as np

from ....errors import SightlineError
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
            if key in files and files[key].name != file.name.removesuffix(".gz"):  # x and x.gz are the same file
                raise SightlineError(
                    f"{name} must have one file of {key[0]} {key[1]}, got {files[key].name} and {file.name}"
                )
            files.setdefault(key, file)
    arrays: dict[str, tuple[Array, Array]] = {}
    for split in sorted({split for split, _ in files} | {"train"}):
        for kind in ("images", "labels"):
            if (split, kind) not in files:
                raise SightlineError(f"{name} must have a file of {split} {kind}, got none; see the names of MNIST")
        images, labels = _read_file(files[split, "images"], 3), _read_file(files[split, "labels"], 1)
        arrays[split] = images[:, None], labels
    return image_sets(arrays, path, read_class_names(path, "classes.txt", "labels.txt"), size, channels)


def _read_file(path: Path, dimensions: int) -> Array:
    name = display_path(path)
    is_compressed = path.suffix == ".gz"
    stored = file_size(path)
    header_size = 4 + 4 * dimensions
    try:
        with gzip.GzipFile(path) if is_compressed else path.open("rb") as file:
            header = file.read(header_size)
            if len(header) < header_size or header[:4] != bytes((0, 0, 8, dimensions)):
                raise SightlineError(
                    f"{name} must start with the bytes 0 0 8 {dimensions} of an idx file with {dimensions} dimensions, "
                    f"got {' '.join(map(str, header[:4])) or 'nothing'}"
                )
            shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, header_size, 4))
            size = check_array_bytes(name, shape, np.dtype(np.uint8))
            available = stored * _MAX_DEFLATE_RATIO if is_compressed else stored - header_size
            if size > available:
                raise SightlineError(
                    f"{name} must have {size:,} bytes according to its header, got at most {max(available, 0):,}"
                )
            return read_exactly(name, file, size).reshape(shape)
    except (OSError, EOFError, zlib.error) as error:
        raise SightlineError(
            f"{name} must be a complete idx file, got an error: {error}; copy or download it again"
        ) from error
