"""What the page says about a served model before it is used: what it knows, and inputs to try."""

import re
from functools import cache
from pathlib import Path

from PIL import Image

from .. import limits
from ..data.captions import shapes
from ..data.images import glyphs
from ..errors import SightlineError
from ..files import CARD
from ..names import shortened
from ..predictor import Predictor
from ..view.images import data_url

TEXTS = {
    "de-en": ("Kannst du mir bitte helfen?", "Ein Hund rennt durch das Wasser.", "Wo ist der nächste Bahnhof?"),
    "masked_lm": ("A dog runs {mask} the water.", "Two children {mask} in the park."),
    "text_classification": ("A dog runs through the water.", "Two children play in the park."),
}
"""Texts to try, by the name of a pretrained model or by task."""
PRETRAINED = {
    "de-en": "Translates short everyday sentences and image captions. It writes lower case.",
    "fill-mask": "Fills masks in sentences that describe pictures.",
}
"""Of pretrained models whose cards have no description."""
GENERATED = {
    shapes.NAME: (
        f"It knows drawn scenes only: two shapes, each a {', '.join(shapes.SHAPES[:-1])} or {shapes.SHAPES[-1]} in "
        f"{', '.join([*shapes.COLORS][:-1])} or {[*shapes.COLORS][-1]}. In any other image, such as a photo, it sees "
        "such shapes, too."
    ),
    glyphs.NAME: "It knows 20 invented characters in dark ink on white. It takes any other image for one of them.",
    "sentences": "It knows generated sentences with a small vocabulary.",
    "numbers": "It translates German number words, such as siebenundvierzig.",
}
"""What a model knows that was trained on generated data, by the name of the data."""
NUM_IMAGES = 3


def description(name: str, predictor: Predictor) -> str:
    """What a model does and knows: of its card, or by the data that it was trained on."""
    source = predictor.data_source
    trained = f"It was trained on the data {Path(source).name}." if source else ""
    return _card_text(predictor) or PRETRAINED.get(name) or GENERATED.get(source, shortened(trained, 200))


def examples(name: str, task: str, predictor: Predictor, mask: str | None) -> list[str]:
    """Inputs to try: texts, or images as data URLs."""
    if predictor.input_kind == "image":
        return list(_images(predictor.data_source))
    return [text.format(mask=mask) for text in TEXTS.get(name, TEXTS.get(task, ()))]


@cache
def _images(source: str) -> tuple[str, ...]:
    """Images of generated data, which training has not seen."""
    if source == shapes.NAME:
        pixels = shapes.draw(NUM_IMAGES, seed=3).pixels
        assert pixels is not None
        arrays = pixels.permute(0, 2, 3, 1).numpy()
    elif source == glyphs.NAME:
        arrays = glyphs.draw(NUM_IMAGES, per_class=201).pixels[200::201, 0].numpy()
    else:
        return ()
    return tuple(data_url(Image.fromarray(array), "png") for array in arrays)


def _card_text(predictor: Predictor) -> str:
    """The paragraphs of the model card before its first section, without those that are code."""
    try:
        path = predictor.folder / CARD
    except SightlineError:  # a classifier is one file
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")[: limits.MAX_RUN_FILE_BYTES] if path.is_file() else ""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    paragraphs = body.partition("\n## ")[0].split("\n\n")
    return shortened(" ".join(p for p in paragraphs if not p.lstrip().startswith("#") and "`" not in p), 600)
