"""Summary of captioned images as text, and a contact sheet of images with their captions."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ...names import shortened
from ...output import aligned
from ..images.datasets import as_array
from .datasets import CaptionedImages, CaptionSplits

SHEET_IMAGES = 24
"""Images of a contact sheet, evenly spaced over the data set."""
SHEET_CAPTIONS = 2
"""Captions of each image on a contact sheet."""
COMMON_WORDS = 12
"""Most frequent words that are listed."""
MAX_NAME_CHARS = 40
_CELL, _GAP, _LINE, _COLUMNS = 160, 12, 15, 4


def summarize(splits: CaptionSplits, source: str | Path) -> str:
    """Counts of images, captions and words of each split, and the most frequent words."""
    rows = [["split", "images", "captions", "per image", "words per caption", "distinct words"]]
    for name, images in splits.available.items():
        per_image = sorted({len(texts) for texts in images.captions})
        counts = [len(text.split()) for texts in images.captions for text in texts]
        distinct = len(set(_words(images)))
        per = f"{per_image[0]}" if len(per_image) == 1 else f"{per_image[0]} to {per_image[-1]}"
        length = f"{np.mean(counts):.1f}, at most {max(counts)}"
        rows.append([name, f"{len(images):,}", f"{images.num_captions:,}", per, length, f"{distinct:,}"])
    common = ", ".join(
        shortened(word, MAX_NAME_CHARS) for word, _ in Counter(_words(splits.train)).most_common(COMMON_WORDS)
    )
    title = f"{shortened(Path(source).name, MAX_NAME_CHARS)}, images with captions"
    return "\n".join([title, "", *aligned(rows, right={1, 2, 5}), "", f"most frequent words: {common}"])


def contact_sheet(images: CaptionedImages) -> Image.Image:
    """Images with their name and first captions."""
    chosen = images.take(np.linspace(0, len(images) - 1, min(SHEET_IMAGES, len(images))).round().astype(int).tolist())
    side = _CELL if chosen.pixels is None else chosen.pixels.shape[-1]
    pixels = chosen.load(side, 3 if chosen.pixels is None else chosen.pixels.shape[1])
    font = ImageFont.load_default(12)
    texts = [
        [line for text in captions[:SHEET_CAPTIONS] for line in _wrapped(text, font)] for captions in chosen.captions
    ]
    lines = max(map(len, texts))
    width, height = _CELL + _GAP, _CELL + _LINE * (lines + 1) + _GAP
    num_rows = -(-len(chosen) // _COLUMNS)
    sheet = Image.new("RGB", (_GAP + width * min(_COLUMNS, len(chosen)), _GAP + height * num_rows), "white")
    draw = ImageDraw.Draw(sheet)
    for i, image in enumerate(pixels):
        left, top = _GAP + width * (i % _COLUMNS), _GAP + height * (i // _COLUMNS)
        picture = Image.fromarray(as_array(image))
        resampling = Image.Resampling.NEAREST if side < _CELL else Image.Resampling.BICUBIC
        sheet.paste(picture.resize((_CELL, _CELL), resampling), (left, top))
        name = shortened(chosen.names[i], 24)
        draw.text((left, top + _CELL + 2), name, fill="#777777", font=font)
        for row, line in enumerate(texts[i], 1):
            draw.text((left, top + _CELL + 2 + _LINE * row), line, fill="black", font=font)
    return sheet


def _words(images: CaptionedImages) -> Iterator[str]:
    return (word for texts in images.captions for text in texts for word in text.lower().split() if word.isalnum())


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, max_lines: int = 3) -> list[str]:
    """A text as lines that fit below an image. A longer one ends in an ellipsis."""
    lines = [""]
    for word in shortened(text, 200).split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= _CELL or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    lines = lines if len(lines) <= max_lines else [*lines[: max_lines - 1], f"{lines[max_lines - 1]} …"]
    return [_cut(line, font) for line in lines]


def _cut(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    while font.getlength(line) > _CELL and len(line) > 1:
        line = f"{line.rstrip('…')[:-1]}…"
    return line
