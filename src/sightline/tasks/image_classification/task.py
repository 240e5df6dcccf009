"""Learning to name images: its recipe, its batches and its loss."""

import hashlib
import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import seeds
from ...data.images import augmentation as augment
from ...data.images.augmentation import Augment
from ...data.images.loading import ImageFiles, Images, ImageSet, Progress, Splits, load, split
from ...data.images.statistics import histogram, mean_and_spread
from ...data.images.streaming import stream
from ...errors import SightlineError, check_fraction, check_int, check_max
from ...models.image_classifier import ImageClassifier, ImageClassifierConfig
from ...training.config import TrainingConfig
from ...training.distributed import place
from ...training.task import Part
from .evaluate import EVALUATED_AT_ONCE, metrics, tally

MOST_BATCH = 2**20
SEEN_FOR_NORMALIZATION = 10_000
"""Images whose mean and spread stand for all."""


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """Which images to learn from."""

    source: str = "glyphs"
    """A data set by name, or the path of one (`sightline data PATH` shows what it holds)."""
    image_size: int | None = None
    """Side to bring every image to; null for that of the images."""
    channels: int | None = None
    """1 for gray, 3 for color; null for those of the images."""
    validation: float = 0.1
    """Share of the training images to hold out for validation where the set brings none; 0 for none."""
    memory: int = 4096
    """MiB that images may take in memory; a larger folder is read while training."""
    workers: int = 2
    """Processes that read a larger folder."""

    def __post_init__(self) -> None:
        check_int(0, memory=self.memory, workers=self.workers)
        check_fraction(validation=self.validation)

    def load(self, progress: Progress | None = None) -> Splits:
        """Read it."""
        return load(
            self.source,
            size=self.image_size,
            channels=self.channels,
            keep_in_memory=self.memory << 20,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that is to be known to train an image classifier."""

    task: Literal["image_classifier"] = "image_classifier"
    out: str | None = None
    """The folder of the run; null for runs/ and the name of the recipe."""
    seed: int = 0
    data: ImageData = field(default_factory=ImageData)
    augment: Augment = field(default_factory=Augment)
    model: ImageClassifierConfig = field(default_factory=ImageClassifierConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @classmethod
    def starter(cls) -> "Recipe":
        """What is trained where no recipe is given: good for the embedded glyphs and for a few hundred small images."""
        return cls(
            augment=Augment(crop=2, rotate=10.0, scale=0.1),
            training=TrainingConfig(
                optimizer="muon",
                steps=600,
                batch_size=64,
                learning_rate=3e-3,
                warmup_steps=50,
                ema_decay=0.98,
                evaluate_every=60,
                log_every=20,
            ),
        )

    def __post_init__(self) -> None:
        check_int(0, seed=self.seed)
        check_max(seeds.MOST, seed=self.seed)
        check_max(MOST_BATCH, **{"training.batch_size": self.training.batch_size})
        self.check_pairs()

    def check_pairs(self, processes: int = 1) -> None:
        """Neighbours of a batch that are mixed must come to the same process, in the same piece."""
        size, pieces = self.training.batch_size, self.training.gradient_accumulation_steps
        if self.augment.mixes and processes * pieces > 1 and size % (2 * processes * pieces):
            raise SightlineError(
                "training.batch_size must be a multiple of 2 times processes times training.gradient_accumulation_steps, "
                f"2 x {processes} x {pieces}, where augment.mixup or augment.cutmix mixes neighbors, got {size}"
            )

    def evaluated_at_once(self, processes: int = 1) -> int:
        """No more than is learned from in one go, for that is known to fit."""
        return max(
            1,
            min(EVALUATED_AT_ONCE, self.training.batch_size // (processes * self.training.gradient_accumulation_steps)),
        )


class ImageTask:
    """Images to learn from, and the model that learns."""

    monitor, higher_is_better = "accuracy", True

    def __init__(self, recipe: Recipe, splits: Splits | None = None, progress: Progress | None = None):
        recipe.check_pairs(place()[1])
        divided = divide(recipe.data, recipe.seed, progress) if splits is None else splits
        train = divided.train
        if len(set(train.labels.tolist())) < 2:
            raise SightlineError(f"data must have images of at least 2 classes to tell apart, got {train.classes}")
        self.train, self.validation, self.test = train, divided.validation, divided.test
        self.classes = train.classes
        config = recipe.model.of_data(image_size=train.size, channels=train.channels, num_classes=len(train.classes))
        self.recipe = replace(recipe, model=config)
        self.model = ImageClassifier(config)
        chosen = np.sort(
            seeds.generator(recipe.seed, seeds.NORMALIZATION).permutation(len(train))[:SEEN_FOR_NORMALIZATION]
        )
        levels = histogram(train, chosen, progress if isinstance(train, ImageFiles) else None)
        self.model.set_normalization(*mean_and_spread(levels))
        self.data_fingerprint = data_fingerprint(divided, levels)
        """What the data hold, in few words: a run goes on with the same."""
        self.device = torch.device("cpu")

    def steps_per_epoch(self, batch_size: int) -> int:
        return max(1, len(self.train) // batch_size)

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        if isinstance(self.train, ImageSet):
            self.train = _moved(self.train, device)
        if isinstance(self.validation, ImageSet):
            self.validation = _moved(self.validation, device)

    def batches(self, first: int, batch_size: int, part: Part) -> Generator[list[Any], None, None]:
        rows = part.rows(batch_size)
        here = slice(rows[0].start, rows[-1].stop)
        pixels = stream(self.train, self._orders(first, batch_size, here), self.recipe.data.workers, self.device)
        size = here.stop - here.start
        inside = [slice(part.start - here.start, part.stop - here.start) for part in rows]
        for step, (images, labels) in enumerate(pixels, first):
            draws = augment.draw(self.recipe.augment, batch_size, seed=self.recipe.seed, step=step).rows(here)
            draws = draws.to(self.device)
            assert len(labels) == size
            yield [self._piece(images[one], labels[one], draws.rows(one), batch_size) for one in inside]

    def _piece(self, pixels: Tensor, labels: Tensor, draws: augment.Draws, total: int) -> tuple[Tensor, Tensor, int]:
        images, targets = augment.apply(self.recipe.augment, pixels, labels, len(self.classes), draws)
        return images, targets, total

    def _orders(self, first: int, batch_size: int, here: slice) -> Iterator[Tensor]:
        """Which images the batches hold from step `first` on, of each the rows that belong here."""
        per_epoch, count = self.steps_per_epoch(batch_size), len(self.train)
        epoch, order = -1, torch.empty(0)
        for step in itertools.count(first):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                random = seeds.generator(self.recipe.seed, seeds.ORDER, epoch)
                rounds = -(-batch_size // count)  # a batch larger than the set holds every image more than once
                order = torch.from_numpy(np.concatenate([random.permutation(count) for _ in range(rounds)]))
                order = order.to(self.train.labels.device)
            start = step % per_epoch * batch_size
            yield order[start + here.start : start + here.stop]

    def loss(self, model: nn.Module, piece: tuple[Tensor, Tensor, int]) -> Tensor:
        images, targets, total = piece
        smoothing = self.recipe.training.label_smoothing
        return F.cross_entropy(model(images).float(), targets, label_smoothing=smoothing, reduction="sum") / total

    def evaluate(self, model: nn.Module, part: Part) -> dict[str, Tensor]:
        if self.validation is None:
            return {}
        most = self.recipe.evaluated_at_once(part.world)
        return tally(model, self.validation, part, self.device, self.recipe.data.workers, most)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return metrics(sums) if sums else {}


def divide(data: ImageData, seed: int, progress: Progress | None = None) -> Splits:
    """The data, with a share of the training images data_fingerprint out where it brings no validation set."""
    splits = data.load(progress)
    if splits.validation is not None or not data.validation:
        return splits
    train, validation = split(splits.train, data.validation, seed)
    return replace(splits, train=train, validation=validation)


def data_fingerprint(splits: Splits, levels: Tensor) -> dict[str, Any]:
    """Counts and digests of what a data set holds; `levels` are those of its training images.

    The names of files are known only where they are read while training.
    """
    facts: dict[str, Any] = {"classes": digest("\0".join(splits.train.classes).encode())}
    for name in ("train", "validation", "test"):
        images: Images | None = getattr(splits, name)
        if images is None:
            facts[name] = {"images": 0}
            continue
        facts[name] = {"images": len(images), "labels": digest(images.labels.cpu().numpy().tobytes())}
        if isinstance(images, ImageFiles):
            files = "\0".join(f"{path.parent.name}/{path.name}" for path in images.paths)
            facts[name]["files"] = digest(files.encode(errors="surrogateescape"))
    facts["train"]["levels"] = digest(levels.numpy().tobytes())
    return facts


def digest(data: bytes) -> str:
    """A fingerprint."""
    return hashlib.sha256(data).hexdigest()


def _moved(images: ImageSet, device: torch.device) -> ImageSet:
    return ImageSet(images.pixels.to(device), images.labels.to(device), images.classes)
