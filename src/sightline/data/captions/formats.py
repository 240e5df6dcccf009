"""Readers of captioned images: Flickr8k in both of its layouts, COCO's JSON, JSON Lines, and drawn scenes.

| file | content |
| --- | --- |
| captions.txt | Flickr8k: `image,caption` lines after a header |
| Flickr8k.token.txt | Flickr8k: `image#number<tab>caption` lines; Flickr_8k.trainImages.txt and others are splits |
| captions_train2014.json | COCO: `images` and `annotations`; the name of the file has the split |
| captions.jsonl | objects with `image`, `captions` (or `caption`) and optionally `split` |

The images are in a folder or zip file beside it. Files of text can be compressed with gzip.
"""

import csv
import itertools
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ... import limits
from ...errors import SightlineError, SightlineWarning, check, reraise
from ...files import warn_of_path
from ...names import display_path, printable
from ..fetching.catalog import fetch_hint
from ..images.archives import open_archive
from ..images.paths import is_image_name
from ..text.reading import iter_lines, open_text
from . import shapes
from .datasets import CaptionedImages, CaptionSplits, check_caption

Row = tuple[str, str, str]
"""An image, one of its captions, and the split of the image, or "" if there are none."""
IMAGE_FOLDERS = (
    "Images",
    "images",
    "Flicker8k_Dataset",
    "Flickr8k_Dataset",
    "train2014",
    "val2014",
    "train2017",
    "val2017",
)
COCO_FOLDER = "annotations"
CAPTION_FILES = ("captions.jsonl", "captions.jsonl.gz", "captions.txt", "captions.txt.gz", "Flickr8k.token.txt")
VALIDATION_NAMES, TEST_NAMES = ("validation", "valid", "val", "dev"), ("test",)


def load_captions(
    source: str | Path,
    *,
    images: str | Path | None = None,
    validation_split: str | None = None,
    test_split: str | None = None,
) -> CaptionSplits:
    """Load captioned images from a file, a folder, or by the name `shapes`.

    Args:
        source: One of the files above, a folder that has one, or `shapes` for drawn scenes.
        images: Folder or zip file of the images (default: found beside the captions).
        validation_split: Name of the split to use for validation (default: validation, valid, val or dev).
        test_split: Name of the split to test on (default: test).
    """
    if str(source) == shapes.NAME:
        warn_of_path(shapes.NAME)
        return shapes.splits()
    path = Path(source).expanduser()
    check(
        path.exists(),
        f"captions must be a file or folder, got {display_path(path)!r}, which does not exist{fetch_hint(path)}",
    )
    files = _caption_files(path) if path.is_dir() else [path]
    home = path
    if not path.is_dir():
        home = path.parent.parent if path.parent.name == COCO_FOLDER else path.parent
    by_split = _captions_by_split(files, display_path(path))
    finder = _ImageFinder(home if images is None else Path(images).expanduser(), is_given=images is not None)
    splits = {name: _captioned(captions, finder, file=display_path(path)) for name, captions in by_split.items()}
    _check_disjoint(splits, display_path(path))
    return _assigned(splits, validation_split, test_split, display_path(path))


def _captions_by_split(files: Sequence[Path], name: str) -> dict[str, dict[str, list[str]]]:
    """The captions of each image in each split. Empty captions are left out, with a warning."""
    by_split: dict[str, dict[str, list[str]]] = {}
    num_empty = 0
    for image, caption, split in itertools.chain.from_iterable(map(_rows, files)):
        captions = by_split.setdefault(split, {}).setdefault(str(PurePosixPath(image)), [])
        if text := check_caption(caption, printable(image)):
            captions.append(text)
        else:
            num_empty += 1
    if num_empty:
        message = f"{name} has {num_empty:,} empty captions, which are left out"
        warnings.warn(message, SightlineWarning, stacklevel=3)
    without = len(by_split.get("", ())) if len(by_split) > 1 else 0
    check(not without, f"all images of {name} must have a split, or none, got {without:,} without one")
    return by_split


def has_captions(source: str | Path) -> bool:
    """Whether a source is one of captioned images: `shapes`, a file of captions, or a folder that has one."""
    if str(source) == shapes.NAME:
        return True
    path = Path(source).expanduser()
    if path.is_dir():
        return bool(_find_caption_files(path))
    names = (*CAPTION_FILES, "captions_*.json", "captions_*.json.gz", "*.jsonl", "*.jsonl.gz", "*.token.txt")
    return path.is_file() and any(path.match(name) for name in names)


