"""Checks of image files: skipped files, files that cannot be read, duplicates. All findings are one list."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ... import limits
from ...errors import SightlineError, check
from ...names import display_path, printable
from ...output import aligned
from ...progress import Progress
from .datasets import DECODING_THREADS, ImageFiles, Images, open_image_file
from .formats.class_folders import EMPTY_FOLDER, image_files
from .paths import HEIF_SUFFIXES, NEEDS_HEIF, has_heif, is_hidden, is_image_name

SIDE = 32
"""Side of the color thumbnails that are compared."""
NEAR_CORRELATION = 0.985
"""Correlation of two thumbnails from which on their images are near duplicates."""
MIN_STD = 2.0
"""Standard deviation of every color channel, of 255, below which an image is blank."""
TEXTURE_SIDE = 256
"""Side at which an image with a blank thumbnail is read again: a fine texture is not blank."""
MAX_COMPARED = 5000
"""Images that are compared with each other; of more, an evenly spaced sample."""
MAX_LISTED = 10
"""Findings of one kind that are listed."""
MAX_NAMES = 3
"""File names in one finding."""


@dataclass(frozen=True)
class Finding:
    """Something about a data set that its owner should know."""

    kind: str
    """skipped, unusable, blank, duplicate, similar or label."""
    text: str


@dataclass(frozen=True)
class Listing:
    """The entries of a folder and its subfolders, as relative paths with slashes; hidden entries are left out."""

    images: tuple[str, ...]
    others: tuple[str, ...]
    """Files that are not read as images."""
    empty: tuple[str, ...]
    """Folders without an image."""


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Color thumbnails of image files, and what could not be read."""

    names: tuple[str, ...]
    """Path of each image, relative to the data set."""
    classes: tuple[str, ...]
    """Class of each image."""
    splits: tuple[str, ...]
    """Split of each image."""
    pixels: Tensor
    """uint8 (N, 3, SIDE, SIDE); zeros for an image that cannot be read."""
    is_blank: Tensor
    """bool (N,): whether all pixels are alike."""
    digests: tuple[str | None, ...]
    """Digest of each file; None if it cannot be read."""
    errors: tuple[str, ...]
    total: int
    """Images of the data set, of which N are here."""

    def select(self, rows: Sequence[int]) -> "Thumbnails":
        """The images at these rows, as a data set of their own."""
        names, classes, splits = (tuple(x[i] for i in rows) for x in (self.names, self.classes, self.splits))
        digests = tuple(self.digests[i] for i in rows)
        pixels, is_blank = self.pixels[list(rows)], self.is_blank[list(rows)]
        return Thumbnails(names, classes, splits, pixels, is_blank, digests, (), len(rows))


def are_blank(pixels: Tensor) -> Tensor:
    """Whether all pixels of each image are alike: uint8 (N, C, height, width) -> bool (N,)"""
    return pixels.float().flatten(2).std(2).amax(1) < MIN_STD


def as_text(findings: Sequence[Finding], source: str | Path) -> str:
    """All findings as one list; empty without any."""
    if not findings:
        return ""
    counts, rows = Counter(finding.kind for finding in findings), list[list[str]]()
    shown: Counter[str] = Counter()
    for finding in findings:
        shown[finding.kind] += 1
        if shown[finding.kind] <= MAX_LISTED:
            rows.append([f"  {finding.kind}", finding.text])
        if shown[finding.kind] == counts[finding.kind] > MAX_LISTED:
            rows.append([f"  {finding.kind}", f"and {counts[finding.kind] - MAX_LISTED:,} more"])
    plural = "s" if len(findings) > 1 else ""
    return "\n".join([f"{len(findings):,} finding{plural} in {display_path(source)}:", *aligned(rows)])


def list_folder(folder: Path) -> Listing:
    """List a folder of class folders."""
    images, others, empty = list[str](), list[str](), list[str]()

    def visit(path: Path, prefix: str, depth: int) -> bool:
        """Whether there is an image below a folder."""
        depth_limit, file_limit, name = limits.MAX_FOLDER_DEPTH, limits.MAX_IMAGE_FILES, display_path(folder)
        check(depth <= depth_limit, f"a data set must have at most {depth_limit} nested folders, got more in {name}")
        is_few = len(images) + len(others) <= file_limit
        check(is_few, f"a data set must have at most {file_limit:,} images, got more files in {name}")
        has_images = False
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    has_images |= visit(path / entry.name, f"{prefix}{entry.name}/", depth + 1)
                else:
                    is_image = bool(prefix) and is_image_name(entry.name)
                    (images if is_image else others).append(prefix + entry.name)
                    has_images |= is_image
        if prefix and not has_images:
            empty.append(prefix.rstrip("/"))
        return has_images

    visit(folder, "", 0)
    return Listing(tuple(images), tuple(others), tuple(empty))


def skipped_files(listing: Listing) -> list[Finding]:
    """The files that are not read, by reason."""
    heif, loose = list[str](), list[str]()
    by_suffix: dict[str, list[str]] = {}
    for name in listing.others:
        suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - fast
        if suffix in HEIF_SUFFIXES and not has_heif():
            heif.append(name)
        elif is_image_name(name.rpartition("/")[2]):
            loose.append(name)
        else:
            by_suffix.setdefault(suffix or "no suffix", []).append(name)
    findings = [_skipped(heif, f"HEIC images, {NEEDS_HEIF}"), _skipped(loose, "images outside the class folders")]
    findings += [_skipped(names, f"not images ({suffix})") for suffix, names in sorted(by_suffix.items())]
    return [finding for finding in findings if finding is not None]


