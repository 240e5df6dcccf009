"""Config of few-shot classification."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from ...config import Config, Fraction, NonNegative, PositiveInt, at_least, at_most, rule
from ...data.episodes import ClassIndex
from ...data.images.augmentation import AugmentConfig
from ...data.images.class_splits import ClassSplits, Rotations, add_sources, load_classes
from ...data.sources import same_source
from ...errors import SightlineError, check
from ...models.few_shot_config import Channels, FewShotConfig
from ...predictor import Progress
from ...training.config import DataConfig, TaskConfig, TrainingConfig


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
            message = "a setting must read like 5w1s or 5w1s within, with at least 2 classes and 1 image"
            raise SightlineError(f"{message}, got {text!r}")
        return cls(int(match[1]), int(match[2]), match[3] is not None)

    def check(self, classes: ClassIndex, query: int) -> None:
        """Check that episodes of this setting can be drawn from these classes."""
        classes.check(self.way, self.shot + query)
        required = "a setting within groups must have classes in groups, named like Alphabet/character"
        check(classes.groups is not None or not self.within_group, f"{required}, got none; leave out `within`")


SettingText = Annotated[str, lambda name, text: Setting.parse(text)]
NumEpisodes = Annotated[int, at_least(1), at_most("MAX_EPISODES")]


@dataclass(frozen=True, kw_only=True)
class ExtraSource(Config):
    """An additional data set of training classes: its training split, or all its classes if it has no splits."""

    source: str
    split: str | None = None
    """Class lists of the splits, as in `FewShotData`."""
    fraction: Annotated[float, rule("above 0 and below 1", lambda fraction: 0 < fraction < 1)] = 0.5
    """Fraction of the episodes; all classes of an episode come from one data set."""

    @property
    def name(self) -> str:
        """The prefix of its class names."""
        path = Path(self.source)
        return path.stem if path.suffix.lower() in (".npz", ".zip") else path.name


@dataclass(frozen=True, kw_only=True)
class FewShotData(DataConfig):
    """A data set whose training, validation and test classes are disjoint."""

    source: str = "glyphs"
    """Name or path of a data set; `sightline data PATH` describes it."""
    split: str | None = None
    """A folder with train.json, val.json and test.json, or one such file, that list the classes of each split."""
    image_size: int | None = None
    """Side length to resize every image to; null for that of the images."""
    channels: Channels | None = None
    """1 for grayscale, 3 for color; null for those of the images."""
    validation_fraction: Fraction = 0.15
    """Fraction of the training classes to hold out if there are no validation classes. Groups are not divided."""
    rotations: Rotations = "none"
    """Splits whose classes, rotated by 90, 180 and 270 degrees, are additional classes: none, train or all."""
    embedder: str | None = None
    """A pretrained image encoder with fixed weights: efficientnet_lite0, 1 or 2, the same with a feature map
    (efficientnet_lite0_spatial, 1 or 2), or a vision model of Hugging Face."""
    weights: str | None = None
    """Weight file of the embedder; null for its default weights."""
    augmented_copies: Annotated[int, at_least(0), at_most("MAX_AUGMENTED_COPIES")] = 0
    """Copies of each training image, changed by `augment`, that are embedded too."""
    extra_sources: tuple[ExtraSource, ...] = ()
    """Additional data sets of training classes, converted to the image format of the first."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source, *(extra.source for extra in self.extra_sources))

    def __post_init__(self) -> None:
        super().__post_init__()
        is_plain = self.weights is None and not self.augmented_copies
        required = "weights and augmented_copies must be left out without an embedder"
        check(is_plain or self.embedder is not None, f"{required}, got one of them")
        names = [extra.name for extra in self.extra_sources]
        required = "extra_sources must have different names"
        check(len({*names}) == len(names), f"{required}, got {', '.join(names)}; rename a file or a folder")
        total = sum(extra.fraction for extra in self.extra_sources)
        check(total <= 1 - 1e-6, f"the fractions of extra_sources must sum to less than 1, got {total:g}; lower one")
        for first, second in itertools.combinations(self.sources, 2):  # held-out classes of one would be trained on
            is_other = not same_source(first, second)
            check(is_other, f"extra_sources must differ from {first!r}, got {second!r}; leave it out")

    def load(self, seed: int, progress: Progress | None = None) -> ClassSplits:
        """Read all data sets."""
        options: dict[str, Any] = {"size": self.image_size, "channels": self.channels, "rotations": self.rotations}
        options["progress"] = progress
        first = load_classes(
            self.source, split=self.split, validation_fraction=self.validation_fraction, seed=seed, **options
        )
        options |= {"size": first.train.size, "channels": first.train.channels}
        extra = {
            extra.name: (load_classes(extra.source, split=extra.split, **options).train, extra.fraction)
            for extra in self.extra_sources
        }
        return add_sources(first, extra) if extra else first


