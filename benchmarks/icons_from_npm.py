"""Render single-color icons of npm packages, as a few-shot data set.

    pip install resvg-py
    python -m benchmarks.icons_from_npm data/glyphs/icons.npz
    python -m benchmarks.icons_from_npm data/glyphs/other_icons.npz --without icon_sets.txt --min-sets 2

It needs npm, network access, and 1 GB of disk for the packages, which are kept. A class is a concept such as "bell",
and its images are icons of that name in different icon sets. Logos, emoji, mathematical signs and chess pieces are left
out, and so are sets whose license is not permissive. One concept in ten is in the evaluation split.
`icons.licenses.json` lists the icon sets with their authors and licenses.

`--without` leaves out icon sets by prefix or package. One set can hold icons of another: @trimble-oss/modus-icons has
many of Material Design.
"""

import argparse
import importlib
import io
import json
import re
import subprocess
import tarfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from . import packed_glyphs
from .packed_glyphs import Array


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ICONIFY = "@iconify/json"
"""A package of many icon sets."""
PACKAGES = (
    "@adobe/spectrum-css-workflow-icons",
    "@atlaskit/icon",
    "@douyinfe/semi-icons",
    "@infineon/infineon-icons",
    "@justeattakeaway/pie-icons",
    "@navikt/aksel-icons",
    "@skyscanner/bpk-svgs",
    "@sumup-oss/icons",
    "@trimble-oss/modus-icons",
    "@vkontakte/icons",
    "gestalt",
)
"""Packages of SVG files that are an icon set each."""
PERMISSIVE = re.compile(r"(MIT|Apache-2\.0|ISC|BSD-.*|CC0-1\.0|CC-BY-[34]\.0|OFL-1\.1|MPL-2\.0|Unlicense)")
EXCLUDED_CATEGORIES = ("Emoji", "Logos")

STYLES = _words("""
outline outlined outlines fill filled solid line lined linear bold thin light duotone sharp rounded round twotone two
tone regular broken baseline variant o alt alternate icon icons s l m n xs xl lg sm md small large medium mini micro
thick stroke stroked mono simple duo bulk glyph flat fat compact s2 v1 v2 remix flex plump ultimate new
""")
"""Words of a name that are not part of the concept; numbers are left out too."""
EXCLUDED_WORDS = _words("""
emoji emojis emoticon emote smile smiley smiling face faces laugh laughing grin happy sad angry mood cry crying wink
kiss chess math maths mathematical formula equation infinity sigma sqrt integral logo brand letter alphabet number
""")
"""Concepts with one of these words are no classes."""
EXCLUDED_CONCEPTS = _words("""
add plus minus remove times close cross cancel multiply divide division equal equals percent percentage pi sum function
greater less than not-equal more-than less-than greater-than root square-root omega alpha beta theta lambda delta union
intersect intersection tilde asterisk exclude subtract multiplication subtraction addition plus-minus superscript
subscript
""")
MAX_IMAGES = 28
"""Images of a class."""
MAX_PER_SET = 3
"""Images of a class from one icon set, in different styles."""
MIN_IMAGES = 8
"""Images of a class; distorted copies are added if at least half as many icons are found."""
SAME_IMAGE = 0.98
"""Cosine similarity of thumbnails from which two icons of a class are copies."""
MAX_CONFUSION = 0.25
"""Fraction of the images of two classes whose nearest image is of the other, from which the classes are synonyms."""
RENDER_SIZE = 160


class Icon(NamedTuple):
    """An icon as SVG."""

    icon_set: str
    svg: str


