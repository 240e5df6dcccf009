"""Learning to name images: its recipe, its batches, its loss, its metrics, and the model at work afterwards."""

import hashlib
import itertools
import math
import signal
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..checks import check_most, check_share, check_whole
from ..data import augment
from ..data.augment import Augment
from ..data.images import ImageFiles, Images, ImageSet, Progress, Splits, load, split
from ..data.levels import histogram, mean_and_spread
from ..data.sets import at_once
from ..models.image_classifier import ImageClassifier, ImageClassifierConfig
from ..training.distributed import place
from ..training.settings import Training
from ..training.task import Part

BINS = 15
"""Of confidence, for the calibration error."""
EVALUATED_AT_ONCE = 512
"""Images judged in one go, if they are small."""
MOST_SEED, MOST_BATCH = 2**63 - 1, 2**20
ORDER, NORMALISATION = 2, 3
"""What keeps these random streams apart from the others of the same seed."""
SEEN_FOR_NORMALISATION = 10_000
"""Images whose mean and spread stand for all."""


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """Which images to learn from."""

    source: str = "glyphs"
    """A data set by name, or the path of one (`sightline data PATH` shows what it holds)."""
    image_size: int | None = None
    """Side to bring every image to; null for that of the images."""
    channels: int | None = None
    """1 for grey, 3 for colour; null for those of the images."""
    validation: float = 0.1
    """Share of the training images to hold out for validation where the set brings none; 0 for none."""
    memory: int = 4096
    """MiB that images may take in memory; a larger folder is read while training."""
    workers: int = 2
    """Processes that read a larger folder."""

    def __post_init__(self) -> None:
        check_whole(0, memory=self.memory, workers=self.workers)
        check_share(validation=self.validation)

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
    training: Training = field(default_factory=Training)

    @classmethod
    def starter(cls) -> "Recipe":
        """What is trained where no recipe is given: good for the embedded glyphs and for a few hundred small images."""
        return cls(
            augment=Augment(crop=2, rotate=10.0, scale=0.1),
            training=Training(
                optimiser="muon",
                steps=600,
                batch_size=64,
                learning_rate=3e-3,
                warmup=50,
                ema=0.98,
                evaluate_every=60,
                log_every=20,
            ),
        )

    def __post_init__(self) -> None:
        check_whole(0, seed=self.seed)
        check_most(MOST_SEED, seed=self.seed)
        check_most(MOST_BATCH, **{"training.batch_size": self.training.batch_size})
        self.check_pairs()

    def check_pairs(self, processes: int = 1) -> None:
        """Neighbours of a batch that are mixed must come to the same process, in the same piece."""
        size, pieces = self.training.batch_size, self.training.accumulate
        if self.augment.mixes and processes * pieces > 1 and size % (2 * processes * pieces):
            raise ValueError(
                "training.batch_size must be a multiple of 2 times processes times training.accumulate, "
                f"2 x {processes} x {pieces}, where augment.mixup or augment.cutmix mixes neighbours, got {size}"
            )

    def evaluated_at_once(self, processes: int = 1) -> int:
        """No more than is learnt from in one go, for that is known to fit."""
        return max(1, min(EVALUATED_AT_ONCE, self.training.batch_size // (processes * self.training.accumulate)))


class ImageTask:
    """Images to learn from, and the model that learns."""

    goal, rising = "accuracy", True

    def __init__(self, recipe: Recipe, splits: Splits | None = None, progress: Progress | None = None):
        recipe.check_pairs(place()[1])
        divided = divide(recipe.data, recipe.seed, progress) if splits is None else splits
        train = divided.train
        if len(set(train.labels.tolist())) < 2:
            raise ValueError(f"data must have images of at least 2 classes to tell apart, got {train.classes}")
        self.train, self.validation, self.test = train, divided.validation, divided.test
        self.classes = train.classes
        config = recipe.model.of_data(image_size=train.size, channels=train.channels, classes=len(train.classes))
        self.recipe = replace(recipe, model=config)
        self.model = ImageClassifier(config)
        random = np.random.default_rng([recipe.seed, NORMALISATION])
        chosen = np.sort(random.permutation(len(train))[:SEEN_FOR_NORMALISATION])
        levels = histogram(train, chosen, progress if isinstance(train, ImageFiles) else None)
        self.model.set_normalisation(*mean_and_spread(levels))
        self.held = held(divided, levels)
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
        pixels = _pixels(self.train, self._orders(first, batch_size, here), self.recipe.data.workers, self.device)
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
                random = np.random.default_rng([self.recipe.seed, ORDER, epoch])
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
    """The data, with a share of the training images held out where it brings no validation set."""
    splits = data.load(progress)
    if splits.validation is not None or not data.validation:
        return splits
    train, validation = split(splits.train, data.validation, seed)
    return replace(splits, train=train, validation=validation)


def held(splits: Splits, levels: Tensor) -> dict[str, Any]:
    """Counts and digests of what a data set holds; `levels` are those of its training images.

    The names of files are known only where they are read while training.
    """
    facts: dict[str, Any] = {"classes": _digest("\0".join(splits.train.classes).encode())}
    for name in ("train", "validation", "test"):
        images: Images | None = getattr(splits, name)
        if images is None:
            facts[name] = {"images": 0}
            continue
        facts[name] = {"images": len(images), "labels": _digest(images.labels.cpu().numpy().tobytes())}
        if isinstance(images, ImageFiles):
            files = "\0".join(f"{path.parent.name}/{path.name}" for path in images.paths)
            facts[name]["files"] = _digest(files.encode(errors="surrogateescape"))
    facts["train"]["levels"] = _digest(levels.numpy().tobytes())
    return facts


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sharpness(
    model: nn.Module, images: Images, device: torch.device, workers: int = 2, most: int = EVALUATED_AT_ONCE
) -> float:
    """What to multiply the model's logits by for the likeliest labels of these images, between 1/20 and 20.

    Labels are softened as if one more image had been seen, of no class in particular, so that a set on which all is
    right does not ask for certainty.
    """
    logits, labels = [], []
    orders = torch.arange(len(images)).split(at_once(images, most))
    for pixels, own in _pixels(images, iter(orders), workers, device):
        logits.append(model(pixels.float() / 255).double())
        labels.append(own)
    scores, targets = torch.cat(logits), F.one_hot(torch.cat(labels), len(images.classes)).double()
    count, classes = targets.shape
    targets = (count * targets + 1 / classes) / (count + 1)
    low, high = math.log(1 / 20), math.log(20)
    for _ in range(60):  # the loss is convex, so a third can be left at every turn
        third = (high - low) / 3
        losses = [-(targets * (math.exp(x) * scores).log_softmax(-1)).sum() for x in (low + third, high - third)]
        low, high = (low, high - third) if losses[0] < losses[1] else (low + third, high)
    return math.exp((low + high) / 2)


def tally(
    model: nn.Module,
    images: Images,
    part: Part,
    device: torch.device,
    workers: int = 2,
    most: int = EVALUATED_AT_ONCE,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """What there is to count over the part of a set that belongs here, at most so many images at a time.

    Every process makes the same number of calls, for a model that is shared out needs all of them at each; where the
    images do not divide evenly the last one is looked at again and not counted.
    """
    count = len(images)
    own = torch.arange(part.rank, -(-count // part.world) * part.world, part.world)
    real = (own < count).to(device)
    own = own.clamp_max(count - 1).to(images.labels.device)
    sums = {
        "loss": torch.zeros((), dtype=torch.float64, device=device),
        "right": torch.zeros(len(images.classes), dtype=torch.float64, device=device),
        "seen": torch.zeros(len(images.classes), dtype=torch.float64, device=device),
        "sure": torch.zeros(BINS, dtype=torch.float64, device=device),
        "sure_right": torch.zeros(BINS, dtype=torch.float64, device=device),
    }
    size, done = at_once(images, most), 0
    for (pixels, labels), counts in zip(
        _pixels(images, iter(own.split(size)), workers, device), real.split(size), strict=True
    ):
        logits = model(pixels.float() / 255).float()
        shares, answers = logits.softmax(-1).double().max(-1)
        counted, right = counts.double(), (answers == labels) * counts.double()
        sums["loss"] += (F.cross_entropy(logits, labels, reduction="none").double() * counted).sum()
        sums["right"].index_add_(0, labels, right)
        sums["seen"].index_add_(0, labels, counted)
        bins = (shares * BINS).long().clamp_max(BINS - 1)
        sums["sure"].index_add_(0, bins, shares * counted)
        sums["sure_right"].index_add_(0, bins, right)
        done += len(labels)
        if progress:
            progress(done, len(own))
    return sums


def metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """Accuracy, loss and how far confidence is from the truth, from what was counted."""
    seen = float(sums["seen"].sum())
    return {
        "accuracy": float(sums["right"].sum()) / seen,
        "loss": float(sums["loss"]) / seen,
        "calibration_error": float((sums["sure"] - sums["sure_right"]).abs().sum()) / seen,
    }


class _Files(torch.utils.data.Dataset[tuple[Tensor | str, Tensor]]):
    """Image files as torch's loader wants them; for one that cannot be read, why."""

    def __init__(self, images: ImageFiles):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor | str, Tensor]:
        try:
            return self.images.read(index), self.images.labels[index]
        except ValueError as error:
            return str(error), self.images.labels[index]


def _pixels(
    images: Images, orders: Iterator[Tensor], workers: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """uint8 images (B, C, H, W) and labels (B,) on the device, batch by batch: those of these orders."""
    if isinstance(images, ImageSet):
        for order in orders:
            yield images.pixels[order].to(device), images.labels[order].to(device)
        return
    loader = DataLoader(
        _Files(images),
        batch_sampler=(order.tolist() for order in orders),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        collate_fn=_collate,
        worker_init_fn=_ignore_signals,
    )
    for pixels, labels in loader:
        if isinstance(pixels, str):
            raise ValueError(pixels)
        yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def _collate(read: list[tuple[Tensor | str, Tensor]]) -> tuple[Tensor | str, Tensor]:
    """A batch, or what is wrong with an image of it."""
    images = [image for image, _ in read if not isinstance(image, str)]
    wrong = [image for image, _ in read if isinstance(image, str)]
    return wrong[0] if wrong else torch.stack(images), torch.stack([label for _, label in read])


def _ignore_signals(worker: int) -> None:
    """A terminal or a service manager sends them to the workers too; the loop saves first, then lets these go."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _moved(images: ImageSet, device: torch.device) -> ImageSet:
    return ImageSet(images.pixels.to(device), images.labels.to(device), images.classes)
