"""Makes the files and folders that the configs use of downloaded files.

Every function takes the paths of its files, the path to write, and a progress callback. Names inside archives only
select what is read; what is written has names of its own.
"""

import io
import json
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from ... import limits
from ...errors import SightlineError, check, reraise
from ...names import display_path, printable
from ...progress import Progress
from ..images.archives import Archive
from ..images.formats.cifar import SUPERCLASSES
from ..images.formats.omniglot import DEFAULT_SIDE
from ..images.reading import read_image
from ..text.reading import iter_lines
from .unpacking import tar_files

CUB_SIDE, JPEG_QUALITY = 84, 95
"""Side length and quality of the resized photos of CUB."""
NUM_PAIRS = 50_000
"""Sentence pairs of Tatoeba that are kept."""
FASHION_CLASSES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
CIFAR_FS = {
    "val": "beaver otter flatfish shark lamp television beetle butterfly sea camel cattle crab crocodile maple_tree "
    "motorcycle tractor",
    "test": "whale poppy rose sweet_pepper telephone bed table wardrobe leopard plain chimpanzee fox snail worm baby "
    "man woman bicycle pickup_truck rocket",
}
"""Classes of CIFAR-FS (Bertinetto et al., 2019) that are not training classes."""

_CIFAR_FILES = re.compile(
    r"cifar-10-batches-bin/(data_batch_[1-5]\.bin|test_batch\.bin|batches\.meta\.txt)"
    r"|cifar-100-binary/(train\.bin|test\.bin|fine_label_names\.txt|coarse_label_names\.txt)"
)
_CUB_PHOTO = re.compile(r"CUB_200_2011/images/(\d{3}\.[\w.-]+)/([\w.-]+\.jpg)")
_OMNIGLOT_IMAGE = re.compile(r"images_(background|evaluation)/([^/]+/character\d+)/\d+_(\d+)\.png")
_VINYALS_LINE = re.compile(r"([^/]+/character\d+)/rot\d+")