def main() -> None:
    """Download the packages, render every concept and write the images."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, default=Path("data/npm-icons"), help="folder of the packages")
    parser.add_argument("--without", type=Path, help="text file of icon sets to leave out, one per line")
    parser.add_argument("--min-sets", type=int, default=8, help="icon sets that a class must be in")
    args = parser.parse_args()
    excluded = set(args.without.read_text().split()) if args.without else set()
    download(args.packages)
    icons: dict[str, dict[str, list[Icon]]] = defaultdict(lambda: defaultdict(list))
    licenses: dict[str, dict[str, Any]] = {}
    for name, entry, svg, about in _read_icons(args.packages, excluded):
        licenses[name] = about
        icons[concept(entry)][name].append(Icon(name, svg))
    candidates = {name: sets for name, sets in icons.items() if len(sets) >= args.min_sets and is_wanted(name)}
    print(f"{len(licenses)} icon sets, {len(candidates):,} concepts in at least {args.min_sets}", flush=True)
    used: dict[str, Counter[str]] = {}
    images, thumbnails = {}, {}
    for name in sorted(candidates):
        packed, vectors, counts = render_concept(name, candidates[name])
        if len(packed) >= MIN_IMAGES:
            images[name], thumbnails[name], used[name] = packed, vectors, counts
    for name in synonyms(thumbnails, {name: len(candidates[name]) for name in images}):
        del images[name], used[name]
    totals = sum(used.values(), Counter[str]())
    for name, count in totals.most_common():
        print(f"{name:40}{count:6,} images")
    listed = [{**licenses[name], "images": totals[name]} for name in sorted(totals)]
    packed_glyphs.save(args.out, {f"{split_of(name)}/{name}": images[name] for name in sorted(images)}, listed)


def concept(name: str) -> str:
    """The concept of the name of an icon: "bell" for "BellFilled", "bell-outline-24" and "bell_16"."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
    return "-".join(word for word in words if word and word not in STYLES and not re.fullmatch(r"\d+(px)?", word))


def is_wanted(name: str) -> bool:
    """Whether a concept is a class."""
    return len(name) > 1 and name not in EXCLUDED_CONCEPTS and not EXCLUDED_WORDS & set(name.split("-"))


def split_of(name: str) -> str:
    """The split of a concept, which does not depend on the others."""
    return "evaluation" if zlib.crc32(name.encode()) % 10 == 0 else "background"


