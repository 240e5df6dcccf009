"""Render letters and digits of living scripts in the fonts of Debian's packages, as a few-shot data set.

    python -m benchmarks.printed_from_debian data/glyphs/printed.npz
    python -m benchmarks.printed_from_debian data/glyphs/other_fonts.npz --without typefaces.txt

It needs Debian or a derivative (`apt-get download`, `dpkg-deb`, `fc-scan`), network access, and 4 GB of disk for the
packages, which are kept. The classes are "background/Script/U+0041"; an image is the same character in another font.
Scripts that are evaluation alphabets of Omniglot are "evaluation/…", so that they are not training classes: a model
that has learned printed Tibetan has not learned drawn Tibetan from one example. Living scripts are the recommended and
limited-use scripts of Unicode Standard Annex 31. `printed.licenses.json` lists the packages, fonts and licenses.

`--without` leaves out families whose names begin with a line of the file. Some fonts have the glyphs of another
typeface and must be listed too: Myanmar Njaun and Myanmar Phetsot those of Roboto, Ricty Diminished those of
Inconsolata, Carlito those of Lato, Px AmstradPC1512 many of Press Start 2P.
"""

import argparse
import re
import subprocess
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from . import packed_glyphs
from .packed_glyphs import Array

HAN = (
    "一右雨円王音下火花貝学気九休玉金空月犬見五口校左三山子四糸字耳七車手十出女小上森人水正生青夕石赤千川先早草足村大男竹中虫町天田土二日"
    "入年白八百文木本名目立力林六引羽雲園遠何科夏家歌画回会海絵外角楽活間丸岩顔汽記帰弓牛魚京強教近兄形計元言原戸古午後語工公広交光考行高"
    "黄合谷国黒今才細作算止市矢姉思紙寺自時室社弱首秋週春書少場色食心新親図数西声星晴切雪船線前組走多太体台地池知茶昼長鳥朝直通弟店点電刀"
    "冬当東答頭同道読内南肉馬売買麦半番父風分聞米歩母方北毎妹万明鳴毛門夜野友用曜来里理話"
)
"""The characters of the first two school years in Japan."""
HANGUL = "".join(
    chr(0xAC00 + 588 * initial + 28 * vowel + final)
    for initial in (0, 2, 3, 5, 6, 7, 9, 11, 12, 14, 15, 16, 17, 18)
    for vowel in (0, 2, 4, 6, 8, 12, 13, 17, 18, 20)
    for final in (0, (1, 4, 7, 8, 16, 17, 21)[(initial + vowel) % 7])
)
"""Plain consonants with plain vowels, alone and with a final consonant."""
SCRIPTS = {
    "Adlam": "1E900-1E943 1E950-1E959",
    "Arabic": "621-63A 641-64A 660-669 679 67E 686 688 691 698 6A9 6AF 6BA 6BE 6C1 6CC 6D2",
    "Armenian": "531-556 561-586",
    "Balinese": "1B05-1B33 1B50-1B59",
    "Bamum": "A6A0-A6E5",
    "Batak": "1BC0-1BE5",
    "Bengali": "985-9B9 9DC-9DF 9E6-9F1",
    "Bopomofo": "3105-3129",
    "Canadian_Aboriginal": "1401-1676",
    "Chakma": "11103-11126 11136-1113F",
    "Cham": "AA00-AA28 AA50-AA59",
    "Cherokee": "13A0-13F4",
    "Cyrillic": "410-44F 402 404 409 40A 40B 40F 452 454 459 45A 45B 490 492 49A 4A2 4AE 4BA 4D8 4E8",
    "Devanagari": "905-90C 90F-911 913-939 966-96F",
    "Ethiopic": "1200-1357",
    "Georgian": "10D0-10F0",
    "Greek": "391-3A9 3B1-3C9",
    "Gujarati": "A85-AB9 AE6-AEF",
    "Gurmukhi": "A05-A39 A59-A5E A66-A6F",
    "Han": HAN,
    "Hangul": HANGUL,
    "Hanifi_Rohingya": "10D00-10D23 10D30-10D39",
    "Hebrew": "5D0-5EA",
    "Hiragana": "3042 3044 3046 3048 304A-3062 3064-3094",
    "Javanese": "A984-A9B2 A9D0-A9D9",
    "Kannada": "C85-CB9 CE6-CEF",
    "Katakana": "30A2 30A4 30A6 30A8 30AA-30C2 30C4-30F4",
    "Kayah_Li": "A900-A925",
    "Khmer": "1780-17A2 17A5-17B3 17E0-17E9",
    "Lao": "E81-EB0 ED0-ED9",
    "Latin": "30-39 41-5A 61-7A C6 C7 D1 D8 DE DF E6 E7 E9 EA F0 F1 F8 FC FE 110 11E 141 142 152 153 160",
    "Lepcha": "1C00-1C23 1C40-1C49",
    "Limbu": "1900-191E 1946-194F",
    "Lisu": "A4D0-A4F7",
    "Malayalam": "D05-D39 D66-D6F D7A-D7F",
    "Mandaic": "840-858",
    "Meetei_Mayek": "ABC0-ABE2 ABF0-ABF9",
    "Miao": "16F00-16F4A",
    "Mongolian": "1820-1842 1810-1819",
    "Myanmar": "1000-1027 1029-102A 1040-1049",
    "New_Tai_Lue": "1980-19AB 19D0-19D9",
    "Newa": "11400-11434 11450-11459",
    "Nko": "7C0-7EA",
    "Nyiakeng_Puachue_Hmong": "1E100-1E12C 1E140-1E149",
    "Ol_Chiki": "1C50-1C77",
    "Oriya": "B05-B39 B5C-B5F B66-B6F",
    "Osage": "104B0-104FB",
    "Saurashtra": "A882-A8B3 A8D0-A8D9",
    "Sinhala": "D85-DC6 DE6-DEF",
    "Sundanese": "1B83-1BA0 1BB0-1BB9",
    "Syloti_Nagri": "A800-A822",
    "Syriac": "710-72C",
    "Tai_Le": "1950-1974",
    "Tai_Tham": "1A20-1A54 1A80-1A89",
    "Tai_Viet": "AA80-AAAF",
    "Tamil": "B85-BB9 BE6-BEF",
    "Telugu": "C05-C39 C66-C6F",
    "Thaana": "780-7A5",
    "Thai": "E01-E30 E50-E59",
    "Tibetan": "F40-F6C F20-F29",
    "Tifinagh": "2D30-2D67",
    "Vai": "A500-A60B A620-A629",
    "Wancho": "1E2C0-1E2EB 1E2F0-1E2F9",
    "Yi": "A000-A48C",
}
"""Characters of each script, as text or as ranges of code points, of which only letters and digits are used."""
OMNIGLOT_EVALUATION = (
    "Ethiopic",
    "Gurmukhi",
    "Kannada",
    "Malayalam",
    "Meetei_Mayek",
    "Mongolian",
    "Oriya",
    "Syloti_Nagri",
    "Syriac",
    "Tibetan",
)
"""Scripts of Omniglot's evaluation alphabets."""