@dataclass(frozen=True, kw_only=True)
class EpisodeConfig(Config):
    """The training episodes."""

    way: Annotated[int, at_least(2)] = 20
    """Classes; the largest number of them if `min_way` is given."""
    min_way: Annotated[int, at_least(2)] | None = None
    """If given, the episodes of a step have `min_way` to `way` classes, drawn at random. A data set with fewer classes
    is left out of the step."""
    shot: PositiveInt = 1
    """Support images per class."""
    min_shot: PositiveInt | None = None
    """If given, each class has `min_shot` to `shot` support images, drawn at random."""
    query: PositiveInt = 5
    """Query images per class."""
    within_group: Annotated[float, rule("0 to 1", lambda fraction: 0 <= fraction <= 1)] = 0.0
    """Fraction of episodes whose classes come from one group, such as an alphabet."""
    label_noise: Fraction = 0.0
    """Probability that a support image has a random label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        min_shot = self.min_shot or self.shot
        check(min_shot <= self.shot, f"min_shot must be at most shot, {self.shot}, got {min_shot}")
        min_way = self.min_way or self.way
        check(min_way <= self.way, f"min_way must be at most way, {self.way}, got {min_way}")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    """The evaluation episodes. `5w1s` is 5-way 1-shot; `5w1s within` draws all classes of an episode from one group."""

    settings: tuple[SettingText, ...] = ("5w1s", "5w5s", "20w1s", "20w5s")
    query: PositiveInt = 15
    """Query images per class."""
    episodes: NumEpisodes = 2000
    """Episodes per setting."""
    selection_setting: SettingText = "20w1s"
    """The setting that selects the best weights, on validation classes."""
    selection_episodes: NumEpisodes = 200
    """Validation episodes."""
    one_shot_runs: str | None = None
    """The zip file of Omniglot's official one-shot runs, to evaluate on as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.settings, "settings must have at least one entry such as 5w1s, got none")

    def changed(self, settings: Sequence[str] = (), episodes: int | None = None) -> "EvaluationConfig":
        """The config with other settings or another number of episodes, if given."""
        settings = tuple(settings) or self.settings
        return replace(self, settings=settings, episodes=self.episodes if episodes is None else episodes)


@dataclass(frozen=True, kw_only=True)
class FewShotTaskConfig(TaskConfig):
    """Config of a run that trains a few-shot classifier. `training.batch_size` counts episodes."""

    inherited_keys: ClassVar[tuple[str, ...]] = ("data.embedder",)

    task: Literal["few_shot"] = "few_shot"
    data: FewShotData = field(default_factory=FewShotData)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    model: FewShotConfig = field(default_factory=FewShotConfig)
    auxiliary_loss_weight: NonNegative = 0.0
    """Weight of a second loss: the cross entropy of a linear classifier over all training classes."""
    label_smoothing: Fraction = 0.0
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
                optimizer="muon",
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
        check(not self.augment.mixes_labels, "augment.mixup and augment.cutmix must be 0 for episodes, got one above 0")
        backbone, embedder, copies = self.model.backbone, self.data.embedder, self.data.augmented_copies
        required = "model.backbone must be none with a data.embedder, and only then"
        check((backbone == "none") == (embedder is not None), f"{required}, got {backbone!r} and {embedder!r}")
        is_consistent = embedder is None or (copies > 0) == (self.augment != AugmentConfig())
        required = "augment must be set if and only if data.augmented_copies is above 0 with a data.embedder"
        check(is_consistent, f"{required}, got {copies} copies; set both or neither")
