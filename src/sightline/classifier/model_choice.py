"""The choice of a pretrained model by the user's own examples.

Every installed model is fitted, and the log-likelihood of the held-out examples is compared. The prior is in favor of
the model for the kind of the images, drawings or photos. With one image per class it decides alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import config, zoo
from ..data.images.datasets import ImageFiles
from ..data.images.reading import read_image
from ..errors import MissingDependencyError, SightlineError, check
from ..files import CONFIG
from ..names import display_path
from .choice import compared_accuracies, fit_scales, log_likelihood
from .support import list_examples, load_examples
from .texts import is_table

if TYPE_CHECKING:
    from .classifier import FewShotClassifier

DRAWINGS, PHOTOS = "glyphs", "photos"
KINDS = {DRAWINGS: "drawings", PHOTOS: "photos"}
"""The kind of images that each of the pretrained models is for."""
FOR_TEXTS = "for texts, use FewShotClassifier.pretrained('minilm')"
LOG_PRIOR = 3.0
"""Log odds of the model for the kind of the images against another."""
SAMPLE, SAMPLE_SIDE = 9, 32
"""Images that show the kind of all, and the side length at which they are compared."""
MIN_COLOR_RANGE = 12
"""Mean distance of the channels of a pixel, of 255, from which on images are in color."""
PAPER_TOLERANCE, MIN_PAPER = 12, 0.45
"""A drawing has at least this fraction of its pixels within this distance of its median gray level."""
MAX_OTHER_SIDE, MAX_MEAN_OTHER_SIDE = 0.1, 0.12
"""Its other pixels, the ink, are darker, or they are lighter: at most this fraction of all is on the other side, in a
drawing, and on average over all images."""
MAX_OTHER_COLOR = 4
"""In color, the pixels of a drawing are this close to the line between the colors of paper and ink, on average."""
STROKE_WIDTH, MAX_INTERIOR = 5, 0.35
"""In color, at most this fraction of its ink is the center of a square of ink of this side length: it is strokes."""
MIN_DRAWINGS = 0.5
"""Images are drawings if at least this fraction of them are, since some drawings are mostly ink."""


@dataclass(frozen=True)
class ModelChoice:
    """The pretrained model that was chosen, and why."""

    model: str
    reason: str
    hint: str | None = None
    """What to install if the images look like those of a model that is not installed, or what was not compared."""

    def __str__(self) -> str:
        return f"{self.model}, {self.reason}"


def few_shot_models() -> list[str]:
    """The names of the pretrained few-shot models."""
    return [name for name in zoo.names() if config.read(zoo.HOME / name / CONFIG).get("task") == "few_shot"]


def choose_model(
    examples: Any, fit: Callable[[str], "FewShotClassifier"], models: Iterable[str] | None = None
) -> tuple[ModelChoice, "FewShotClassifier"]:
    """The model for these examples, and the classifier that `fit` returns for its name.

    `models` are the names to choose from (default: the pretrained models).
    """
    likely = likely_model(examples)
    kind = KINDS[likely]
    names = sorted(few_shot_models() if models is None else models, key=lambda name: name != likely)
    fitted: dict[str, FewShotClassifier] = {}
    hint = None
    for name in names:
        try:
            fitted[name] = fit(name)
        except MissingDependencyError as error:
            hint = f"these images look like {kind}, whose model is not installed: {error}" if name == likely else hint
            continue
        if not fitted[name].fitted.support.has_estimate:  # held-out images would show nothing
            reason = f"because the images look like {kind}" if name == likely else f"without the model for {kind}"
            return ModelChoice(name, reason, hint or _untested(names, name)), fitted[name]
    if not fitted:
        raise MissingDependencyError(hint or "model must be installed, got none of the pretrained models")
    evidence = {name: _evidence(classifier) + LOG_PRIOR * (name == likely) for name, classifier in fitted.items()}
    best = max(evidence, key=lambda name: evidence[name])
    accuracies = {name: classifier.estimate().accuracy for name, classifier in fitted.items()}
    return ModelChoice(best, compared_accuracies(accuracies, best, "held-out images"), hint), fitted[best]


def _untested(names: Sequence[str], used: str) -> str | None:
    """That other models were not compared."""
    others = " or ".join(f"--model {name}" for name in names if name != used)
    rule = "the models were not compared: this needs several images in two classes or more"
    return f"{rule}; add images, or try {others}" if others else None


def _evidence(classifier: "FewShotClassifier") -> float:
    """The log-likelihood of the held-out examples."""
    held_out = classifier.fitted.held_out
    logits, labels = (torch.cat([fold[i] for fold in held_out])[None] for i in (0, 1))
    return float(log_likelihood(logits, labels, fit_scales(logits, labels)))


def likely_model(examples: Any) -> str:
    """The name of the pretrained model for the kind of these images. A few of them are read."""
    return DRAWINGS if are_drawings(examples) else PHOTOS


def other_model(examples: Any, used: str) -> str | None:
    """The pretrained model to try instead of the one that was used; None if that is for the kind of these images."""
    likely = likely_model(examples)
    return None if likely == used else likely


def are_drawings(examples: Any) -> bool:
    """Whether images are drawings: mostly paper of one gray level, with ink on one side of it.

    The model for drawings ignores color. Images in color are drawings only if they are strokes in one color, so that
    objects that differ in color are not.
    """
    images = _sample(examples)
    gray = images.mean(1, keepdim=True)
    distance = gray - gray.flatten(1).median(1).values[:, None, None, None]
    lighter, darker = ((x >= PAPER_TOLERANCE).float().mean((1, 2, 3)) for x in (distance, -distance))
    other_side = torch.minimum(lighter, darker)
    is_gray = (images.amax(1) - images.amin(1)).mean((1, 2)) < MIN_COLOR_RANGE
    is_drawing = (1 - lighter - darker >= MIN_PAPER) & (other_side <= MAX_OTHER_SIDE)
    is_drawing &= is_gray | _are_strokes(images, distance.abs() >= PAPER_TOLERANCE)
    return bool((is_drawing.float().mean() >= MIN_DRAWINGS) & (other_side.mean() <= MAX_MEAN_OTHER_SIDE))


def _are_strokes(images: Tensor, is_ink: Tensor) -> Tensor:
    """Whether the ink of each image is strokes in one color: (N, 3, side, side), is_ink (N, 1, side, side) -> (N,)"""
    pixels = images.flatten(2)
    distances = pixels - pixels.median(2, keepdim=True).values
    ink = torch.linalg.eigh(distances @ distances.mT).eigenvectors[..., -1:]  # the direction that the pixels differ in
    other_color = (distances - ink * (ink.mT @ distances)).norm(dim=1).mean(1)
    interior = 1 - F.max_pool2d((~is_ink).float(), STROKE_WIDTH, 1, STROKE_WIDTH // 2)
    area, inner_area = is_ink.flatten(1).sum(1), interior.flatten(1).sum(1)
    return (other_color <= MAX_OTHER_COLOR) & (area > 0) & (inner_area <= MAX_INTERIOR * area)


def _sample(examples: Any) -> Tensor:
    """A few images: float (N, 3, side, side), from 0 to 255"""
    rule = "examples must be images if the model is auto"
    if isinstance(examples, str | Path):
        check(not is_table(examples), f"{rule}, got {display_path(examples)!r}; {FOR_TEXTS}")
        images = load_examples(examples, SAMPLE_SIDE, 3)
        indices = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).astype(int).tolist()
        try:
            return torch.stack([images.read(i).float() for i in indices])
        except SightlineError:
            if isinstance(images, ImageFiles):
                images.load()  # its error lists every file that cannot be read
            raise
    check(isinstance(examples, Mapping), f"{rule}, got {type(examples).__name__}")
    firsts = [
        item
        for label, values in islice(examples.items(), SAMPLE)
        for item in list_examples(values, f"class {label!r}")[:1]
    ]
    try:
        return torch.stack([read_image(item, size=SAMPLE_SIDE, channels=3).float() for item in firsts])
    except SightlineError as error:
        fix = f"; {FOR_TEXTS}" if any(isinstance(item, str) for item in firsts) else ""
        raise type(error)(f"{rule}: {error}{fix}") from error