EXCLUDED_PACKAGES = re.compile(
    "ancient|symbol|unifont|emoji|awesome|material|elusive|entypo|glyphicons|math|katex|lyx|denemo|circos|kanjistroke|"
    "dseg|wine|povray|powerline|train|babelstone|cns11643|cjk-extra|hanazono|ipamj|noto-ui|-docs?$|-web$"
)
"""Packages of symbols, ancient scripts and mathematics; further copies of fonts; very large packages."""
EXCLUDED_STYLES = re.compile("symbol|dingbat|icon|emoji|math|barcode|braille|ornament|extra ?light condensed", re.I)
MAX_CHARACTERS = 160
"""Characters of a script, evenly spaced; all of Han and Hangul."""
MAX_FONTS = 60
"""Fonts of a script."""
MAX_IMAGES = 36
"""Images of a class, each in another font."""
MAX_FONTS_PER_FAMILY = 8
MIN_COVERAGE = 0.6
"""Fraction of the characters of a script that a font must have."""
MIN_IMAGES = 12
"""Images of a class; distorted copies are added if there are fewer fonts."""
MIN_FONT_ACCURACY = 0.35
"""Fraction of the glyphs of a font whose nearest class mean is their own; other fonts contain something else."""
SAME_SHAPE, SAME_IMAGE = 0.97, 0.995
"""Cosine similarity of thumbnails from which two characters of a font, or two fonts of a character, are the same."""
MIN_FONTS_TO_COMPARE = 5
FONT_SIZE = 160
RECORD_END = "\x1e"


class Font(NamedTuple):
    """A font file."""

    path: Path
    package: str
    family: str
    style: str
    code_points: frozenset[int]


