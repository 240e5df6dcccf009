"""Config of few-shot classification."""

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ... import limits
from ...config import Config, Seed
from ...data.episodes import ClassIndex
from ...data.images.augmentation import AugmentConfig
from ...data.images.class_splits import ClassSplits, Rotations, add_sources, load_classes
from ...data.sources import same_source
from ...errors import SightlineError, check_fraction, check_int, check_max
from ...models.few_shot import FewShotConfig, check_channels
from ...predictor import Progress
from ...training.config import TrainingConfig


class Setting(NamedTuple):
    """The way and shot of evaluation episodes, written `5w1s`; `5w1s within` draws all classes from one group."""

    way: int
    shot: int
    within_group: bool = False

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """Read a setting from its text."""
        match = re.fullmatch(r"(\d{1,4})w(\d{1,4})s( within)?", text)
        if not match or int(match[1]) < 2 or int(match[2]) < 1:
            raise SightlineError(
                f"a setting must read like 5w1s or 5w1s within, with at least 2 classes and 1 image, got {text!r}"
            )
        return cls(int(match[1]), int(match[2]), match[3] is not None)

    def check(self, classes: ClassIndex, query: int) -> None:
        """Check that episodes of this setting can be drawn from these classes."""
        classes.check(self.way, self.shot + query)
        if self.within_group and classes.groups is None:
            raise SightlineError(
                "a setting within groups must have classes in groups, named like Alphabet/character, got none; "
                "leave out `within`"
            )


@dataclass(frozen=True, kw_only=True)
class ExtraSource:
    """An additional data set of training classes: its training split, or all its classes if it has no splits."""

    source: str
    split: str | None = None
    """Class lists of the splits, as in `FewShotData`."""
    fraction: float = 0.5
    """Fraction of the episodes; all classes of an episode come from one data set."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise SightlineError(f"fraction must be above 0 and below 1, got {self.fraction}")

    @property
    def name(self) -> str:
        """The prefix of its class names."""
        path = Path(self.source)
        return path.stem if path.suffix.lower() in (".npz", ".zip") else path.name


@dataclass(frozen=True, kw_only=True)
class FewShotData:
    """A data set whose training, validation and test classes are disjoint."""

    source: str = "glyphs"
    """Name or path of a data set; `sightline data PATH` describes it."""
    split: str | None = None
    """A folder with train.json, val.json and test.json, or one such file, that list the classes of each split."""
    image_size: int | None = None
    """Side length to resize every image to; null for that of the images."""
    channels: int | None = None
    """1 for grayscale, 3 for color; null for those of the images."""
    validation_fraction: float = 0.15
    """Fraction of the training classes to hold out if there are no validation classes. Groups are not divided."""
    rotations: Rotations = "none"
    """Splits whose classes, rotated by 90, 180 and 270 degrees, are additional classes: none, train or all."""
    embedder: str | None = None
    """A pretrained image encoder with fixed weights: efficientnet_lite0, or a vision model of Hugging Face."""
    weights: str | None = None
    """Weight file of the embedder; null for its default weights."""
    augmented_copies: int = 0
    """Copies of each training image, changed by `augment`, that are embedded too."""
    extra_sources: tuple[ExtraSource, ...] = ()
    """Additional data sets of training classes, converted to the image format of the first."""

    def __post_init__(self) -> None:
        check_channels(self.channels)
        check_fraction(validation_fraction=self.validation_fraction)
        check_int(0, augmented_copies=self.augmented_copies)
        check_max(limits.MAX_AUGMENTED_COPIES, augmented_copies=self.augmented_copies)
        if self.embedder is None and (self.weights is not None or self.augmented_copies):
            raise SightlineError("weights and augmented_copies must be left out without an embedder, got one of them")
        names = [extra.name for extra in self.extra_sources]
        if len({*names}) < len(names):
            raise SightlineError(
                f"extra_sources must have different names, got {', '.join(names)}; rename a file or a folder"
            )
        if (total := sum(extra.fraction for extra in self.extra_sources)) > 1 - 1e-6:
            raise SightlineError(f"the fractions of extra_sources must sum to less than 1, got {total:g}; lower one")
        sources = [self.source, *(extra.source for extra in self.extra_sources)]
        for first, second in itertools.combinations(sources, 2):  # held-out classes of one would be trained on
            if same_source(first, second):
                raise SightlineError(f"extra_sources must differ from {first!r}, got {second!r}; leave it out")

    def load(self, seed: int, progress: Progress | None = None) -> ClassSplits:
        """Read all data sets."""
        options: dict[str, Any] = {"size": self.image_size, "channels": self.channels, "rotations": self.rotations}
        options["progress"] = progress
        first = load_classes(
            self.source, split=self.split, validation_fraction=self.validation_fraction, seed=seed, **options
        )
        if not self.extra_sources:
            return first
        options |= {"size": first.train.size, "channels": first.train.channels}
        return add_sources(
            first,
            {
                extra.name: (load_classes(extra.source, split=extra.split, **options).train, extra.fraction)
                for extra in self.extra_sources
            },
        )


@dataclass(frozen=True, kw_only=True)
class EpisodeConfig:
    """The training episodes."""

    way: int = 20
    """Classes."""
    shot: int = 1
    """Support images per class."""
    min_shot: int | None = None
    """If given, each class has `min_shot` to `shot` support images, drawn at random."""
    query: int = 5
    """Query images per class."""
    within_group: float = 0.0
    """Fraction of episodes whose classes come from one group, such as an alphabet."""

    def __post_init__(self) -> None:
        check_int(2, way=self.way)
        check_int(1, shot=self.shot, query=self.query)
        if self.min_shot is not None:
            check_int(1, min_shot=self.min_shot)
            if self.min_shot > self.shot:
                raise SightlineError(f"min_shot must be at most shot, {self.shot}, got {self.min_shot}")
        if not 0 <= self.within_group <= 1:
            raise SightlineError(f"within_group must be 0 to 1, got {self.within_group}")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The evaluation episodes. `5w1s` is 5-way 1-shot; `5w1s within` draws all classes of an episode from one group."""

    settings: tuple[str, ...] = ("5w1s", "5w5s", "20w1s", "20w5s")
    query: int = 15
    """Query images per class."""
    episodes: int = 2000
    """Episodes per setting."""
    selection_setting: str = "20w1s"
    """The setting that selects the best weights, on validation classes."""
    selection_episodes: int = 200
    """Validation episodes."""
    one_shot_runs: str | None = None
    """The zip file of Omniglot's official one-shot runs, to evaluate on as well."""

    def __post_init__(self) -> None:
        check_int(1, query=self.query, episodes=self.episodes, selection_episodes=self.selection_episodes)
        check_max(limits.MAX_EPISODES, episodes=self.episodes, selection_episodes=self.selection_episodes)
        if not self.settings:
            raise SightlineError("settings must have at least one entry such as 5w1s, got none")
        for setting in (*self.settings, self.selection_setting):
            Setting.parse(setting)


