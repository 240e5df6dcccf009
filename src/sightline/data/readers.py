"""The formats data sets come in: class folders, idx files, npz, CIFAR's binary files.

Every reader compares what a header promises with what is there before it makes room for it.
"""

import gzip
import math
import os
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import nearest
from .decode import SUFFIXES, header
from .sets import ImageFiles, Images, ImageSet, Progress, Splits, check_classes, refuse

MOST_BYTES: Final = 1 << 34
"""No array of a data set is larger than this."""
MOST_FILES: Final = 5_000_000
"""No folder of images holds more files than this."""
MOST_HEADERS: Final = 10_000
"""Of how many files, evenly spread over the folder, the header is read before any is decoded."""
MOST_NAMES: Final = 1 << 22
"""No list of class names has more bytes than this."""

Array = np.ndarray[Any, Any]

# ---------------------------------------------------------------------------------------------------------------------
# folders of class folders

_SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


def is_folders(path: Path) -> bool:
    """Whether there is a folder in this folder."""
    return path.is_dir() and bool(_folders(path))


def read_folders(
    path: Path, size: int | None, channels: int | None, keep_in_memory: int, progress: Progress | None
) -> Splits:
    """A folder of class folders, which may stand inside train/, validation/ and test/."""
    inside = {name.lower(): name for name in _folders(path)}
    if "train" in inside and is_folders(path / inside["train"]):
        homes: dict[str, Path] = {}
        for lower, name in inside.items():
            role = _SPLITS.get(lower)
            if role is None:
                raise ValueError(
                    f"{path} must hold train, validation and test, or class folders alone, got {name!r} beside train"
                )
            if role in homes:
                raise ValueError(f"{path} must hold one {role} folder, got {homes[role].name!r} and {name!r}")
            homes[role] = path / name
    elif inside and set(inside) <= set(_SPLITS):
        raise ValueError(f"{path} must hold a train folder with class folders, got only {', '.join(inside.values())}")
    else:
        homes = {"train": path}

    classes = _class_folders(homes["train"])
    lists = {role: _list(home, classes) for role, home in homes.items()}
    size, channels = _common_form([file for files, _ in lists.values() for file in files], size, channels)
    parts: dict[str, Images] = {
        role: ImageFiles(tuple(files), torch.tensor(labels), classes, size, channels)
        for role, (files, labels) in lists.items()
    }
    count = sum(len(part) for part in parts.values())
    if count * channels * size * size <= keep_in_memory:
        before = 0
        for role, part in parts.items():
            assert isinstance(part, ImageFiles)
            parts[role] = part.loaded(_onward(progress, before, count))
            before += len(part)
    return Splits(parts["train"], parts.get("validation"), parts.get("test"), kind="class folders")


def _onward(progress: Progress | None, before: int, count: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, count)


def _folders(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith((".", "__")) and entry.is_dir())


def _class_folders(home: Path) -> tuple[str, ...]:
    names = _folders(home)
    if len(names) == 1:
        inner = home / names[0]
        hint = f"; did you mean {inner}?" if _folders(inner) else ""
        raise ValueError(f"{home} must hold at least two class folders, got only {names[0]!r}{hint}")
    alike: dict[str, str] = {}
    for name in names:
        same = alike.setdefault(unicodedata.normalize("NFC", name).strip(), name)
        if same != name:
            raise ValueError(f"class folders must have different names, got {same!r} and {name!r} in {home}")
    return tuple(names)


