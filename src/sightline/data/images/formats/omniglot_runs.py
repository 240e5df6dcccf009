"""The official one-shot runs of Omniglot: in each, which of twenty characters, seen once, is this one?"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import torch
from torch import Tensor

from ....errors import SightlineError
from ..class_pool import check_memory
from ..reading import SUFFIXES, check_form, read_image
from .archives import Archive, opened

MOST_RUNS: Final = 1000
"""No zip file holds more runs than this."""
MOST_IMAGES: Final = 1000
"""No run has more images of a kind than this."""

_KEY = "class_labels.txt"


@dataclass(frozen=True, eq=False)
class OneShotRun:
    """One run: images of characters, one of each class, and others to be told by them."""

    name: str
    support: Tensor
    """uint8 (N, 1, H, W), one image of each class."""
    query: Tensor
    """uint8 (M, 1, H, W)."""
    labels: Tensor
    """int64 (M), which image of `support` each query is of the class of."""


def read_one_shot_runs(path: str | Path, *, size: int | None = None) -> list[OneShotRun]:
    """All runs of a zip file that holds run01/training/*.png, run01/test/*.png, run01/class_labels.txt, and so on.

    `size` is the side every image is brought to; without it they stay as they are.
    """
    check_form(size, None)
    path = Path(path).expanduser()
    if not path.is_file():
        raise SightlineError(f"one-shot runs must be a zip file, got {str(path)!r}, which is not there")
    with opened(path) as archive:
        keys = [file for file in archive.files if PurePosixPath(file).name == _KEY]
        if not 1 <= len(keys) <= MOST_RUNS:
            raise SightlineError(f"{path} must hold 1 to {MOST_RUNS:,} runs, each with its {_KEY}, got {len(keys):,}")
        files: dict[PurePosixPath, list[str]] = {}
        for file in archive.files:
            if (name := PurePosixPath(file)).suffix.lower() in SUFFIXES:
                files.setdefault(name.parent, []).append(file)
        runs: list[OneShotRun] = []
        for key in keys:
            runs.append(_read_run(archive, PurePosixPath(key).parent, files, size))
            check_memory(sum(len(run.support) + len(run.query) for run in runs), 1, max(runs[-1].support.shape[2:]))
    forms = {tuple(run.support.shape[1:]) for run in runs}
    if len(forms) > 1:
        raise SightlineError(
            f"images in {path} must be of one size unless size is given, got {sorted(forms)}; give size"
        )
    return runs


def _read_run(
    archive: Archive, folder: PurePosixPath, files: dict[PurePosixPath, list[str]], size: int | None
) -> OneShotRun:
    where = f"{folder} in {archive.path}"
    support, query = (files.get(folder / part, []) for part in ("training", "test"))
    for part, found in (("training", support), ("test", query)):
        if not 1 <= len(found) <= MOST_IMAGES:
            raise SightlineError(f"{part} of {where} must hold 1 to {MOST_IMAGES:,} images, got {len(found):,}")
    answers = _answers(archive, folder, where)
    if missing := sorted(set(query) ^ set(answers)):
        raise SightlineError(
            f"{_KEY} of {where} must name each image of test once, got {missing[0]!r} in one of them alone"
        )
    numbers = {file: number for number, file in enumerate(support)}
    if strange := sorted(set(answers.values()) - set(numbers)):
        raise SightlineError(f"{_KEY} of {where} must name images of training, got {strange[0]!r}, which is not there")
    labels = torch.tensor([numbers[answers[file]] for file in query])
    return OneShotRun(folder.name, _images(archive, support, size), _images(archive, query, size), labels)


def _answers(archive: Archive, folder: PurePosixPath, where: str) -> dict[str, str]:
    """Which image of training each image of test belongs to; both are named from the folder above the run's."""
    answers: dict[str, str] = {}
    try:
        lines = archive.read(str(folder / _KEY)).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SightlineError(f"{_KEY} of {where} must be text in UTF-8, got an error: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        words = line.split()
        if len(words) != 2:
            raise SightlineError(f"line {number} of {_KEY} of {where} must name two images, got {line!r:.100}")
        asked, answer = (str(folder.parent / word) for word in words)
        if asked in answers:
            raise SightlineError(f"line {number} of {_KEY} of {where} must name a new image, got {words[0]!r} again")
        answers[asked] = answer
    return answers


def _images(archive: Archive, files: list[str], size: int | None) -> Tensor:
    images = []
    for file in files:
        try:
            images.append(read_image(archive.read(file), size=size, channels=1))
        except ValueError as error:
            raise SightlineError(str(error).replace("the image", f"{file} in {archive.path}", 1)) from None
        if len(images) == 1:
            check_memory(len(files), 1, max(images[0].shape[1:]))
        if images[-1].shape != images[0].shape:
            one, two = (tuple(image.shape[1:]) for image in (images[0], images[-1]))
            raise SightlineError(
                f"images of {archive.path} must be of one size, got {one} and {two} in {file}; give size"
            )
    return torch.stack(images)