@dataclass(frozen=True, kw_only=True)
class FewShotTaskConfig(Config):
    """Config of a run that trains a few-shot classifier. `training.batch_size` counts episodes."""

    task: Literal["few_shot"] = "few_shot"
    out: str | None = None
    """Folder of the run; null for runs/NAME."""
    seed: Seed = 0
    data: FewShotData = field(default_factory=FewShotData)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    model: FewShotConfig = field(default_factory=FewShotConfig)
    auxiliary_loss_weight: float = 0.0
    """Weight of a second loss: the cross entropy of a linear classifier over all training classes."""
    label_smoothing: float = 0.0
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=8))

    @classmethod
    def starter(cls) -> "FewShotTaskConfig":
        """The config without a file: trains on the embedded glyphs for a minute on one core."""
        return cls(
            data=FewShotData(rotations="train"),
            augment=AugmentConfig(rotate=10.0, scale=0.1, shear=5.0, translate=0.05),
            episode=EpisodeConfig(way=10, shot=1, query=3, within_group=0.5),
            evaluation=EvaluationConfig(episodes=1000, selection_setting="5w1s"),
            model=FewShotConfig(backbone_channels=(32, 64, 96, 128)),
            auxiliary_loss_weight=0.5,
            training=TrainingConfig(
                steps=600,
                batch_size=2,
                learning_rate=3e-3,
                warmup_steps=40,
                ema_decay=0.98,
                evaluate_every=300,
                log_every=20,
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(label_smoothing=self.label_smoothing)
        if not 0 <= self.auxiliary_loss_weight < float("inf"):
            raise SightlineError(
                f"auxiliary_loss_weight must be at least 0 and finite, got {self.auxiliary_loss_weight}"
            )
        if self.augment.mixes_labels:
            raise SightlineError("augment.mixup and augment.cutmix must be 0 for episodes, got one above 0")
        embedder, copies = self.data.embedder, self.data.augmented_copies
        if (embedder is None) == (self.model.backbone == "none"):
            raise SightlineError(
                f"model.backbone must be none with a data.embedder, and only then, got {self.model.backbone!r} and "
                f"{embedder!r}"
            )
        if embedder is not None and (copies > 0) != (self.augment != AugmentConfig()):
            raise SightlineError(
                f"augment must be set if and only if data.augmented_copies is above 0 with a data.embedder, got "
                f"{copies} copies; set both or neither"
            )
