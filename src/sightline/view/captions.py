"""Captions of images: for every word, where the model attended, laid over the image; as a page or an animation."""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..errors import check
from ..files import atomic_write
from ..names import shortened
from . import heatmaps
from .images import ImageTable
from .page import Page, cards_page

Array = np.ndarray[Any, Any]
PICTURE_SIDE = 448
"""Largest width and height of an image on a page, and width of an animation, in pixels."""
FRAME_MILLISECONDS = 700


@dataclass(frozen=True, eq=False)
class WordMap:
    """A word of a caption and the attention behind it."""

    word: str
    weights: Array | None
    """(layers, heads, rows, columns); None for a model without attention."""

    def mean(self) -> Array:
        """The mean over layers and heads: (rows, columns)"""
        check(self.weights is not None, "a word must have weights for a map, got one of a model without attention")
        mean: Array = np.asarray(self.weights).mean((0, 1))
        return mean


@dataclass(frozen=True, eq=False)
class CaptionCard:
    """An image with its captions."""

    name: str
    pixels: Array
    """uint8 (H, W) or (H, W, 3)"""
    words: Sequence[WordMap]
    """Of the best caption."""
    captions: Sequence[tuple[str, float]]
    """All captions and their scores, the best first."""
    has_attention: bool = True
    """Whether the model has attention over regions."""


def captions_page(cards: Sequence[CaptionCard]) -> Page:
    """One self-contained page with a card for each image. It makes no network request."""
    check(cards, "cards must contain at least one image, got none")
    text = cards[0].captions[0][0] if len(cards) == 1 else f"{len(cards)} captions"
    heading = shortened(text or "Empty caption", 80)
    data = {"title": heading, **captions_data(cards)}
    styles = ("heat-map.css", "caption-card.css", "captions.css")
    return cards_page("captions", heading, data, styles, images="data: blob:")


def captions_data(cards: Sequence[CaptionCard]) -> dict[str, Any]:
    """The cards as plain values, with their images."""
    images = ImageTable()
    values = [_card(card, images) for card in cards]
    return {"look": asdict(heatmaps.LOOK), "cards": values, "images": images.images}


def _card(card: CaptionCard, images: ImageTable) -> dict[str, Any]:
    """A card as plain values. The map of each layer and head is scaled by its largest weight over all words."""
    words = [shortened(word.word, 40) for word in card.words]
    result: dict[str, Any] = {
        "name": shortened(card.name, 60),
        "image": images.add(card.pixels, PICTURE_SIDE),
        "words": words,
        "captions": [[shortened(text, 400), round(score, 4)] for text, score in card.captions],
        "has_attention": card.has_attention,
        "maps": None,
    }
    if card.words and card.words[0].weights is not None:
        weights = np.stack([np.asarray(word.weights) for word in card.words])  # (words, layers, heads, rows, columns)
        scales = weights.max((0, 3, 4), keepdims=True)
        quantized = np.rint(255 * weights / np.maximum(scales, 1e-12)).astype(np.uint8)
        result["maps"] = {
            "shape": list(weights.shape),
            "scales": np.round(scales[0, :, :, 0, 0].astype(float), 6).tolist(),
            "values": base64.b64encode(quantized.tobytes()).decode(),
        }
    return result


def caption_frames(pixels: Array, words: Sequence[WordMap]) -> list[Image.Image]:
    """A picture for each word: the image dimmed by the word's mean map, and the caption with the word marked."""
    maps = [None if word.weights is None else word.mean() for word in words]
    scale = heatmaps.common_scale(maps)
    frames = []
    for i, values in enumerate(maps):
        picture = Image.fromarray(heatmaps.dim(pixels, values, scale, PICTURE_SIDE))
        frames.append(_with_text(picture, [word.word for word in words], i))
    return frames


def caption_gif(pixels: Array, words: Sequence[WordMap], path: Path) -> Path:
    """Write an animation that steps through the words of a caption."""
    check(path.suffix == ".gif", f"path must end in .gif, got {path.name!r}")
    check(words, "a caption must have at least one word to be animated, got none")
    first, *rest = caption_frames(pixels, words)
    with atomic_write(path) as part:
        options: dict[str, Any] = {"duration": FRAME_MILLISECONDS, "loop": 0}
        first.save(part, "gif", save_all=True, append_images=rest, **options)
    return path


def _with_text(picture: Image.Image, words: Sequence[str], current: int) -> Image.Image:
    """The picture with the words below it, in lines; the current one is highlighted."""
    font = ImageFont.load_default(18)
    space, line_height, margin = 7, 26, 10
    places, x, y = list[tuple[float, float]](), float(margin), float(picture.height + margin)
    for word in words:
        width = font.getlength(word)
        if x + width > picture.width - margin and x > margin:
            x, y = float(margin), y + line_height
        places.append((x, y))
        x += width + space
    canvas = Image.new("RGB", (picture.width, int(y + line_height + margin / 2)), "#16181d")
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    for i, (word, place) in enumerate(zip(words, places, strict=True)):
        draw.text(place, word, font=font, fill=heatmaps.FOR_COLOR if i == current else "#c9ced6")
    return canvas