def _assigned(splits: dict[str, CaptionedImages], validation: str | None, test: str | None, name: str) -> CaptionSplits:
    """Splits by their role. Other splits are left out. A single split that no option names is the training set."""
    if len(splits) == 1 and validation is None and test is None:
        return CaptionSplits(*splits.values())
    for option, split in (("validation_split", validation), ("test_split", test)):
        known = ", ".join(sorted(splits)) or "none"
        check(split is None or split in splits, f"{option} must be a split of {name} ({known}) or null, got {split!r}")
    found_test = test or next((split for split in TEST_NAMES if split in splits), None)
    found_validation = validation or next(
        (split for split in VALIDATION_NAMES if split in splits and split != found_test), None
    )
    check(
        found_test is None or found_test != found_validation,
        f"validation_split must not be test_split, got {found_test!r} for both",
    )
    others = [split for split in splits if split not in (found_validation, found_test)]
    train = "train" if "train" in others else others[0] if len(others) == 1 else None
    if train is None:
        raise SightlineError(f"{name} must have a split named train, got {', '.join(sorted(splits)) or 'no captions'}")
    unused = [f"{printable(split)} ({len(splits[split]):,} images)" for split in sorted(others) if split != train]
    if unused:
        message = f"splits of {name} are left out: {', '.join(unused)}; see data.validation_split and data.test_split"
        warnings.warn(message, SightlineWarning, stacklevel=3)
    return CaptionSplits(splits[train], splits.get(found_validation or "-"), splits.get(found_test or "-"))


def _check_disjoint(splits: dict[str, CaptionedImages], name: str) -> None:
    """Raise an error if an image is in two splits."""
    split_of: dict[Path, str] = {}
    for split, images in splits.items():
        for image, path in zip(images.names, images.paths, strict=True):
            other = split_of.setdefault(path, split)
            rule = f"an image of {name} must be in one split"
            check(other == split, f"{rule}, got {printable(image)!r} in {printable(other)!r} and {printable(split)!r}")


def _caption_files(folder: Path) -> list[Path]:
    """The files of captions in a folder, which must exist."""
    files = _find_caption_files(folder)
    rule = "a folder of captions must have captions.txt, Flickr8k.token.txt, captions.jsonl or captions_*.json"
    check(files, f"{rule}, got none of them in {display_path(folder)}")
    return files


def _find_caption_files(folder: Path) -> list[Path]:
    """The files of captions in a folder: all of COCO's, or the first of the other layouts."""
    candidates = [folder, folder / COCO_FOLDER, folder / "Flickr8k_text"]
    coco = [file for place in candidates for file in sorted(place.glob("captions_*.json"))]
    compressed = [file for place in candidates for file in sorted(place.glob("captions_*.json.gz"))]
    coco += [file for file in compressed if file.with_suffix("") not in coco]
    for name in CAPTION_FILES:
        for place in candidates:
            if (place / name).is_file():
                return [place / name]
    return coco


def _rows(file: Path) -> Iterator[Row]:
    """All captions of a file."""
    name = file.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return _read_json_lines(file)
    if name.endswith(".json"):
        return _read_coco(file)
    first = next(iter_lines(file), "")
    return _read_tokens(file) if re.match(r"[^\t]+#\d+\t", first) else _read_table(file)


def _read_table(file: Path) -> Iterator[Row]:
    """`image,caption` lines. A caption can be quoted."""
    lines = iter_lines(file)
    header = next(lines, "")
    rule = f"{display_path(file)} must start with the header image,caption, or have lines of image#number<tab>caption"
    check(header.replace(" ", "").lower() == "image,caption", f"{rule}, got {header[:60]!r}")
    for number, line in enumerate(lines, 2):
        if line.strip():
            cells = next(csv.reader([line])) if '"' in line else line.split(",", 1)
            check(len(cells) >= 2, f"line {number} of {display_path(file)} must be image,caption, got {line[:60]!r}")
            yield cells[0], ",".join(cells[1:]), ""


def _read_tokens(file: Path) -> Iterator[Row]:
    """`image#number<tab>caption` lines, with a list of images for each split beside them."""
    split_of: dict[str, str] = {}
    for split in ("train", "dev", "test"):
        listing = file.with_name(f"Flickr_8k.{split}Images.txt")
        if listing.is_file():
            for image in filter(None, map(str.strip, iter_lines(listing))):
                other = split_of.setdefault(image, split)
                rule = f"an image of {display_path(file)} must be in one split"
                check(other == split, f"{rule}, got {printable(image)!r} in {other!r} and {split!r}")
    for number, line in enumerate(iter_lines(file), 1):
        if not line.strip():
            continue
        key, tab, caption = line.partition("\t")
        image, mark, _ = key.rpartition("#")
        check(
            tab and mark, f"line {number} of {display_path(file)} must be image#number and a caption, got {line[:60]!r}"
        )
        if not split_of or image in split_of:  # Flickr8k has images of no split
            yield image, caption, split_of.get(image, "")