def folder_errors(folder: Path) -> list[str]:
    """All reasons why a folder cannot be read as class folders: empty folders, structure, images that are damaged."""
    listing = list_folder(folder)
    errors = [EMPTY_FOLDER.format(display_path(folder / name)) for name in listing.empty]
    try:
        splits = image_files(folder, listing.images, SIDE, 1)
    except SightlineError as error:
        return [*errors, str(error)]
    return [*errors, *read_thumbnails(splits, folder, sample=False).errors]


def read_thumbnails(
    splits: Mapping[str, Images], root: Path, progress: Progress | None = None, *, sample: bool = True
) -> Thumbnails:
    """Read thumbnails of the image files of a data set; with `sample`, of at most `MAX_COMPARED`."""
    files = {split: replace(x, size=SIDE, channels=3) for split, x in splits.items() if isinstance(x, ImageFiles)}
    entries = [(split, images, i) for split, images in files.items() for i in range(len(images))]
    total = len(entries)
    if sample and total > MAX_COMPARED:
        entries = [entries[i] for i in np.linspace(0, total - 1, MAX_COMPARED).round().astype(int).tolist()]
    pixels, errors = torch.zeros(len(entries), 3, SIDE, SIDE, dtype=torch.uint8), list[str]()
    is_blank = torch.zeros(len(entries), dtype=torch.bool)

    def read(row: int) -> str | None:
        _, images, i = entries[row]
        try:
            pixels[row] = images.read(i)
            if are_blank(pixels[row][None]):
                is_blank[row] = are_blank(replace(images, size=TEXTURE_SIDE).read(i)[None])
        except SightlineError as error:
            errors.append(str(error))
            return None
        source, _ = open_image_file(images.paths[i], images.archive)
        return hashlib.sha256(source if isinstance(source, bytes) else source.read_bytes()).hexdigest()

    digests = list[str | None]()
    with ThreadPoolExecutor(DECODING_THREADS) as pool:
        for digest in pool.map(read, range(len(entries))):
            digests.append(digest)
            if progress is not None:
                progress(len(digests), len(entries))
    names = tuple(relative_name(images.paths[i], root) for _, images, i in entries)
    classes = tuple(images.classes[int(images.labels[i])] for _, images, i in entries)
    splits_of = tuple(split for split, _, _ in entries)
    return Thumbnails(names, classes, splits_of, pixels, is_blank, tuple(digests), tuple(sorted(errors)), total)


def image_findings(thumbnails: Thumbnails) -> list[Finding]:
    """Images that cannot be read, blank images, duplicates and near duplicates; the worst first."""
    findings = [Finding("unusable", error) for error in thumbnails.errors]
    blank = thumbnails.is_blank.nonzero().flatten().tolist()
    findings += [Finding("blank", f"{printable(thumbnails.names[i])}: all pixels are alike") for i in blank]
    same: dict[str, list[int]] = {}
    for i, digest in enumerate(thumbnails.digests):
        if digest is not None:
            same.setdefault(digest, []).append(i)
    exact = [group for group in same.values() if len(group) > 1]
    first = [group[0] for group in same.values() if not thumbnails.is_blank[group[0]]]  # one of each file
    near = [[*group] for group in near_groups(thumbnails.pixels[first], first)]
    for kind, text, groups in (("duplicate", "the same image", exact), ("similar", "nearly the same image", near)):
        worded = [_worded(thumbnails, group, text) for group in groups]
        findings += [Finding(kind, text) for _, text in sorted(worded, key=lambda pair: pair[0])]
    if thumbnails.total > len(thumbnails.names):
        compared = f"{len(thumbnails.names):,} of {thumbnails.total:,} images were compared"
        findings.append(Finding("note", f"duplicates: only {compared}"))
    return findings


def _skipped(names: Sequence[str], reason: str) -> Finding | None:
    if not names:
        return None
    plural = "s" if len(names) > 1 else ""
    return Finding("skipped", f"{len(names):,} file{plural}, {reason}: {_listed(names)}")


def near_groups(pixels: Tensor, indices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Groups of images whose thumbnails correlate, by their indices."""
    vectors = pixels.float().flatten(1)
    vectors = vectors - vectors.mean(1, keepdim=True)
    vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-6)
    parent = list(range(len(indices)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for start in range(0, len(indices), 512):
        correlated = vectors[start : start + 512] @ vectors.T >= NEAR_CORRELATION
        for row, column in correlated.nonzero().tolist():
            if start + row < column:
                parent[root(column)] = root(start + row)
    groups: dict[int, list[int]] = {}
    for i, index in enumerate(indices):
        groups.setdefault(root(i), []).append(index)
    return (tuple(group) for group in groups.values() if len(group) > 1)


def _worded(thumbnails: Thumbnails, group: Sequence[int], text: str) -> tuple[int, str]:
    """How bad a group of duplicates is, 0 for the worst, and a line about it."""
    splits, classes = ({values[i] for i in group} for values in (thumbnails.splits, thumbnails.classes))
    unique = dict.fromkeys(thumbnails.names[i] for i in group)  # files of the same name can be from several folders
    names = _listed(unique) + (f", {len(group)} times" if len(unique) == 1 else "")
    if len(splits) > 1:
        return 0, f"{names}: {text} in {' and '.join(sorted(splits))}, which makes the accuracy too high"
    if len(classes) > 1:
        which = "" if len(unique) == len(group) else f": {_listed(sorted(classes))}"
        return 1, f"{names}: {text} in {len(classes)} classes{which}"
    return 2, f"{names}: {text}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(map(printable, names[:MAX_NAMES])) + more


def relative_name(path: Path, root: Path) -> str:
    """The path of an image inside its folder or archive."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
