"""A trained image classifier: class, confidence and attention for an image."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from ... import config
from ...attention import Record, record_attention
from ...data.images.datasets import Images, Splits, as_array, check_class_names
from ...data.images.occlusion import cell_mask, fill_cells
from ...data.images.paths import expand_image_paths
from ...data.images.reading import read_image
from ...data.images.statistics import sample_histogram
from ...data.sources import same_source
from ...errors import SightlineError, SightlineWarning, check, check_page_size
from ...files import CONFIG, read_json, stored_fingerprint
from ...models.image_classifier import ImageClassifier
from ...names import display_path, shortened
from ...predictor import InputToken, Predictor, Progress
from ...view.images import data_url
from ...view.inspection import Inspection, Layer
from ...weights import read_weights
from ..classification import ClassPrediction
from ..figures import FigureFiles
from . import figures
from .config import ImageClassificationTaskConfig
from .evaluate import ImageEvaluation, evaluate
from .task import CLASSES, data_fingerprint

if TYPE_CHECKING:
    from ...view.page import Page

DARK_DATA = frozenset({"fashion-mnist"})
"""Names of data sets whose images all have a dark background."""
LIGHT_HINT = (
    "the background of the image is light, but the model was trained on a dark one; do not rely on the answer, "
    "and invert the image if what it shows is dark"
)
LIGHT_LEVEL = 127
"""Median of the corners above which a background is light. In Fashion-MNIST, it is at most this in all images."""


@dataclass(frozen=True)
class ImagePrediction(ClassPrediction):
    """The classes predicted for one image."""

    hint: str | None = None
    """Why the answer may be wrong, if the image is unlike the training data."""
    error: None = None

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        if self.hint is None:
            values.pop("hint")
        return values


class ImageClassificationPredictor(Predictor):
    """A trained image classifier."""

    input_kind = "image"
    config: ImageClassificationTaskConfig
    model: ImageClassifier

    def __init__(
        self, folder: Path, config: ImageClassificationTaskConfig, classes: Sequence[str], model: ImageClassifier
    ):
        self.folder, self.config, self.classes = folder, config, tuple(classes)
        self.model, self.device, self._has_reported_light = model.eval(), torch.device("cpu"), False

    @classmethod
    def load(cls, path: str | Path) -> "ImageClassificationPredictor":
        folder = Path(path)
        task_config = config.build(ImageClassificationTaskConfig, config.read(folder / CONFIG))
        path, classes, count = folder / CLASSES, read_json(folder / CLASSES), task_config.model.num_classes
        check(isinstance(classes, list), f"{path} must be a list of names, got {type(classes).__name__}")
        check_class_names(classes)
        check(len(classes) == count, f"{path} must name {count} classes, got {len(classes)}")
        model = read_weights(folder, lambda: ImageClassifier(task_config.model), depth=task_config.model.depth)
        return cls(folder, task_config, classes, model)

    def parse_inputs(self, arguments: Sequence[str]) -> list[Path]:
        return expand_image_paths(arguments)

    def prepare(self, item: Any) -> Tensor:
        """An image (path, PIL image, array or tensor) -> uint8 (C, image_size, image_size)"""
        image = read_image(item, size=self.config.model.image_size, channels=self.config.model.channels)
        if not self._has_reported_light and (hint := self._hint(image)) is not None:
            self._has_reported_light = True
            name = f"{display_path(item)}: " if isinstance(item, str | Path) else ""
            warnings.warn(f"{name}{hint}; further ones are not reported", SightlineWarning, stacklevel=2)
        return image

    def _hint(self, image: Tensor) -> str | None:
        """The hint for a prepared image with a light background, if those of the training data are dark."""
        is_light = Path(self.data_source).name in DARK_DATA and has_light_corners(image)
        return LIGHT_HINT if is_light else None

    def predict_batch(self, prepared: list[Tensor], *, top_k: int | None = None) -> list[ImagePrediction]:
        with torch.inference_mode():
            return self._predictions(prepared, self.model(self._pixels(prepared)))

    def _pixels(self, prepared: list[Tensor]) -> Tensor:
        """(B, C, image_size, image_size), from 0 to 1, on the device"""
        return torch.stack(prepared).to(self.device).float() / 255

    def _predictions(self, prepared: list[Tensor], logits: Tensor) -> list[ImagePrediction]:
        probabilities = logits.float().softmax(-1).cpu()
        return [
            ImagePrediction.from_probabilities(self.classes, row, hint=self._hint(image))
            for image, row in zip(prepared, probabilities, strict=True)
        ]

    def _recorded(self, prepared: list[Tensor]) -> tuple[Tensor, list[ImagePrediction], Record]:
        pixels = self._pixels(prepared)
        with torch.inference_mode(), record_attention(self.model) as record:
            predictions = self._predictions(prepared, self.model(pixels))
        return pixels, predictions, record

    def record(self, images: Sequence[Any]) -> Record:
        """The attention of every block and head on these images."""
        check_page_size(images=len(images))
        return self._recorded([self.prepare(image) for image in images])[2]

    def explain_batch(
        self, prepared: list[Tensor], inputs: list[Any], *, progress: Progress | None = None, top_k: int | None = None
    ) -> "tuple[list[ImagePrediction], Page]":
        pixels, predictions, record = self._recorded(prepared)
        return predictions, self._page(pixels, predictions, record, inputs)

    def inspect_batch(
        self, prepared: list[Tensor], *, top_k: int | None = None, **options: Any
    ) -> list[tuple[ImagePrediction, Inspection]]:
        _, predictions, record = self._recorded(prepared)
        side, has_token = self.config.model.grid_size, self.config.model.pool == "class_token"
        names = ["[class]"] * has_token + [token.text for token in self.input_tokens(prepared[0])]
        results = []
        for i, (image, prediction) in enumerate(zip(prepared, predictions, strict=True)):
            layers = [Layer(m.name, m.kind, m.weights[i].float().numpy()) for m in record]
            values = {"grid": [side, side], "has_class_token": has_token}
            values |= {"image": data_url(Image.fromarray(as_array(image)), "png")}
            results.append((prediction, Inspection({"source": names}, layers, ["[class]"] * has_token, values)))
        return results

    def input_tokens(self, prepared: Tensor) -> list[InputToken]:
        side = range(1, self.config.model.grid_size + 1)
        return [InputToken(f"{row},{column}", True) for row in side for column in side]

    def _without_tokens(self, prepared: Tensor, positions: frozenset[int]) -> Tensor:
        side = self.config.model.grid_size
        return fill_cells(prepared, cell_mask((side, side), positions)[None])[0]

    def _page(
        self, pixels: Tensor, predictions: list[ImagePrediction], record: Record, inputs: Sequence[Any]
    ) -> "Page":
        """The viewer with one example per image; the class token has the name of the prediction."""
        side, labels = self.config.model.grid_size, [str(prediction) for prediction in predictions]
        patches = [f"{row + 1},{column + 1}" for row in range(side) for column in range(side)]
        has_token = self.config.model.pool == "class_token"
        names = [
            shortened(f"{_file_name(item) or f'image {i}'}: {label}", 60)
            for i, (item, label) in enumerate(zip(inputs, labels, strict=True), start=1)
        ]
        return record.view(
            [[label, *patches] if has_token else patches for label in labels],
            batch=list(range(len(labels))),
            images=[as_array(image) for image in pixels],
            labels=[[label] for label in labels],
            grid=(side, side),
            special_tokens=set(labels),
            scores=[prediction.scores for prediction in predictions],
            title=f"Attention for the prediction {labels[0]}" if len(names) == 1 else f"{len(names)} images",
            names=names,
        )

    def show(self, inputs: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png") -> FigureFiles:
        """Write figures of the weights, the training curves, and the attention on these images to a folder."""
        files = FigureFiles.create(self.folder, out, format)
        prepared, inputs = files.usable(self, inputs)
        for name, draw in figures.FIGURES.items():
            files.add(name, draw, self.model, self.folder)
        if prepared:
            pixels, predictions, record = self._recorded(prepared)
            for i, prediction in enumerate(predictions):
                lines = [prediction.summary(), _file_name(inputs[i])]
                files.add(f"image-{i + 1}", figures.attention, self.model, record, pixels[i], i, lines)
            files.add_page(self._page(pixels, predictions, record, inputs))
        return files

    def details(self) -> dict[str, Any]:
        return {"image_size": self.config.model.image_size, "classes": list(self.classes)}

    def columns(self, top: int | None = None) -> list[str]:
        return ["label", "confidence", *(f"scores.{name}" for name in self.classes)]

    def evaluate(self, data: str | Path | Splits | None = None, *, progress: Progress | None = None) -> ImageEvaluation:
        """Accuracy on the run's test set, or its validation set if it has none.

        For other data: on its test set, or on all of it if it has none.
        """
        sets, split = self.evaluation_split(data)
        options: dict[str, Any] = {"device": self.device, "progress": progress, **self.config.evaluation_options()}
        sums: dict[str, Tensor] = {}
        for images in sets:
            if images.classes != self.classes:
                got = f"{self.classes!r:.200}, got {images.classes!r:.200}"
                raise SightlineError(f"data must have the classes of the model, {got}")
            with torch.inference_mode():
                new = evaluate(self.model, images, **options)
            sums = {name: sums[name] + new[name] for name in sums} or new
        return ImageEvaluation.from_sums(split, sums, self.classes)

    def evaluation_split(self, data: str | Path | Splits | None) -> tuple[list[Images], str]:
        """The images to evaluate on, and the name of their split."""
        own, model, is_loaded = self.config.data, self.config.model, isinstance(data, Splits)
        source = own.source if data is None or is_loaded else str(data)
        self.check_data(source, data is not None or Path(source).expanduser().exists())
        sizes: dict[str, Any] = {"image_size": model.image_size, "channels": model.channels}
        files = replace(own, source=source, cache_mib=0, **sizes)  # without a cache, only what is evaluated is read
        splits = data if isinstance(data, Splits) else files.load()
        if splits.test is not None:
            return [splits.test], "test"
        full = [images for images in (splits.train, splits.validation) if images is not None]
        is_own = not is_loaded and same_source(source, own.source)
        try:
            divided = files.hold_out(splits, self.config.seed)
        except SightlineError:  # too few images to divide
            if is_own:
                raise
            return full, "full"
        if not is_own and not self._is_own_data(divided):
            return full, "full"
        if divided.validation is None:
            raise SightlineError(f"data must have a test or validation set, got neither in {source!r}")
        return [divided.validation], "validation"

    def _is_own_data(self, splits: Splits) -> bool:
        """Whether these splits are the run's own data under another path, by the fingerprint in data.json."""
        if len(splits.train) != stored_fingerprint(self.folder, "train", "images"):
            return False
        fingerprint = data_fingerprint(splits, sample_histogram(splits.train, self.config.seed))
        return all(
            fingerprint[split].get(key) == stored_fingerprint(self.folder, split, key)
            for split, key in (("train", "labels"), ("train", "levels"), ("validation", "labels"))
        )


def has_light_corners(image: Tensor) -> bool:
    """Whether the background of an image, uint8 (C, H, W), is light: the median of its four corners."""
    side = max(1, min(image.shape[-2:]) // 9)
    rows = torch.cat((image[:, :side], image[:, -side:]), 1)
    corners = torch.cat((rows[..., :side], rows[..., -side:]), 2)
    return float(corners.float().median()) > LIGHT_LEVEL


def _file_name(item: Any) -> str:
    return Path(item).name if isinstance(item, str | Path) else ""