def download(folder: Path) -> None:
    """Download the packages that are not in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in (ICONIFY, *PACKAGES):
        if not list(folder.glob(_archive_pattern(package))):
            subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)


def render_concept(name: str, sets: dict[str, list[Icon]]) -> tuple[list[Array], list[Array], Counter[str]]:
    """Packed images, their thumbnails, and how many are from each icon set."""
    generator = np.random.default_rng([len(name), *name.encode()])
    order = [sorted(sets)[i] for i in generator.permutation(len(sets))]
    shuffled = {key: [sets[key][i] for i in generator.permutation(len(sets[key]))] for key in order}
    images: list[Array] = []
    shapes: list[Image.Image] = []
    thumbnails: list[Array] = []
    counts: Counter[str] = Counter()
    for rank in range(2 * MAX_PER_SET):
        for key in order:
            if len(images) < MAX_IMAGES and rank < len(shuffled[key]) and counts[key] < MAX_PER_SET:
                shape = render(shuffled[key][rank].svg)
                if shape is None:
                    continue
                thumbnail = packed_glyphs.thumbnail(shape)
                if not thumbnails or float((np.stack(thumbnails) @ thumbnail).max()) < SAME_IMAGE:
                    images.append(packed_glyphs.place(shape, generator))
                    shapes.append(shape)
                    thumbnails.append(thumbnail)
                    counts[key] += 1
    for shape in shapes if MIN_IMAGES // 2 <= len(images) < MIN_IMAGES else ():
        distorted = packed_glyphs.distort(shape, generator)
        if distorted is not None and len(images) < MIN_IMAGES:
            images.append(packed_glyphs.place(distorted, generator))
    return images, thumbnails, counts


def render(svg: str) -> Image.Image | None:
    """The cropped shape of an icon. None if it is empty, has several colors or cannot be read."""
    try:
        png = importlib.import_module("resvg_py").svg_to_bytes(svg_string=svg, width=RENDER_SIZE, height=RENDER_SIZE)
    except ValueError:
        return None
    rgba = np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGBA")).astype(np.int32)
    color, alpha = rgba[..., :3], rgba[..., 3]
    visible = alpha > 127
    if not visible.any():
        return None
    darkest = color[visible].min(0)
    has_one_color = np.mean(np.abs(color[visible] - darkest).max(1) > 64) < 0.02
    return packed_glyphs.crop(alpha.astype(np.uint8)) if has_one_color and visible.mean() < 0.9 else None


def synonyms(thumbnails: dict[str, list[Array]], num_sets: dict[str, int]) -> list[str]:
    """Classes that look like another one that is in more icon sets, such as "bin" and "trash"."""
    names = list(thumbnails)  # without distorted copies
    labels = np.repeat(np.arange(len(names)), [len(thumbnails[name]) for name in names])
    vectors = np.concatenate([np.stack(thumbnails[name]) for name in names])
    nearest = np.empty(len(labels), np.int64)
    for start in range(0, len(labels), 1000):
        similarity = vectors[start : start + 1000] @ vectors.T
        similarity[np.arange(len(similarity)), start + np.arange(len(similarity))] = -1
        nearest[start : start + 1000] = labels[similarity.argmax(1)]
    confusion = Counter(
        (min(a, b), max(a, b)) for a, b in zip(labels.tolist(), nearest.tolist(), strict=True) if a != b
    )
    counts = np.bincount(labels)
    dropped: set[str] = set()
    for (a, b), count in confusion.most_common():
        if count > MAX_CONFUSION * (counts[a] + counts[b]) and not {names[a], names[b]} & dropped:
            dropped.add(min(names[a], names[b], key=lambda name: num_sets[name]))
    return sorted(dropped)


def _read_icons(folder: Path, excluded: set[str]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Icon set, name and SVG of each icon, and the license of its set."""
    for package in (ICONIFY, *PACKAGES):
        [path] = folder.glob(_archive_pattern(package))
        with tarfile.open(path) as archive:
            about = json.loads(_member(archive, "package/package.json"))
            source = {"package": package, "version": about["version"]}
            if package == ICONIFY:
                for prefix, info in json.loads(_member(archive, "package/collections.json")).items():
                    license_name = info["license"].get("spdx", "")
                    is_shape = info.get("category") not in EXCLUDED_CATEGORIES and not info.get("palette")
                    if prefix in excluded or not is_shape or not PERMISSIVE.fullmatch(license_name):
                        continue
                    author = info["author"]["name"]
                    listed = {"set": prefix, "name": info["name"], "author": author, "license": license_name}
                    data = json.loads(_member(archive, f"package/json/{prefix}.json"))
                    for name, icon in data["icons"].items():
                        if not icon.get("hidden"):
                            yield prefix, name, _svg(icon, data), {**listed, **source}
            elif package not in excluded:
                assert PERMISSIVE.fullmatch(about["license"]), f"{package} has the license {about['license']}"
                listed = {"set": package, "license": about["license"]}
                for member in archive:
                    if member.name.endswith(".svg") and member.size < 20_000:
                        svg = _member(archive, member.name)
                        yield package, Path(member.name).stem, svg, {**listed, **source}


def _svg(icon: dict[str, Any], data: dict[str, Any]) -> str:
    """An icon of Iconify's JSON as an SVG file."""
    box = [icon.get(key, data.get(key, default)) for key, default in _BOX.items()]
    view = " ".join(map(str, box))
    return f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="{_XLINK}" viewBox="{view}">{icon["body"]}</svg>'


_BOX = {"left": 0, "top": 0, "width": 16, "height": 16}
_XLINK = "http://www.w3.org/1999/xlink"


def _member(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read().decode("utf-8", errors="replace")


def _archive_pattern(package: str) -> str:
    return package.lstrip("@").replace("/", "-") + "-[0-9]*.tgz"


if __name__ == "__main__":
    main()