def copy_file(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """One file as it is."""
    shutil.copyfile(files[0], target)


def concatenate(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """One file of the others, one after the other; of gzip files, one with all of their lines."""
    with target.open("wb") as out:
        for file in files:
            with file.open("rb") as part:
                shutil.copyfileobj(part, out)


def copy_files(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """A folder of the files as they are."""
    target.mkdir()
    for file in files:
        shutil.copyfile(file, target / file.name)


def fashion_mnist(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """The four idx files, and the names of the classes."""
    copy_files(files, target, progress)
    (target / "classes.txt").write_text("\n".join(FASHION_CLASSES.split(", ")) + "\n", encoding="utf-8")


def unpack_cifar(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """The binary files of CIFAR-10 or CIFAR-100."""
    target.mkdir()
    for entry in tar_files(files[0], progress):
        if match := _CIFAR_FILES.fullmatch(entry.name):
            entry.copy_to(target / (match[1] or match[2]))
    has_images = any((target / name).is_file() for name in ("test_batch.bin", "test.bin"))
    check(has_images, f"{display_path(files[0])} must contain the binary version of CIFAR, got other files")


def cifar_fs_split(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """Class lists of CIFAR-FS: 64 classes for training, 16 for validation, 20 for test."""
    held_out = {split: names.split() for split, names in CIFAR_FS.items()}
    excluded = {name for names in held_out.values() for name in names}
    classes = [name for names in SUPERCLASSES.values() for name in names.split()]
    _write_lists(target, {"train": [name for name in classes if name not in excluded], **held_out})


def pack_omniglot(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """All drawings in one npz file: `images_packed`, `label`, `drawer` and `classes`."""
    archives = [Archive(file) for file in files]
    drawings = [
        (f"{match[1]}/{match[2]}", int(match[3]), archive, match[0])
        for archive in archives
        for file in archive.files
        if (match := _OMNIGLOT_IMAGE.fullmatch(file))
    ]
    parts = {name.partition("/")[0] for name, *_ in drawings}
    check(parts == {"background", "evaluation"}, "Omniglot must have background and evaluation alphabets, got others")
    classes = sorted({name for name, *_ in drawings})
    label_of = {name: label for label, name in enumerate(classes)}
    packed = np.empty((len(drawings), (DEFAULT_SIDE**2 + 7) // 8), dtype=np.uint8)
    for i, (_, _, archive, file) in enumerate(drawings):
        name = f"{printable(file)} in {archive.name}"
        pixels = read_image(archive.read(file), channels=1, name=name).numpy()
        is_square = pixels.shape == (1, DEFAULT_SIDE, DEFAULT_SIDE)
        check(is_square, f"{name} must be {DEFAULT_SIDE} x {DEFAULT_SIDE}, got shape {pixels.shape}")
        packed[i] = np.packbits(pixels.reshape(-1) < 128)
        progress(i + 1, len(drawings))
    with target.open("wb") as file_object:
        np.savez_compressed(
            file_object,
            images_packed=packed,
            label=np.array([label_of[name] for name, *_ in drawings], dtype=np.int16),
            drawer=np.array([drawer for _, drawer, *_ in drawings], dtype=np.uint8),
            classes=np.array(classes),
        )


def omniglot_split(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """Class lists of Vinyals et al., without the rotations that the lists repeat."""
    lists = {}
    for file in files:
        matches = [_VINYALS_LINE.fullmatch(line.strip()) for line in iter_lines(file)]
        lists[file.stem] = list(dict.fromkeys(match[1] for match in matches if match))
        check(lists[file.stem], f"{display_path(file)} must list characters, got none")
    _write_lists(target, lists)


def resize_cub(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """A zip file with the center square of each photo, one folder per class."""
    count = 0
    with zipfile.ZipFile(target, "w") as archive:
        for entry in tar_files(files[0], progress):
            if not (match := _CUB_PHOTO.fullmatch(entry.name)):
                continue
            data = entry.read(min(entry.size, limits.MAX_IMAGE_BYTES + 1))
            pixels = read_image(data, size=CUB_SIDE, channels=3, name=entry.name)
            stream = io.BytesIO()
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(stream, "jpeg", quality=JPEG_QUALITY)
            archive.writestr(f"{match[1]}/{match[2]}", stream.getvalue())
            count += 1
    check(count, f"{display_path(files[0])} must contain the photos of CUB-200-2011, got none")


def cub_split(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """Class lists of Chen et al. (A Closer Look at Few-shot Classification, 2019): every second class for training,
    and the others by turns for validation and test.
    """
    classes = sorted({PurePosixPath(file).parent.name for file in Archive(files[0]).files})
    _write_lists(target, {"train": classes[0::2], "val": classes[1::4], "test": classes[3::4]})


def shortest_pairs(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """German, English and attribution of the first pairs of `deu.txt`, which is sorted by length."""
    archive = Archive(files[0])
    check("deu.txt" in archive.files, f"{archive.name} must contain deu.txt, got {archive.files[:3]!s:.200}")
    with reraise(f"deu.txt in {archive.name} must be UTF-8 text", UnicodeDecodeError):
        lines = archive.read("deu.txt").decode("utf-8-sig").splitlines()
    rows = [cells for cells in (line.split("\t") for line in lines) if len(cells) >= 2][:NUM_PAIRS]
    check(rows, f"deu.txt in {archive.name} must have pairs separated by tabs, got none")
    text = "\n".join("\t".join([german, english, *rest]) for english, german, *rest in rows)
    target.write_text(text + "\n", encoding="utf-8")


def unpack_flickr8k(files: Sequence[Path], target: Path, progress: Progress) -> None:
    """The photos in `Images/`, and the captions and lists of the splits."""
    (target / "Images").mkdir(parents=True)
    photos, text = (Archive(file) for file in files)
    for i, file in enumerate(photos.files):
        path = PurePosixPath(file)
        if path.suffix.lower() == ".jpg" and re.fullmatch(r"[\w.-]+", path.name):
            (target / "Images" / path.name).write_bytes(photos.read(file))
        progress(i + 1, len(photos.files))
    for file in text.files:
        if re.fullmatch(r"Flickr_?8k\.[\w.]+\.txt", PurePosixPath(file).name):
            (target / PurePosixPath(file).name).write_bytes(text.read(file))
    if not (target / "Flickr8k.token.txt").is_file():
        raise SightlineError(f"{text.name} must contain Flickr8k.token.txt, got {text.files[:3]!s:.200}")


def _write_lists(folder: Path, lists: dict[str, list[str]]) -> None:
    folder.mkdir()
    for split, names in lists.items():
        (folder / f"{split}.json").write_text(json.dumps(names, indent=0, ensure_ascii=False), encoding="utf-8")