def main() -> None:
    """Download the packages, render every script and write the images."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, default=Path("data/debian-fonts"), help="folder of the packages")
    parser.add_argument("--without", type=Path, help="text file of typefaces to leave out, one per line")
    parser.add_argument("--scripts", nargs="+", default=list(SCRIPTS), help="only these scripts")
    args = parser.parse_args()
    excluded = [_key(line) for line in args.without.read_text().split("\n") if _key(line)] if args.without else []
    download(args.packages)
    fonts = [font for font in list_fonts(args.packages) if not _key(font.family).startswith(tuple(excluded))]
    print(f"{len(fonts):,} fonts of {len({_key(font.family) for font in fonts}):,} families", flush=True)
    images: dict[str, list[Array]] = {}
    used: Counter[Font] = Counter()
    for script in args.scripts:
        classes, script_fonts = render_script(script, fonts)
        images |= classes
        used += script_fonts
        num_families, num_images = len({font.family for font in script_fonts}), sum(map(len, classes.values()))
        print(f"{script:24}{len(classes):5} classes{num_images:7,} images{num_families:5} families", flush=True)
    packed_glyphs.save(args.out, images, _licenses(args.packages, used))


def characters(script: str) -> list[str]:
    """The letters and digits of a script, evenly spaced if there are many."""
    text = SCRIPTS[script]
    if not text.isascii():
        return list(text)
    ranges = [[int(end, 16) for end in part.split("-")] for part in text.split()]
    found = [chr(code) for span in ranges for code in range(span[0], span[-1] + 1)]
    found = [char for char in found if unicodedata.category(char) in ("Lu", "Ll", "Lo", "Nd")]
    step = max(1.0, len(found) / MAX_CHARACTERS)
    return [found[int(i * step)] for i in range(int(len(found) / step))]


def download(folder: Path) -> None:
    """Download and extract all packages of fonts that are not in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(_output("apt-cache", "pkgnames", "fonts-").split())
    missing = [name for name in names if not EXCLUDED_PACKAGES.search(name) and not (folder / name).exists()]
    if missing:
        subprocess.run(["apt-get", "download", "-qq", *missing], cwd=folder, check=True)
    for package in sorted(folder.glob("*.deb")):
        target = folder / package.name.split("_")[0]
        if not target.exists():
            subprocess.run(["dpkg-deb", "-x", package, target], check=True)


def list_fonts(folder: Path) -> list[Font]:
    """All font files, with the characters they contain."""
    fonts: dict[Path, Font] = {}
    fields = ("file", "index", "fontformat", "family[0]", "style[0]", "charset")
    pattern = "\\t".join(f"%{{{field}}}" for field in fields) + RECORD_END  # a style can contain a newline
    for line in _output("fc-scan", "--format", pattern, str(folder)).split(RECORD_END)[:-1]:
        file, index, kind, family, style, ranges = line.split("\t")
        path = Path(file)
        package = path.relative_to(folder).parts[0]
        is_wanted = index == "0" and kind in ("TrueType", "CFF") and path not in fonts
        if is_wanted and not EXCLUDED_PACKAGES.search(package) and not EXCLUDED_STYLES.search(f"{family} {style}"):
            fonts[path] = Font(path, package, family, style, frozenset(_code_points(ranges)))
    return [fonts[path] for path in sorted(fonts)]


def render_script(script: str, fonts: list[Font]) -> tuple[dict[str, list[Array]], Counter[Font]]:
    """Packed images of each character, in as many families as there are, and the fonts they are from."""
    generator = np.random.default_rng([len(script), *script.encode()])
    chars = characters(script)
    glyphs: dict[str, list[tuple[Font, Image.Image, Array]]] = defaultdict(list)
    missing: Counter[str] = Counter()
    num_fonts = 0
    for font in _in_order(fonts, chars, generator):
        shapes = list(_shapes(font, chars))
        kept = _distinct(shapes)
        if len(kept) < 0.3 * len(chars):
            continue
        missing.update({char for char, _, _ in shapes} - {char for char, _, _ in kept})
        for char, shape, thumbnail in kept:
            glyphs[char].append((font, shape, thumbnail))
        num_fonts += 1
        if num_fonts == MAX_FONTS:
            break
    glyphs = {char: found for char, found in glyphs.items() if len(found) > missing[char]}  # such as o beside O
    classes: dict[str, list[Array]] = {}
    used: Counter[Font] = Counter()
    misread = _misread_fonts(glyphs)
    folder = "evaluation" if script in OMNIGLOT_EVALUATION else "background"
    for char, found in glyphs.items():
        thumbnails: list[Array] = []
        images = []
        for font, shape, thumbnail in found:
            is_copy = any(float(thumbnail @ other) > SAME_IMAGE for other in thumbnails)
            if is_copy or font.path in misread or len(images) == MAX_IMAGES:
                continue
            thumbnails.append(thumbnail)
            images.append(packed_glyphs.place(shape, generator))
            used[font] += 1
        originals = [shape for font, shape, _ in found if font.path not in misread]
        for i in range(2 * MIN_IMAGES if originals and len(images) < MIN_IMAGES else 0):
            distorted = packed_glyphs.distort(originals[i % len(originals)], generator)
            if distorted is not None and len(images) < MIN_IMAGES:
                images.append(packed_glyphs.place(distorted, generator))
        if len(images) >= MIN_IMAGES:
            classes[f"{folder}/{script}/U+{ord(char):04X}"] = images
    return classes, used


