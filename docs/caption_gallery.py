"""Make a gallery of captions: each image, its caption, and the maps of the content words.

    python docs/caption_gallery.py                         # photos of other packages, by the pretrained model `caption`
    python docs/caption_gallery.py runs/shapes --count 16  # drawn scenes, by a model of them
    python docs/caption_gallery.py RUN IMAGE… --out FILE   # your own images

The photos are those of scikit-image, scikit-learn and matplotlib: `pip install --no-deps scikit-image scikit-learn
matplotlib`. Of drawn scenes, the gallery has the first ones, and at the end up to four of the next ones whose captions
are wrong, in red and with a reference.
"""

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import sightline
from sightline.data.captions import shapes
from sightline.names import shortened
from sightline.tasks.captioning.metrics import equals_one, words
from sightline.view import heatmaps
from sightline.view.captions import WordMap

DRAWN_SEED = 3
"""Not that of training, validation or test scenes."""
DRAWN_SCENES, WRONG_SCENES = 200, 4
"""Drawn scenes among which wrong captions are looked for, and how many are shown."""
PHOTOS = {
    ("skimage", "data"): {
        "astronaut.png": "an astronaut beside a model of a rocket",
        "camera.png": "a man with a camera on a tripod",
        "chelsea.png": "a cat",
        "coffee.png": "a cup of coffee",
        "rocket.jpg": "a rocket before its launch",
        "horse.png": "the silhouette of a horse",
        "coins.png": "coins",
        "clock_motion.png": "a clock, blurred by motion",
        "hubble_deep_field.jpg": "galaxies",
    },
    ("sklearn", "datasets/images"): {"china.jpg": "a temple above a lake", "flower.jpg": "a flower"},
    ("matplotlib", "mpl-data/sample_data"): {"grace_hopper.jpg": "an officer before a flag"},
}
"""What is on photos that may be published, by package, folder and file. The licenses are in docs/captioning.md."""
SIDE, GAP, LINE, MAX_WORDS, MAX_CHARS, COLUMNS = 132, 6, 18, 4, 96, 2
IMAGES = Path(__file__).parent / "images"
FUNCTION_WORDS = frozenset(
    words(
        "a an the of in on at to by with and or is are his her their its it he she they through "
        "left right above below over under"
    )
)
Array = np.ndarray[Any, Any]


class Row(NamedTuple):
    """An image of the gallery."""

    pixels: Any
    """uint8 (C, side, side), as the model takes it."""
    references: Sequence[str] = ()
    """Captions that are right, if they are known."""
    note: str = ""
    """What is on the image, in other words than the model's."""


def shown_words(caption: Sequence[WordMap]) -> list[WordMap]:
    """The content words of a caption, each once, at most `MAX_WORDS`: those whose maps have the largest maxima."""
    known = {word.word.lower(): word for word in reversed(caption) if words(word.word) and word.weights is not None}
    content = [word for word in caption if known.get(word.word.lower()) is word and word.word not in FUNCTION_WORDS]
    largest = sorted(content, key=lambda word: -float(word.mean().max()))[:MAX_WORDS]
    return [word for word in content if any(word is other for other in largest)]


def draw_row(row: Row, caption: Any) -> Image.Image:
    """The image and the maps of its words in a row, and the caption below them."""
    pixels, shown = row.pixels.permute(1, 2, 0).squeeze(-1).numpy(), shown_words(caption.words)
    scale = heatmaps.common_scale([word.mean() for word in shown])
    is_right = not row.references or equals_one(caption.text, row.references)
    notes = [] if is_right else [f"reference: {row.references[0]}"]
    lines = [shortened(caption.text, MAX_CHARS), *notes, row.note]
    sheet = Image.new("RGB", ((SIDE + GAP) * (MAX_WORDS + 1) + 3 * GAP, SIDE + 3 * LINE + 2 * GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    sheet.paste(Image.fromarray(heatmaps.dim(pixels, None, 1.0, SIDE)), (0, LINE))
    for i, word in enumerate(shown, 1):
        left = i * (SIDE + GAP)
        sheet.paste(Image.fromarray(heatmaps.dim(pixels, word.mean(), scale, SIDE)), (left, LINE))
        draw.text((left, 0), word.word, fill="#a85400", font=font)
    for i, line in enumerate(lines):
        color = ("#1b2a41" if is_right else "#b3261e") if i == 0 else "#5d6b7e"
        draw.text((0, SIDE + LINE + GAP + LINE * i), line, fill=color, font=font)
    return sheet


def draw_gallery(rows: Sequence[Image.Image]) -> Image.Image:
    """The rows in columns."""
    width, height = rows[0].size
    num_rows = -(-len(rows) // COLUMNS)
    sheet = Image.new("RGB", (width * COLUMNS + 2 * GAP, height * num_rows + 2 * GAP), "white")
    for i, row in enumerate(rows):
        sheet.paste(row, (2 * GAP + width * (i % COLUMNS), 2 * GAP + height * (i // COLUMNS)))
    return sheet


def drawn_scenes(predictor: Any, count: int) -> list[Row]:
    """The first drawn scenes, and wrong ones of the next scenes."""
    scenes = shapes.draw(DRAWN_SCENES, seed=DRAWN_SEED)
    _, captions = predictor.caption_images(scenes)
    pairs = zip(captions, scenes.captions, strict=True)
    wrong = [i for i, (caption, texts) in enumerate(pairs) if not equals_one(caption.text, texts)]
    print(f"{len(wrong)} of {len(scenes)} captions are wrong")
    shown = [i for i in wrong if i >= count - WRONG_SCENES][:WRONG_SCENES]
    chosen = scenes.take([*range(count - len(shown)), *shown])
    assert chosen.pixels is not None
    return [Row(*values) for values in zip(chosen.pixels, chosen.captions, strict=True)]


def photos() -> dict[Path, str]:
    """The files of `PHOTOS`, located without importing their packages, and what is on them."""
    found: dict[Path, str] = {}
    for (package, folder), files in PHOTOS.items():
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise SystemExit(f"the gallery needs the photos of {package}, which is not installed; see --help")
        home = Path((spec.submodule_search_locations or [""])[0]) / folder
        found |= {home / name: f"photo: {text}" for name, text in files.items()}
    return found


def main() -> None:
    """Caption, draw, and print the captions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="caption")
    parser.add_argument("images", nargs="*", help="images or folders of images (default: photos, or drawn scenes)")
    parser.add_argument("--out", type=Path, help="default: captions-photos.jpg or captions-shapes.png in docs/images")
    parser.add_argument("--count", type=int, default=12)
    arguments = parser.parse_args()
    predictor: Any = sightline.load(arguments.run)
    is_drawn = not arguments.images and predictor.data_source == shapes.NAME
    if is_drawn:
        rows = drawn_scenes(predictor, arguments.count)
    else:
        given = {path: path.name for path in predictor.parse_inputs(arguments.images)} if arguments.images else photos()
        rows = [Row(predictor.prepare(path), note=note) for path, note in [*given.items()][: arguments.count]]
    captions = predictor.predict_batch([row.pixels for row in rows], attention=True)
    for row, caption in zip(rows, captions, strict=True):
        print(f"{caption.text}  ({row.note or row.references[0]})")
    out = arguments.out or IMAGES / ("captions-shapes.png" if is_drawn else "captions-photos.jpg")
    sheet = draw_gallery([draw_row(row, caption) for row, caption in zip(rows, captions, strict=True)])
    sheet.save(out, optimize=True, quality=85)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