def _list(home: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The files of a split in the order of their names, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    numbers = {name: number for number, name in enumerate(classes)}
    for name in _folders(home):
        if name not in numbers:
            raise ValueError(f"a class folder in {home} must be one of those in train: {nearest(name, classes)}")
        found = _images(home / name)
        files += [home / name / file for file in found]
        labels += [numbers[name]] * len(found)
        if len(files) > MOST_FILES:
            raise ValueError(f"{home} must hold at most {MOST_FILES:,} images, got more")
    if not files:
        raise ValueError(f"{home} must hold class folders with images, got none")
    return files, labels


def _images(folder: Path) -> list[str]:
    """The images directly inside: what is hidden, and what does not end like an image, is passed over."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__")):
                continue
            if entry.is_dir():
                raise ValueError(
                    f"class folder {folder} must hold its images directly, got the folder {entry.name!r} inside; "
                    "move its images up, or name the folder above the class folders"
                )
            if os.path.splitext(entry.name)[1].lower() in SUFFIXES:  # noqa: PTH122 - a Path for each would be slow
                found.append(entry.name)
    if not found:
        raise ValueError(
            f"class folder {folder} must hold at least one image ({', '.join(sorted(SUFFIXES))}), got none; "
            "fill it or remove it"
        )
    return sorted(found)


def _common_form(files: Sequence[Path], size: int | None, channels: int | None) -> tuple[int, int]:
    """The size and channels of all, from the headers of some; only what is not given is looked for."""
    if size is not None and channels is not None:
        return size, channels
    step = max(1, math.ceil(len(files) / MOST_HEADERS))
    first: tuple[Path, int, int] | None = None
    other: tuple[Path, int, int] | None = None
    coloured = False
    problems = []
    for path in files[::step]:
        try:
            width, height, colour = header(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        coloured |= colour
        first = first or (path, width, height)
        if other is None and (width, height) != first[1:]:
            other = (path, width, height)
    refuse(problems)
    assert first is not None
    if size is None:
        if other is not None:
            (a, *one), (b, *two) = first, other
            raise ValueError(
                "images must be of one size unless data.image_size says what to bring them to, "
                f"got {one[0]} x {one[1]} in {a} and {two[0]} x {two[1]} in {b}; give data.image_size"
            )
        size = square(first[1], first[2], f"the images of {first[0].parent}")
    return size, channels or (3 if coloured else 1)


def square(width: int, height: int, what: str) -> int:
    """The side, where there is one side to speak of."""
    if width != height:
        raise ValueError(
            f"{what} must be square unless data.image_size says what to bring them to, "
            f"got {width} x {height}; give data.image_size"
        )
    return width


# ---------------------------------------------------------------------------------------------------------------------
# idx files, as MNIST has them

_IDX = re.compile(r"(train|t10k|test|val|valid|validation)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_IDX_ROLES = _SPLITS | {"t10k": "test"}


def is_idx(path: Path) -> bool:
    """Whether files with the names of MNIST's are in this folder."""
    return path.is_dir() and any(_IDX.fullmatch(entry.name) for entry in path.iterdir())


def read_idx(path: Path, size: int | None, channels: int | None) -> Splits:
    """A folder of `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]` and the same for t10k."""
    found: dict[tuple[str, str], Path] = {}
    for file in sorted(path.iterdir()):
        if match := _IDX.fullmatch(file.name):
            key = (_IDX_ROLES[match[1]], match[2])
            if key in found and found[key].name != file.name.removesuffix(".gz"):  # zipped beside unzipped is one file
                raise ValueError(
                    f"{path} must hold one file of {key[0]} {key[1]}, got {found[key].name} and {file.name}"
                )
            found.setdefault(key, file)
    arrays: dict[str, tuple[Array, Array]] = {}
    for role in sorted({role for role, _ in found} | {"train"}):
        for what, example in (("images", "train-images-idx3-ubyte"), ("labels", "train-labels-idx1-ubyte")):
            if (role, what) not in found:
                raise ValueError(f"{path} must hold the {what} of {role} (such as {example}), got no such file")
        images = _read_idx_file(found[role, "images"], 3)
        arrays[role] = images[:, None], _read_idx_file(found[role, "labels"], 1)
    return build(arrays, path, _names(path, "classes.txt", "labels.txt"), size, channels, "idx files")


def _read_idx_file(path: Path, dimensions: int) -> Array:
    zipped = path.suffix == ".gz"
    stored = _stored(path)
    head = 4 + 4 * dimensions
    try:
        with gzip.GzipFile(path) if zipped else path.open("rb") as file:
            start = file.read(head)
            if len(start) < head or start[:4] != bytes((0, 0, 8, dimensions)):
                raise ValueError(
                    f"{path} must start with the bytes 0 0 8 {dimensions} of an idx file of unsigned bytes "
                    f"with {dimensions} dimensions, got {' '.join(map(str, start[:4])) or 'nothing'}"
                )
            shape = tuple(int.from_bytes(start[i : i + 4], "big") for i in range(4, head, 4))
            expected = _check_shape(path, shape, np.dtype(np.uint8))
            most = stored * 1032 if zipped else stored - head  # deflate cannot do better than 1032 to 1
            if expected > most:
                raise ValueError(
                    f"{path} must hold {expected:,} bytes as its header says, got at most {max(most, 0):,}"
                )
            return _exactly(path, file, expected).reshape(shape)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} must be a whole idx file, got an error: {error}; copy or download it again"
        ) from error


# ---------------------------------------------------------------------------------------------------------------------
# npz

_NPZ_KEYS: tuple[dict[str, tuple[str, str]], ...] = (
    {"train": ("x_train", "y_train"), "validation": ("x_val", "y_val"), "test": ("x_test", "y_test")},
    {
        "train": ("train_images", "train_labels"),
        "validation": ("val_images", "val_labels"),
        "test": ("test_images", "test_labels"),
    },
    {"train": ("images", "labels")},
)


