"""What the page says about a served model before it is used: what it knows, and inputs to try."""

import base64
import mimetypes
from functools import cache
from pathlib import Path

from PIL import Image

from .. import model_card, zoo
from ..data.captions import shapes
from ..data.images import glyphs
from ..errors import SightlineError
from ..names import shortened
from ..predictor import Predictor
from ..view.images import data_url

TEXTS = {
    "de-en": ("Kannst du mir bitte helfen?", "Ein Hund rennt durch das Wasser.", "Wo ist der nächste Bahnhof?"),
    "masked_lm": ("A dog runs {mask} the water.", "Two children {mask} in the park."),
    "text_classification": ("A dog runs through the water.", "Two children play in the park."),
}
"""Texts to try, by the name of a pretrained model or by task."""
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
EXAMPLES = Path(__file__).parent / "examples"
"""Folders of images by the names of pretrained models."""
INK = {"black": "#000000"}
PHOTO_SETS = ("fashion-mnist", "cifar10")
"""Data sets of photographs, by the names of their folders."""


def description(name: str, predictor: Predictor) -> str:
    """What a model does and knows: of its card, or by the data that it was trained on."""
    source = predictor.data_source
    trained = f"It was trained on the data {Path(source).name}." if source else ""
    return _card_text(predictor) or GENERATED.get(source, shortened(trained, 200))


def examples(name: str, task: str, predictor: Predictor, mask: str | None) -> list[str]:
    """Inputs to try: texts, or images as data URLs."""
    if predictor.input_kind == "image":
        return list(_images(name, predictor.data_source))
    return [text.format(mask=mask) for text in TEXTS.get(name, TEXTS.get(task, ()))]


def pens(task: str, predictor: Predictor) -> dict[str, str]:
    """Colors of drawings that a model knows, by name; none if it knows photographs or texts."""
    source = predictor.data_source
    if predictor.input_kind == "text" or Path(source).name in PHOTO_SETS:
        return {}
    if task == "captioning":
        colors = shapes.COLORS if source == shapes.NAME else {}
        return {name: "#{:02x}{:02x}{:02x}".format(*values) for name, values in colors.items()}
    return INK


@cache
def _images(name: str, source: str) -> tuple[str, ...]:
    """Images that training has not seen: of a pretrained model of this name, or of generated data."""
    if source == shapes.NAME:
        pixels = shapes.draw(NUM_IMAGES, seed=3).pixels
        assert pixels is not None
        arrays = pixels.permute(0, 2, 3, 1).numpy()
    elif source == glyphs.NAME:
        arrays = glyphs.draw(NUM_IMAGES, per_class=201).pixels[200::201, 0].numpy()
    else:
        files = sorted((EXAMPLES / name).glob("*.*")) if name in zoo.names() else []
        return tuple(_file_url(path) for path in files)
    return tuple(data_url(Image.fromarray(array), "png") for array in arrays)


def _file_url(path: Path) -> str:
    kind, data = mimetypes.guess_type(path.name)[0], base64.b64encode(path.read_bytes()).decode()
    return f"data:{kind};base64,{data}"


def _card_text(predictor: Predictor) -> str:
    """The description on the model card; empty for a classifier, which is one file."""
    try:
        return model_card.description(predictor.folder)
    except SightlineError:
        return ""
