"""A trained image classifier at work: what is on an image, how sure, and where it looked."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import config
from ...attention import Record, record_attention
from ...data.images.datasets import check_classes
from ...data.images.formats.folders import named_images
from ...data.images.loading import Images, Progress, read_image
from ...errors import SightlineError, check_page_size
from ...hub import CONFIG, WEIGHTS, Shared, read_json, read_weights
from ...models.image_classifier import ImageClassifier
from ...names import printable, shortened
from ...training.checkpoint import to_bytes, write_bytes
from ...training.task import Part
from .evaluate import calibration_scale, metrics, tally
from .task import ImageTask, Recipe, divide

if TYPE_CHECKING:
    from ...view.page import Page
    from ..figures import Drawn

AT_ONCE = 64
"""Images looked at in one go."""
MOST_LINES = 20
"""Classes listed one by one."""
CLASSES = "classes.json"


@dataclass(frozen=True)
class Answer:
    """What the model says of one image."""

    label: str
    confidence: float
    scores: dict[str, float]
    """A share for each class, the likeliest first."""

    def __str__(self) -> str:
        return f"{self.label} ({self.confidence:.1%})"

    def told(self, top: int | None = None) -> str:
        """One line for a terminal: the likeliest classes, three if not told how many."""
        return ", ".join(f"{printable(name)} {share:.1%}" for name, share in list(self.scores.items())[: top or 3])


@dataclass(frozen=True)
class Look:
    """Some images, what the model says of them, and where it looked."""

    names: list[str]
    """Of their files; empty where there is none."""
    pixels: Tensor
    """As the model took them: (B, C, image_size, image_size), from 0 to 1."""
    answers: list[Answer]
    record: Record


@dataclass(frozen=True)
class Score:
    """How a model does on a labelled set."""

    split: str
    images: int
    accuracy: float
    interval: tuple[float, float]
    """Wilson's, 95%."""
    loss: float
    calibration_error: float
    per_class: dict[str, float]

    def lines(self) -> list[str]:
        """For a terminal; of the classes those it knows least."""
        low, high = self.interval
        worst = sorted(self.per_class.items(), key=lambda pair: pair[1])[:MOST_LINES]
        return [
            f"{self.split} set, {self.images:,} images",
            f"accuracy           {self.accuracy:.2%}  (95% interval {low:.2%} to {high:.2%})",
            f"loss               {self.loss:.4f}",
            f"calibration error  {self.calibration_error:.4f}",
            *(f"  {share:7.2%}  {printable(name)}" for name, share in worst),
        ]

    def sentence(self) -> str:
        """For a card."""
        low, high = self.interval
        return (
            f"On the {self.split} set ({self.images:,} images): accuracy {self.accuracy:.2%} "
            f"(95% interval {low:.2%} to {high:.2%}), calibration error {self.calibration_error:.4f}."
        )


