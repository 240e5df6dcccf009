"""Make a gallery of captions: each image, its caption, and the maps of the content words.

    python docs/caption_gallery.py RUN [IMAGE or FOLDER ...] [--out docs/images/captions-shapes.png] [--count 12]

Without images, new scenes are drawn: the first ones, and at the end up to four of the next ones whose captions are
wrong, in red and with a reference. `--names` prints the file names below the images.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import sightline
from sightline.data.captions import shapes
from sightline.tasks.captioning.metrics import equals_one, words
from sightline.view import heatmaps
from sightline.view.captions import WordMap

DRAWN_SEED = 3
"""Not that of training, validation or test scenes."""
DRAWN_SCENES, WRONG_SCENES = 200, 4
"""Drawn scenes among which wrong captions are looked for, and how many are shown."""
SIDE, GAP, LINE, MAX_WORDS, COLUMNS = 132, 6, 18, 4, 2
FUNCTION_WORDS = frozenset(
    words(
        "a an the of in on at to by with and or is are his her their its it he she they through "
        "left right above below over under"
    )
)
Array = np.ndarray[Any, Any]


def shown_words(caption: Sequence[WordMap]) -> list[WordMap]:
    """The content words of a caption, at most `MAX_WORDS`: those whose maps have the largest maxima, in order."""
    content = [word for word in caption if word.word.lower() not in FUNCTION_WORDS and word.weights is not None]
    largest = sorted(content, key=lambda word: -float(word.mean().max()))[:MAX_WORDS]
    return [word for word in content if any(word is other for other in largest)]


def draw_row(pixels: Array, caption: Any, references: Sequence[str], name: str) -> Image.Image:
    """The image and the maps of its words in a row, and the caption below them."""
    shown = shown_words(caption.words)
    scale = heatmaps.common_scale([word.mean() for word in shown])
    is_right = not references or equals_one(caption.text, references)
    lines = [caption.text] + ([] if is_right else [f"reference: {references[0]}"]) + ([name] if name else [])
    height = SIDE + LINE + 2 * GAP + LINE * 2 + (LINE if name else 0)
    row = Image.new("RGB", ((SIDE + GAP) * (MAX_WORDS + 1) + 3 * GAP, height), "white")
    draw, font = ImageDraw.Draw(row), ImageFont.load_default(14)
    row.paste(Image.fromarray(heatmaps.dim(pixels, None, 1.0, SIDE)), (0, LINE))
    for i, word in enumerate(shown, 1):
        left = i * (SIDE + GAP)
        row.paste(Image.fromarray(heatmaps.dim(pixels, word.mean(), scale, SIDE)), (left, LINE))
        draw.text((left, 0), word.word, fill="#a85400", font=font)
    for i, line in enumerate(lines):
        color = ("#1b2a41" if is_right else "#b3261e") if i == 0 else "#5d6b7e"
        draw.text((0, SIDE + LINE + GAP + LINE * i), line, fill=color, font=font)
    return row


def draw_gallery(rows: Sequence[Image.Image]) -> Image.Image:
    """The rows in columns."""
    width, height = rows[0].size
    num_rows = -(-len(rows) // COLUMNS)
    sheet = Image.new("RGB", (width * COLUMNS + 2 * GAP, height * num_rows + 2 * GAP), "white")
    for i, row in enumerate(rows):
        sheet.paste(row, (2 * GAP + width * (i % COLUMNS), 2 * GAP + height * (i // COLUMNS)))
    return sheet


def drawn_scenes(predictor: Any, count: int) -> tuple[list[Any], list[tuple[str, ...]], list[Path]]:
    """Pixels, references and names: the first scenes, and wrong ones of the next scenes."""
    scenes = shapes.draw(DRAWN_SCENES, seed=DRAWN_SEED)
    _, captions = predictor.caption_images(scenes)
    pairs = zip(captions, scenes.captions, strict=True)
    wrong = [i for i, (caption, texts) in enumerate(pairs) if not equals_one(caption.text, texts)]
    print(f"{len(wrong)} of {len(scenes)} captions are wrong")
    shown = [i for i in wrong if i >= count - WRONG_SCENES][:WRONG_SCENES]
    chosen = scenes.take([*range(count - len(shown)), *shown])
    assert chosen.pixels is not None
    return list(chosen.pixels), list(chosen.captions), [Path(name) for name in chosen.names]


def main() -> None:
    """Caption, draw, and print the captions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("images", nargs="*", help="images or folders of images (default: drawn scenes)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images" / "captions-shapes.png")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--names", action="store_true", help="print the names of the files")
    arguments = parser.parse_args()
    predictor: Any = sightline.load(arguments.run)
    if arguments.images:
        paths = predictor.parse_inputs(arguments.images)[: arguments.count]
        pictures, references, names = [predictor.prepare(path) for path in paths], [()] * len(paths), paths
    else:
        pictures, references, names = drawn_scenes(predictor, arguments.count)
    rows = []
    captions = predictor.predict_batch(pictures, attention=True)
    for pixels, caption, texts, name in zip(pictures, captions, references, names, strict=True):
        print(f"{name.name}: {caption.text}")
        picture = pixels.permute(1, 2, 0).squeeze(-1).numpy()
        rows.append(draw_row(picture, caption, texts, name.stem if arguments.names else ""))
    draw_gallery(rows).save(arguments.out, optimize=True)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