def _read_json_lines(file: Path) -> Iterator[Row]:
    for number, line in enumerate(iter_lines(file), 1):
        if not line.strip():
            continue
        where = f"line {number} of {display_path(file)}"
        with reraise(f"{where} must be JSON", ValueError, RecursionError):
            value = json.loads(line)
        rule = f"{where} must be an object with image and captions"
        if not isinstance(value, dict) or not isinstance(value.get("image"), str):
            raise SightlineError(f"{rule}, got {line[:60]!r}")
        captions = value.get("captions", value.get("caption"))
        captions = [captions] if isinstance(captions, str) else captions
        check(isinstance(captions, list), f"{rule}, got {type(captions).__name__} as captions")
        for caption in captions or ():
            yield value["image"], caption, str(value.get("split") or "")


def _read_coco(file: Path) -> Iterator[Row]:
    maximum, name = limits.MAX_CAPTIONS_BYTES, display_path(file)
    with open_text(file) as stream:
        content = stream.read(maximum + 1)
    check(len(content) <= maximum, f"{name} must be at most {maximum:,} bytes, got more")
    rule = f"{name} must have images with id and file_name, and annotations with image_id and caption"
    with reraise(rule, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        values = json.loads(content)
        names = {image["id"]: str(image["file_name"]) for image in values["images"]}
        notes = [(note["image_id"], note["caption"]) for note in values["annotations"]]
    unknown = next((image for image, _ in notes if image not in names), None)
    check(unknown is None, f"image_id of annotations in {name} must be the id of one of its images, got {unknown!r}")
    rows = [(names[image], caption) for image, caption in notes]
    match = re.match(r"captions_([a-z]+)", file.name)
    split = match[1] if match else ""
    yield from ((image, caption, split) for image, caption in rows)


class _ImageFinder:
    """Finds the image files that captions name: in a folder, in known folders of it, or in a zip file."""

    def __init__(self, place: Path, *, is_given: bool):
        name = display_path(place)
        check(place.exists(), f"images must be a folder or zip file, got {name!r}, which does not exist")
        if place.is_dir() and not is_given:
            zips = sorted(place.glob("*.zip"))
            has_images = any((place / folder).is_dir() for folder in IMAGE_FOLDERS) or _has_images(place)
            place = zips[0] if len(zips) == 1 and not has_images else place
        self.archive = None if place.is_dir() else place
        self.entries: dict[str, list[str]] = {}
        """Images of the zip file by the last part of their names."""
        for entry in () if self.archive is None else open_archive(self.archive).files:
            if is_image_name(base := PurePosixPath(entry).name):
                self.entries.setdefault(base, []).append(entry)
        self.folders = [place, *(place / folder for folder in IMAGE_FOLDERS if (place / folder).is_dir())]

    def find(self, name: str) -> Path | None:
        """The file of an image, or its entry in the zip file; None if there is none."""
        parts = PurePosixPath(name).parts
        is_relative = bool(parts) and not PurePosixPath(name).is_absolute() and ".." not in parts and "\\" not in name
        check(is_relative, f"image names in captions must be relative paths, got {name!r:.200}")
        if self.archive is not None:
            return self._find_entry(str(PurePosixPath(name)))
        return next((folder / name for folder in self.folders if (folder / name).is_file()), None)

    def _find_entry(self, name: str) -> Path | None:
        """The entry of this name, or the only one that ends in it, or the only one with the same last part."""
        entries = self.entries.get(PurePosixPath(name).name, [])
        found = [name] if name in entries else [entry for entry in entries if entry.endswith(f"/{name}")] or entries
        if len(found) > 1:
            rule = f"image names in captions must be those of one file of {display_path(self.archive or Path())}"
            examples = " and ".join(repr(printable(entry)) for entry in found[:2])
            raise SightlineError(f"{rule}, got {printable(name)!r} for {examples}; write more of the path")
        return Path(found[0]) if found else None


def _has_images(folder: Path) -> bool:
    return any(is_image_name(file.name) for file in folder.iterdir())


def _captioned(captions: dict[str, list[str]], finder: _ImageFinder, *, file: str) -> CaptionedImages:
    """The images of a split that have a caption, ordered by name. Missing images are an error."""
    names = sorted(image for image, texts in captions.items() if texts)
    check(names, f"{file} must have at least one caption, got none")
    maximum = limits.MAX_CAPTIONED_IMAGES
    check(len(names) <= maximum, f"{file} must have at most {maximum:,} images, got {len(names):,}")
    paths = [finder.find(name) for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if path is None]
    place = finder.archive or finder.folders[0]
    example = printable(missing[0]) if missing else ""
    fix = f"put them into {display_path(place)}, or train with data.images=FOLDER"
    check(
        not missing,
        f"images of {file} must exist, got {len(missing):,} without a file, such as {example!r}; {fix}",
    )
    found = tuple(path for path in paths if path is not None)
    return CaptionedImages(tuple(tuple(captions[name]) for name in names), tuple(names), found, finder.archive)
