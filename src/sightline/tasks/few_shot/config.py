"""Config of few-shot classification."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ... import limits
from ...data.images.augmentation import Augment
from ...data.images.class_splits import ClassSplits, Rotations, load_classes, same_source, with_others
from ...data.images.loading import Progress
from ...errors import SightlineError, check_fraction, check_int, check_max
from ...models.few_shot import FewShotConfig
from ...training.config import TrainingConfig
from .evaluate import Setting
from .frozen_embedder import check_embedder


@dataclass(frozen=True, kw_only=True)
class More:
    """A data set that is learned from beside the first: its training classes, or all it has where it has no parts."""

    source: str
    split: str | None = None
    """What names the classes of each part, as for the first."""
    share: float = 0.5
    """Of the episodes; all classes of an episode are of one set."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise SightlineError(f"share must be above 0 and below 1, got {self.share}")

    @property
    def name(self) -> str:
        """What its classes are known by."""
        path = Path(self.source)
        return path.stem if path.suffix.lower() in (".npz", ".zip") else path.name


@dataclass(frozen=True, kw_only=True)
class FewShotData:
    """Which classes to learn from, to choose by and to judge by: none is in two of these."""

    source: str = "glyphs"
    """A data set by name, or the path of one (`sightline data PATH` shows what it holds)."""
    split: str | None = None
    """A folder with train.json, val.json and test.json, or one such file, that name the classes of each part."""
    image_size: int | None = None
    """Side to bring every image to; null for that of the images."""
    channels: int | None = None
    """1 for gray, 3 for color; null for those of the images."""
    validation: float = 0.15
    """Share of the training classes to hold out where the set brings none; whole alphabets where there are some."""
    rotations: Rotations = "none"
    """Of which classes those turned by 90, 180 and 270 degrees are classes of their own: none, train or all."""
    embedder: str | None = None
    """A model that sees each image once and learns no more: efficientnet_lite0, or a vision model of Hugging Face."""
    weights: str | None = None
    """The file of its weights; null for those it comes with."""
    copies: int = 0
    """Copies of each training image that it sees too, changed as `augment` says."""
    more: tuple[More, ...] = ()
    """Other data sets to learn from, brought to the form of the first; nothing is chosen or evaluate_on by them."""

    def __post_init__(self) -> None:
        check_fraction(validation=self.validation)
        names = [other.name for other in self.more]
        if len({*names}) < len(names):
            raise SightlineError(
                f"data.more must be sets of different names, got {', '.join(names)}; rename a file or a folder"
            )
        if (total := sum(other.share for other in self.more)) > 1 - 1e-6:
            raise SightlineError(
                f"the shares of data.more must leave some episodes to data.source, got {total:g} together; lower one"
            )
        sources = [self.source, *(other.source for other in self.more)]
        for one, other in itertools.combinations(
            sources, 2
        ):  # what is data_fingerprint out of one would be learned from
            if same_source(one, other):
                raise SightlineError(f"data.more must be other data than {one!r}, got {other!r}; leave it out")

    def load(self, seed: int, progress: Progress | None = None) -> ClassSplits:
        """Read it."""
        how: dict[str, Any] = {"size": self.image_size, "channels": self.channels, "rotations": self.rotations}
        how["progress"] = progress
        first = load_classes(self.source, split=self.split, validation=self.validation, seed=seed, **how)
        if not self.more:
            return first
        how |= {"size": first.train.size, "channels": first.train.channels}
        others = [(one, load_classes(one.source, split=one.split, **how).train) for one in self.more]
        return with_others(first, {one.name: (images, one.share) for one, images in others})


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What one task of training looks like."""

    way: int = 20
    """Classes to tell apart."""
    shot: int = 1
    """Images of each to learn from."""
    min_shot: int | None = None
    """If given, a class has this many to `shot` of them, by lot: for any number, and for classes of unequal size."""
    query: int = 5
    """Images of each to be asked."""
    within: float = 0.0
    """Share of episodes whose classes come from one group, such as an alphabet."""

    def __post_init__(self) -> None:
        check_int(2, way=self.way)
        check_int(1, shot=self.shot, query=self.query)
        if self.min_shot is not None:
            check_int(1, min_shot=self.min_shot)
            if self.min_shot > self.shot:
                raise SightlineError(f"min_shot must be at most shot, {self.shot}, got {self.min_shot}")
        if not 0 <= self.within <= 1:
            raise SightlineError(f"within must be 0 to 1, got {self.within}")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a model is evaluate_on: `5w1s` is five classes with one image of each, `5w1s within` of one group."""

    settings: tuple[str, ...] = ("5w1s", "5w5s", "20w1s", "20w5s")
    query: int = 15
    """Images of each class to be asked."""
    episodes: int = 2000
    """For each setting."""
    selection_setting: str = "20w1s"
    """The setting that says which weights are best, on validation classes."""
    selection_episodes: int = 200
    """Episodes behind that choice."""
    one_shot_runs: str | None = None
    """The zip of Omniglot's official one-shot runs, to be evaluate_on by too."""

    def __post_init__(self) -> None:
        check_int(1, query=self.query, episodes=self.episodes, selection_episodes=self.selection_episodes)
        check_max(limits.MAX_EPISODES, episodes=self.episodes, selection_episodes=self.selection_episodes)
        if not self.settings:
            raise SightlineError("settings must name at least one way and shot such as 5w1s, got none")
        for setting in (*self.settings, self.selection_setting):
            Setting.of(setting)


@dataclass(frozen=True, kw_only=True)
class FewShotTaskConfig:
    """All that is to be known to train a few-shot classifier; `training.batch_size` is episodes behind one update."""

    task: Literal["few_shot"] = "few_shot"
    out: str | None = None
    """The folder of the run; null for runs/ and the name of the recipe."""
    seed: int = 0
    data: FewShotData = field(default_factory=FewShotData)
    augment: Augment = field(default_factory=Augment)
    episode: Episode = field(default_factory=Episode)
    evaluation: Evaluation = field(default_factory=Evaluation)
    model: FewShotConfig = field(default_factory=FewShotConfig)
    auxiliary: float = 0.0
    """Weight of a second loss: telling all training classes apart with a plain classifier."""
    label_smoothing: float = 0.0
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=8))

    @classmethod
    def starter(cls) -> "FewShotTaskConfig":
        """What is trained where no recipe is given: a minute of one core on the glyphs."""
        return cls(
            data=FewShotData(rotations="train"),
            augment=Augment(rotate=10.0, scale=0.1, shear=5.0, translate=0.05),
            episode=Episode(way=10, shot=1, query=3, within=0.5),
            evaluation=Evaluation(episodes=1000, selection_setting="5w1s"),
            model=FewShotConfig(backbone_channels=(32, 64, 96, 128)),
            auxiliary=0.5,
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
        check_int(0, seed=self.seed)
        check_max(limits.MAX_SEED, seed=self.seed)
        check_fraction(label_smoothing=self.label_smoothing)
        if not 0 <= self.auxiliary < float("inf"):
            raise SightlineError(f"auxiliary must be at least 0 and finite, got {self.auxiliary}")
        if self.augment.mixes:
            raise SightlineError(
                "augment.mixup and augment.cutmix must be 0, for an image of two classes belongs to no episode"
            )
        check_embedder(self)
