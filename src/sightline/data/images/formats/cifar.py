"""Folders of CIFAR's binary files."""

from pathlib import Path

import numpy as np

from ....errors import SightlineError
from ..datasets import Splits
from .arrays import Array, build, check_room, read_exactly, read_names, stored_bytes


def is_cifar(path: Path) -> bool:
    """Whether the binary files of CIFAR-10 or CIFAR-100 are in this folder."""
    return path.is_dir() and (any(path.glob("data_batch_*.bin")) or (path / "train.bin").is_file())


def read_cifar(path: Path, size: int | None, channels: int | None) -> Splits:
    """`data_batch_1.bin` … and `test_batch.bin`, or `train.bin` and `test.bin` with fine labels."""
    if batches := sorted(path.glob("data_batch_*.bin")):
        test, marks, names = path / "test_batch.bin", 1, read_names(path, "batches.meta.txt")
    else:
        batches = [path / "train.bin"]
        test, marks, names = path / "test.bin", 2, read_names(path, "fine_label_names.txt")
    images, labels = zip(*(_read_cifar_file(file, marks) for file in batches), strict=True)
    arrays = {"train": (np.concatenate(images), np.concatenate(labels))}
    if test.is_file():
        arrays["test"] = _read_cifar_file(test, marks)
    return build(arrays, path, names, size, channels, "CIFAR binary files")


def _read_cifar_file(path: Path, marks: int) -> tuple[Array, Array]:
    record = marks + 3072
    stored = check_room(path, (stored_bytes(path),), np.dtype(np.uint8))
    if not stored or stored % record:
        raise SightlineError(
            f"{path} must hold records of {record} bytes (CIFAR's binary version), got {stored:,} bytes"
        )
    try:
        with path.open("rb") as file:
            rows = read_exactly(path, file, stored).reshape(-1, record)
    except OSError as error:
        raise SightlineError(f"{path} must be readable, got an error: {error}") from error
    return rows[:, marks:].reshape(-1, 3, 32, 32), rows[:, marks - 1]