def _in_order(fonts: list[Font], chars: list[str], generator: np.random.Generator) -> Iterator[Font]:
    """Fonts that contain the characters: one of each family, then a second one, and so on."""
    codes = {ord(char) for char in chars}
    families: dict[str, list[Font]] = defaultdict(list)
    for font in fonts:
        if len(codes & font.code_points) >= MIN_COVERAGE * len(codes):
            families[_key(font.family)].append(font)
    for name in families:
        members = families[name]
        families[name] = [members[i] for i in generator.permutation(len(members))][:MAX_FONTS_PER_FAMILY]
    order = [list(families.values())[i] for i in generator.permutation(len(families))]
    for rank in range(MAX_FONTS_PER_FAMILY):
        yield from (members[rank] for members in order if rank < len(members))


def _shapes(font: Font, chars: list[str]) -> Iterator[tuple[str, Image.Image, Array]]:
    """Each character of a font, cropped, with its thumbnail."""
    try:
        loaded = ImageFont.truetype(font.path, FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
    except OSError:  # a format that FreeType does not read
        return
    for char in chars:
        if ord(char) not in font.code_points:
            continue
        try:
            left, top, right, bottom = loaded.getbbox(char)
        except OSError:  # a damaged outline
            continue
        size = (int(right - left), int(bottom - top))
        if min(size) > 0 and max(size) < 4 * FONT_SIZE:
            canvas = Image.new("L", size)
            ImageDraw.Draw(canvas).text((-left, -top), char, fill=255, font=loaded)
            shape = packed_glyphs.crop(np.asarray(canvas))
            if shape is not None:
                yield char, shape, packed_glyphs.thumbnail(shape)


def _distinct(shapes: list[tuple[str, Image.Image, Array]]) -> list[tuple[str, Image.Image, Array]]:
    """Without characters that look like an earlier one of the font: lower case in capitals, or boxes for nothing."""
    if not shapes:
        return []
    thumbnails = np.stack([thumbnail for _, _, thumbnail in shapes])
    similarities = np.tril(thumbnails @ thumbnails.T, -1)
    return [shape for shape, similarity in zip(shapes, similarities.max(1), strict=True) if similarity < SAME_SHAPE]


def _misread_fonts(glyphs: dict[str, list[tuple[Font, Image.Image, Array]]]) -> set[Path]:
    """Fonts most of whose glyphs are not nearest to the mean of their character in the other fonts."""
    if len({font.path for found in glyphs.values() for font, _, _ in found}) < MIN_FONTS_TO_COMPARE:
        return set()
    items = [(font.path, label, x) for label, found in enumerate(glyphs.values()) for font, _, x in found]
    paths, labels = [path for path, _, _ in items], np.array([label for _, label, _ in items])
    thumbnails = np.stack([thumbnail for _, _, thumbnail in items])
    sums = np.stack([thumbnails[labels == label].sum(0) for label in range(len(glyphs))])
    products, squares, rows = thumbnails @ sums.T, (sums * sums).sum(1), np.arange(len(items))
    similarities = products / np.sqrt(squares)
    own = products[rows, labels]  # the mean of its own character is taken without it
    similarities[rows, labels] = (own - 1) / np.sqrt(np.maximum(squares[labels] - 2 * own + 1, 1e-6))
    is_right = similarities.argmax(1) == labels
    total, right = Counter(paths), Counter(path for path, hit in zip(paths, is_right.tolist(), strict=True) if hit)
    return {path for path, count in total.items() if right[path] < MIN_FONT_ACCURACY * count}


def _licenses(folder: Path, used: Counter[Font]) -> list[dict[str, Any]]:
    """Name, version, licenses, families and number of images of each package."""
    packages: dict[str, list[Font]] = defaultdict(list)
    for font in used:
        packages[font.package].append(font)
    result = []
    for name, fonts in sorted(packages.items()):
        [file] = folder.glob(f"{name}_*.deb")
        text = (folder / name / "usr/share/doc" / name / "copyright").read_text(errors="replace")
        found = re.findall(r"^License: *([^\n]+)", text, re.M) or [
            license_name
            for license_name, words in (("OFL-1.1", "Open Font License"), ("GPL", "General Public License"))
            if words.lower() in " ".join(text.split()).lower()
        ]
        result.append(
            {
                "package": name,
                "version": file.name.split("_")[1].replace("%3a", ":"),
                "source": "Debian",
                "licenses": sorted({license_name.strip() for license_name in found}) or ["see its copyright file"],
                "families": sorted({font.family for font in fonts}),
                "images": sum(used[font] for font in fonts),
            }
        )
    return result


def _key(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return re.sub(r"[\W_]", "", name.lower())


def _code_points(ranges: str) -> Iterator[int]:
    for part in ranges.split():
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


if __name__ == "__main__":
    main()