class ImagePredictor(Shared):
    """What `sightline.load(run)` gives for an image classifier."""

    def __init__(self, folder: Path, recipe: Recipe, classes: Sequence[str], model: ImageClassifier):
        self.folder, self.recipe, self.classes = folder, recipe, tuple(classes)
        self.model = model.eval()
        self.device = torch.device("cpu")

    @staticmethod
    def files(task: ImageTask) -> dict[str, bytes]:
        """What a run of this task keeps beside its weights."""
        return {CLASSES: json.dumps(list(task.classes), ensure_ascii=False, indent=1).encode()}

    @classmethod
    def open(cls, folder: Path) -> "ImagePredictor":
        recipe = config.build(Recipe, config.read(folder / CONFIG))
        classes = read_json(folder / CLASSES)
        if not isinstance(classes, list):
            raise SightlineError(f"{folder / CLASSES} must be a list of names, got {type(classes).__name__}")
        check_classes(classes)
        if len(classes) != recipe.model.num_classes:
            raise SightlineError(f"{folder / CLASSES} must name {recipe.model.num_classes} classes, got {len(classes)}")
        model = read_weights(folder, lambda: ImageClassifier(recipe.model), depth=recipe.model.depth)
        return cls(folder, recipe, classes, model)

    @classmethod
    def finish(cls, folder: Path, task: ImageTask) -> dict[str, float]:
        """The last touch to a run: confidence set by the validation set. What it comes to there is given back."""
        if task.validation is None:
            return {}
        predictor = cls.open(folder).to(task.device)
        with torch.inference_mode():
            how = (task.device, task.recipe.data.workers, task.recipe.evaluated_at_once())
            sharp = calibration_scale(predictor.model, task.validation, *how)
            predictor.model.calibration_scale.fill_(sharp)
            write_bytes(folder / WEIGHTS, to_bytes({n: t.cpu() for n, t in predictor.model.state_dict().items()}))
            return metrics(tally(predictor.model, task.validation, Part(), *how))

    def to(self, device: str | torch.device) -> "ImagePredictor":
        """Work there from now on."""
        self.device = torch.device(device)
        self.model.to(self.device)
        return self

    @staticmethod
    def read(words: Sequence[str]) -> list[Path]:
        """What was typed, as paths of images; a folder stands for those in it."""
        return named_images(words)

    def predict(self, images: Any) -> Any:
        """An `Answer` for an image (path, PIL image, array or tensor), or a list of them for a list or tuple."""
        if not isinstance(images, list | tuple):
            return self.predict([images])[0]
        answers = []
        for start in range(0, len(images), AT_ONCE):
            with torch.inference_mode():
                answers += self._answers(self.model(self.pixels(images[start : start + AT_ONCE])))
        return answers

    def _answers(self, logits: Tensor) -> list[Answer]:
        answers = []
        for row in logits.float().softmax(-1).cpu():
            best = row.argsort(descending=True, stable=True).tolist()
            scores = {self.classes[i]: float(row[i]) for i in best}
            label = self.classes[best[0]]
            answers.append(Answer(label, scores[label], scores))
        return answers

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Images as the model takes them: (B, C, image_size, image_size), from 0 to 1"""
        form = {"size": self.recipe.model.image_size, "channels": self.recipe.model.channels}
        read = [read_image(image, **form) for image in images]
        return torch.stack(read).to(self.device).float() / 255

    def look(self, images: Sequence[Any]) -> Look:
        """At a few images, each read once: what is seen, and where it looked."""
        check_page_size(images=len(images))
        pixels = self.pixels(images)
        with torch.inference_mode(), record_attention(self.model) as record:
            answers = self._answers(self.model(pixels))
        names = [Path(image).name if isinstance(image, str | Path) else "" for image in images]
        return Look(names, pixels, answers, record)

    def record(self, images: Sequence[Any]) -> Record:
        """The attention of every block and head while these images are looked at."""
        return self.look(images).record

    def page(self, images: Sequence[Any] | Look, *, title: str | None = None) -> "Page":
        """The viewer on these images, an example each; the class token is called by the answer it gives."""
        look = images if isinstance(images, Look) else self.look(images)
        answers = look.answers
        shown = [image.permute(1, 2, 0).squeeze(-1).cpu().numpy() for image in look.pixels]
        side = self.recipe.model.side
        patches = [f"{row + 1},{column + 1}" for row in range(side) for column in range(side)]
        speaks = self.recipe.model.pool == "class_token"
        return look.record.view(
            [[str(answer), *patches] if speaks else patches for answer in answers],
            batch=list(range(len(shown))),
            images=shown,
            labels=[[str(answer)] for answer in answers],
            grid=(side, side),
            special={str(answer) for answer in answers},
            title=_title(look) if title is None else title,
            names=_names(look),
        )

    def show(self, images: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png") -> "Drawn":
        """Pictures of what it has learned, and of its attention on these images, in a folder: `pictures/` in the run's.

        `format` is png or svg. What comes back says which files were written, and what the model has none of.
        """
        from .figures import show

        return show(self, images, out, format=format)

    def evaluate(self, images: Images | Sequence[Images], split: str, progress: Progress | None = None) -> Score:
        """How often it is right on labelled images, of one set or several."""
        parts = images if isinstance(images, Sequence) else [images]
        how = (self.device, self.recipe.data.workers, self.recipe.evaluated_at_once())
        sums: dict[str, Tensor] = {}
        for part in parts:
            if part.classes != self.classes:
                raise SightlineError(
                    f"data must have the classes of the model, {self.classes!r:.200}, got {part.classes!r:.200}"
                )
            with torch.inference_mode():
                found = tally(self.model, part, Part(), *how, progress)
            sums = {name: sums[name] + found[name] for name in sums} or found
        counted = metrics(sums)
        right, seen = sums["right"].cpu(), sums["seen"].cpu()
        return Score(
            split=split,
            images=int(seen.sum()),
            accuracy=counted["accuracy"],
            interval=wilson(float(right.sum()), float(seen.sum())),
            loss=counted["loss"],
            calibration_error=counted["calibration_error"],
            per_class={name: float(right[i] / seen[i]) for i, name in enumerate(self.classes) if seen[i] > 0},
        )

    def evaluate_on(self, source: str | None = None, progress: Progress | None = None) -> Score:
        """On the test set of its data, or its validation set where there is none; or on other data: the test set of
        that, or all of it where it brings none."""
        ours = source is None or source == self.recipe.data.source
        form: dict[str, Any] = {"image_size": self.recipe.model.image_size, "channels": self.recipe.model.channels}
        data = replace(self.recipe.data, source=source or self.recipe.data.source, **form)
        files = replace(data, memory=0)  # of a folder, only what is evaluate_on is read
        splits = divide(files, self.recipe.seed) if ours else files.load()
        if splits.test is not None:
            return self.evaluate(splits.test, "test", progress)
        if not ours:
            parts = [part for part in (splits.train, splits.validation) if part is not None]
            return self.evaluate(parts, "whole", progress)
        if splits.validation is None:
            raise SightlineError(f"data must have a test or validation set to judge by, got neither in {data.source!r}")
        return self.evaluate(splits.validation, "validation", progress)


def _title(look: Look) -> str:
    """The file and its answer, or how many images there are."""
    if len(look.answers) > 1:
        return f"{len(look.answers)} images"
    name = f"{look.names[0]}: " if look.names[0] else ""
    return shortened(f"{name}{look.answers[0]}", 60)


def _names(look: Look) -> list[str]:
    """What the page calls each of its examples: the file and its answer."""
    files = [name or f"image {i}" for i, name in enumerate(look.names, start=1)]
    return [shortened(f"{name}: {answer}", 60) for name, answer in zip(files, look.answers, strict=True)]


def wilson(right: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """Where a share lies that was seen as `right` of `count`, at 95%."""
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    width = z * (share * (1 - share) / count + spread / (4 * count)) ** 0.5 / (1 + spread)
    return max(0.0, middle - width), min(1.0, middle + width)
