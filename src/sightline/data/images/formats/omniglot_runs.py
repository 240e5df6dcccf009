"""The official one-shot runs of Omniglot: 20-way classification within an alphabet from one image per class."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from .... import limits
from ....errors import SightlineError, check, reraise
from ....names import display_path
from ...fetching.catalog import fetch_hint
from ..archives import Archive, open_archive
from ..datasets import check_memory
from ..paths import is_image_name
from ..reading import check_image_options, read_image

_LABELS_FILE = "class_labels.txt"


@dataclass(frozen=True, eq=False)
class OneShotRun:
    """One run with N classes and M query images."""

    name: str
    support: Tensor
    """uint8 (N, 1, H, W), one image of each class."""
    query: Tensor
    """uint8 (M, 1, H, W)."""
    labels: Tensor
    """int64 (M,), index of the support image with the class of each query image."""


def read_one_shot_runs(path: str | Path, *, size: int | None = None) -> list[OneShotRun]:
    """Read all runs of a zip file with run01/training/*.png, run01/test/*.png, run01/class_labels.txt, and so on.

    `size` is the side length to resize images to (default: that of the images).
    """
    check_image_options(size, None)
    path = Path(path).expanduser()
    rule = f"one-shot runs must be a zip file, got {display_path(path)!r}, which does not exist"
    check(path.is_file(), f"{rule}{fetch_hint(path)}")
    archive = open_archive(path)
    label_files = [PurePosixPath(file) for file in archive.files if PurePosixPath(file).name == _LABELS_FILE]
    count, maximum = len(label_files), limits.MAX_ONE_SHOT_RUNS
    check(1 <= count <= maximum, f"{archive.name} must have 1 to {maximum:,} runs with {_LABELS_FILE}, got {count:,}")
    images: dict[PurePosixPath, list[str]] = {}
    for file in map(PurePosixPath, archive.files):
        if is_image_name(file.name):
            images.setdefault(file.parent, []).append(str(file))
    runs: list[OneShotRun] = []
    for file in label_files:
        runs.append(_read_run(archive, file.parent, images, size))
        check_memory(sum(len(run.support) + len(run.query) for run in runs), 1, max(runs[-1].support.shape[2:]))
    shapes = {tuple(run.support.shape[1:]) for run in runs}
    check(len(shapes) == 1, f"images in {archive.name} must have the same size, got {sorted(shapes)}; give size")
    return runs


def _read_run(
    archive: Archive, folder: PurePosixPath, images: dict[PurePosixPath, list[str]], size: int | None
) -> OneShotRun:
    where = f"{folder} in {archive.name}"
    support, query = images.get(folder / "training", []), images.get(folder / "test", [])
    for name, files in (("training", support), ("test", query)):
        count, maximum = len(files), limits.MAX_ONE_SHOT_IMAGES
        check(1 <= count <= maximum, f"{name} of {where} must have 1 to {maximum:,} images, got {count:,}")
    support_of = _read_labels(archive, folder, where)
    if mismatches := sorted(set(query) ^ set(support_of)):
        rule = f"{_LABELS_FILE} of {where} must list each test image once"
        raise SightlineError(f"{rule}, got {mismatches[0]!r} in only one of them")
    index_of = {file: index for index, file in enumerate(support)}
    if unknown := sorted(set(support_of.values()) - set(index_of)):
        raise SightlineError(f"{_LABELS_FILE} of {where} must list training images, got {unknown[0]!r}")
    labels = torch.tensor([index_of[support_of[file]] for file in query])
    return OneShotRun(folder.name, _read_images(archive, support, size), _read_images(archive, query, size), labels)


def _read_labels(archive: Archive, folder: PurePosixPath, where: str) -> dict[str, str]:
    """The training image of each test image. The file names both relative to the folder above the run."""
    labels: dict[str, str] = {}
    with reraise(f"{_LABELS_FILE} of {where} must be UTF-8 text", UnicodeDecodeError):
        lines = archive.read(str(folder / _LABELS_FILE)).decode("utf-8-sig").splitlines()
    for number, line in enumerate(lines, start=1):
        files = [str(folder.parent / name) for name in line.split()]
        if not files:
            continue
        place = f"line {number} of {_LABELS_FILE} of {where}"
        check(len(files) == 2, f"{place} must have two names, got {line!r:.100}")
        check(files[0] not in labels, f"{place} must have a new image, got {files[0]!r}")
        labels[files[0]] = files[1]
    return labels


def _read_images(archive: Archive, files: list[str], size: int | None) -> Tensor:
    images: list[Tensor] = []
    for file in files:
        images.append(read_image(archive.read(file), size=size, channels=1, name=f"{file} in {archive.name}"))
        first, shape = (tuple(image.shape[1:]) for image in (images[0], images[-1]))
        check_memory(len(files), 1, max(first))
        rule = f"images in {archive.name} must have the same size"
        check(first == shape, f"{rule}, got {first} and {shape} in {file}; give size")
    return torch.stack(images)