def read_npz(path: Path, size: int | None, channels: int | None) -> Splits:
    """One `.npz` with x_train, y_train, x_test, y_test; or train_images, train_labels, …; or images, labels."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = next((keys for keys in _NPZ_KEYS if keys["train"][0] in members), None)
            if keys is None:
                raise ValueError(
                    f"{path} must have the keys x_train, y_train, or train_images, train_labels, or images, labels, "
                    f"got {', '.join(sorted(members)[:10]) or 'none'}"
                )
            arrays: dict[str, tuple[Array, Array]] = {}
            for role, (images_key, labels_key) in keys.items():
                if not {images_key, labels_key} & set(members):
                    continue
                for key in (images_key, labels_key):
                    if key not in members:
                        raise ValueError(f"{path} must have the key {key} beside its twin, got no such key")
                images = _read_npy(path, archive, members[images_key], _check_images)
                labels = _read_npy(path, archive, members[labels_key], _check_label_array)
                arrays[role] = _channels_first(images), labels.reshape(len(labels))
            classes = None
            if "classes" in members:
                names = _read_npy(path, archive, members["classes"], _check_names)
                classes = tuple(str(name) for name in names)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{path} must be a whole npz file, got an error: {error}; write it again with np.savez"
        ) from error
    return build(arrays, path, classes, size, channels, "npz")


def _read_npy(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, check: Callable[[str, tuple[int, ...], Any], None]
) -> Array:
    """One array of the archive, its header checked before its room is made; never a pickle."""
    where = f"{info.filename.removesuffix('.npy')} in {path}"
    with archive.open(info) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, by_column, dtype = read(file)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{where} must be an array as np.savez writes it, got {str(error)[:200]}") from error
        if dtype.hasobject:
            raise ValueError(f"{where} must hold plain numbers or text, got Python objects, which are never loaded")
        check(where, shape, dtype)
        expected = _check_shape(where, shape, dtype)
        if expected > info.file_size:
            raise ValueError(f"{where} must hold {expected:,} bytes as its header says, got {info.file_size:,}")
        data = _exactly(where, file, expected).view(dtype)
    return data.reshape(shape[::-1]).T if by_column else data.reshape(shape)


def _check_images(where: str, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype != np.uint8:
        raise ValueError(
            f"{where} must be of type uint8 with values from 0 to 255, got {dtype}; "
            "convert it, such as (x * 255).round().astype('uint8') where x runs from 0 to 1"
        )
    if len(shape) not in (3, 4) or (len(shape) == 4 and not {shape[1], shape[3]} & {1, 3}):
        raise ValueError(f"{where} must have shape (N, H, W), (N, H, W, C) or (N, C, H, W), C 1 or 3, got {shape}")


def _check_label_array(where: str, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype.kind not in "iu" or len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(f"{where} must be whole numbers of shape (N,), the class of each image, got {dtype} {shape}")


def _check_names(where: str, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype.kind != "U" or len(shape) != 1:
        raise ValueError(f"{where} must be text of shape (classes,), got {dtype} {shape}")


def _channels_first(images: Array) -> Array:
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if images.shape[3] in (1, 3) else images


# ---------------------------------------------------------------------------------------------------------------------
# CIFAR's binary files


def is_cifar(path: Path) -> bool:
    """Whether the binary files of CIFAR-10 or CIFAR-100 are in this folder."""
    return path.is_dir() and (any(path.glob("data_batch_*.bin")) or (path / "train.bin").is_file())


def read_cifar(path: Path, size: int | None, channels: int | None) -> Splits:
    """`data_batch_1.bin` … and `test_batch.bin`, or `train.bin` and `test.bin` with fine labels."""
    if batches := sorted(path.glob("data_batch_*.bin")):
        test, marks, names = path / "test_batch.bin", 1, _names(path, "batches.meta.txt")
    else:
        batches, test, marks, names = [path / "train.bin"], path / "test.bin", 2, _names(path, "fine_label_names.txt")
    parts = [_read_cifar_file(file, marks) for file in batches]
    arrays = {"train": tuple(np.concatenate(column) for column in zip(*parts, strict=True))}
    if test.is_file():
        arrays["test"] = _read_cifar_file(test, marks)
    return build(arrays, path, names, size, channels, "CIFAR binary files")  # type: ignore[arg-type]


def _read_cifar_file(path: Path, marks: int) -> tuple[Array, Array]:
    record = marks + 3072
    stored = _stored(path)
    if not stored or stored % record:
        raise ValueError(f"{path} must hold records of {record} bytes (CIFAR's binary version), got {stored:,} bytes")
    try:
        with path.open("rb") as file:
            rows = _exactly(path, file, stored).reshape(-1, record)
    except OSError as error:
        raise ValueError(f"{path} must be readable, got an error: {error}") from error
    return rows[:, marks:].reshape(-1, 3, 32, 32), rows[:, marks - 1]


# ---------------------------------------------------------------------------------------------------------------------
# what arrays have in common


def build(
    arrays: dict[str, tuple[Array, Array]],
    source: Path,
    classes: tuple[str, ...] | None,
    size: int | None,
    channels: int | None,
    kind: str,
) -> Splits:
    """Images (N, C, H, W) and labels (N) of each split -> sets of the size and channels asked for."""
    for role, (images, labels) in arrays.items():
        if len(images) != len(labels):
            raise ValueError(
                f"{role} of {source} must have one label for each image, "
                f"got {len(images):,} images and {len(labels):,} labels"
            )
        if not images.size:
            raise ValueError(f"{role} of {source} must hold at least one image, got shape {images.shape}")
        if labels.min() < 0:
            raise ValueError(f"labels of {role} of {source} must be 0 or more, got {labels.min()}")
    highest = max(int(labels.max()) for _, labels in arrays.values())
    if classes is None:
        if highest > 65535:
            raise ValueError(f"labels of {source} must be at most 65535, got {highest}")
        classes = tuple(str(number) for number in range(highest + 1))
    elif highest >= len(classes):
        raise ValueError(
            f"labels of {source} must be 0 to {len(classes) - 1} for its {len(classes)} class names, got {highest}"
        )
    if len(np.unique(arrays["train"][1])) < 2:
        raise ValueError(f"{source} must have images of at least two classes, got one class only")
    parts = {}
    for role, (images, labels) in arrays.items():
        pixels = fit(torch.from_numpy(np.ascontiguousarray(images)), size, channels, f"the images of {source}")
        parts[role] = ImageSet(pixels, torch.from_numpy(labels.astype(np.int64)), classes)
    return Splits(parts["train"], parts.get("validation"), parts.get("test"), kind=kind)


def fit(pixels: Tensor, size: int | None, channels: int | None, what: str) -> Tensor:
    """uint8 (N, C, H, W) brought to this size (the middle square, scaled) and these channels."""
    height, width = pixels.shape[2:]
    side = min(width, height)
    if size is None:
        size = square(width, height, what)
    if channels == 1 and pixels.shape[1] == 3:
        red, green, blue = pixels.int().unbind(1)
        pixels = ((red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16).to(torch.uint8)[:, None]
    if (height, width) != (size, size):
        top, left = (height - side) // 2, (width - side) // 2
        scaled = torch.empty(*pixels.shape[:2], size, size, dtype=torch.uint8)
        middle = pixels[:, :, top : top + side, left : left + side]
        for some, target in zip(middle.split(1024), scaled.split(1024), strict=True):
            floats = F.interpolate(some.float(), (size, size), mode="bicubic", antialias=True)
            target.copy_(floats.round_().clamp_(0, 255))
        pixels = scaled
    if channels == 3 and pixels.shape[1] == 1:
        pixels = pixels.repeat(1, 3, 1, 1)
    return pixels


def _names(folder: Path, *files: str) -> tuple[str, ...] | None:
    """The class names, one a line, from the first of these files that is there."""
    for file in files:
        path = folder / file
        if path.is_file():
            if (stored := _stored(path)) > MOST_NAMES:
                raise ValueError(f"{path} must be at most {MOST_NAMES:,} bytes, got {stored:,}")
            try:
                lines = path.read_text(encoding="utf-8-sig").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{path} must be text in UTF-8, got an error: {error}") from error
            names = tuple(line.strip() for line in lines if line.strip())
            try:
                check_classes(names)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            return names
    return None


def _stored(path: Path) -> int:
    if not path.is_file():
        raise ValueError(f"{path} must be a file, got none")
    return path.stat().st_size


def _check_shape(where: object, shape: tuple[int, ...], dtype: Any) -> int:
    """How many bytes this takes, if that is within bounds."""
    expected = math.prod(shape) * int(dtype.itemsize)
    if expected > MOST_BYTES:
        raise ValueError(f"{where} must be at most {MOST_BYTES:,} bytes, got {expected:,} for shape {shape}")
    return expected


def _exactly(where: object, file: IO[bytes] | gzip.GzipFile, expected: int) -> Array:
    """So many bytes and not one more."""
    data = bytearray()
    while len(data) <= expected and (part := file.read(min(1 << 24, expected + 1 - len(data)))):
        data += part
    if len(data) != expected:
        got = "more" if len(data) > expected else f"{len(data):,}"
        raise ValueError(f"{where} must hold {expected:,} bytes as its header says, got {got}")
    return np.frombuffer(data, dtype=np.uint8)
