"""Learning to learn from a few images: its recipe, its episodes and its loss."""

import itertools
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import seeds
from ...data.episodes import Classes, Source, draw_from, left_out
from ...data.images.augmentation import Augment
from ...data.images.class_splits import ClassSplits, Rotations, groups_of, load_classes, same_source, with_others
from ...data.images.loading import ImageSet, Progress
from ...data.images.statistics import histogram, mean_and_spread
from ...errors import SightlineError, check_fraction, check_int, check_max
from ...models.few_shot import FewShot, FewShotConfig
from ...training.config import TrainingConfig
from ...training.task import Part
from ..image_classification.task import SEEN_FOR_NORMALIZATION, digest
from .evaluate import Setting, attention_facts, embed_all, metrics, tally
from .frozen_embedder import Embedded, check_embedder
from .micro_batches import Piece, Shown, changed, pieces

MOST_EPISODES = 1_000_000


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
        check_max(MOST_EPISODES, episodes=self.episodes, selection_episodes=self.selection_episodes)
        if not self.settings:
            raise SightlineError("settings must name at least one way and shot such as 5w1s, got none")
        for setting in (*self.settings, self.selection_setting):
            Setting.of(setting)


@dataclass(frozen=True, kw_only=True)
class Recipe:
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
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=8))

    @classmethod
    def starter(cls) -> "Recipe":
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
        check_max(seeds.MOST, seed=self.seed)
        if not 0 <= self.auxiliary < float("inf"):
            raise SightlineError(f"auxiliary must be at least 0 and finite, got {self.auxiliary}")
        if self.augment.mixes:
            raise SightlineError(
                "augment.mixup and augment.cutmix must be 0, for an image of two classes belongs to no episode"
            )
        check_embedder(self)


class FewShotTask:
    """Classes to learn from, and the model that learns."""

    monitor, higher_is_better = "accuracy", True

    def __init__(self, recipe: Recipe, splits: ClassSplits | None = None, progress: Progress | None = None):
        divided = recipe.data.load(recipe.seed, progress) if splits is None else splits
        train, e = divided.train, recipe.episode
        self.train, self.validation, self.test = train, divided.validation, divided.test
        self.sources = _sources(divided)
        for one in self.sources:
            one.classes.check(e.way, e.shot + e.query)
        if self.validation is not None:
            self.judged_by = classes_of(self.validation)
            Setting.of(recipe.evaluation.selection_setting).check(self.judged_by, recipe.evaluation.query)
        count = len(train.classes) if recipe.auxiliary else 0
        config = replace(recipe.model, image_size=train.size, channels=train.channels, num_classes=count)
        self.recipe = replace(recipe, model=config)
        self.model = FewShot(config)
        chosen = np.sort(
            seeds.generator(recipe.seed, seeds.NORMALIZATION).permutation(len(train))[:SEEN_FOR_NORMALIZATION]
        )
        levels = histogram(train, chosen)
        if self.model.backbone is not None:
            self.model.set_normalization(*mean_and_spread(levels))
        self.embedded = Embedded.of(recipe, divided, progress)
        self.data_fingerprint = _held(divided, levels)
        """What the data hold, in few words: a run goes on with the same."""
        self.device = torch.device("cpu")

    def steps_per_epoch(self, batch_size: int) -> int:
        e = self.recipe.episode
        return max(1, len(self.train) // (batch_size * e.way * (e.shot + e.query)))

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        if self.recipe.training.fsdp:  # torch shares out only what lies in order
            self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.sources = [one._replace(classes=one.classes.to(device)) for one in self.sources]
        if self.embedded is not None:
            self.embedded = self.embedded.to(device)
            return
        self.train = ImageSet(self.train.pixels.to(device), self.train.labels.to(device), self.train.classes)
        if self.validation is not None:
            v = self.validation
            self.validation = ImageSet(v.pixels.to(device), v.labels.to(device), v.classes)

    def batches(self, first: int, batch_size: int, part: Part) -> Generator[list[Any], None, None]:
        e, rows = self.recipe.episode, part.rows(batch_size)
        for step in itertools.count(first):
            drawn = draw_from(
                self.sources,
                episodes=batch_size,
                way=e.way,
                shot=e.shot,
                query=e.query,
                seed=self.recipe.seed,
                step=step,
                within=e.within,
            )
            if step == first:
                drawn.check()  # later ones are drawn alike, and to look at them would make a GPU wait
            known = None
            if e.min_shot is not None:
                known = left_out(drawn.support_labels, way=e.way, least=e.min_shot, seed=self.recipe.seed, step=step)
            yield pieces(drawn, known, rows, self._shown(torch.cat((drawn.support, drawn.query), 1), rows, step))

    def _shown(self, chosen: Tensor, rows: list[slice], step: int) -> Shown:
        if self.embedded is not None:
            return self.embedded.shown(chosen, rows, seed=self.recipe.seed, step=step)
        return changed(self.train, self.recipe.augment, chosen, rows, seed=self.recipe.seed, step=step)

    def seen(self, model: FewShot) -> Tensor:
        """The images to choose by, embedded: (I, P, M)"""
        if self.embedded is not None:
            return self.embedded.validation
        assert self.validation is not None
        return embed_all(model, self.validation.pixels, self.device)

    def loss(self, model: nn.Module, piece: Piece) -> Tensor:
        images, labels, answers, known, total = piece
        e, smoothing = self.recipe.episode, self.recipe.training.label_smoothing
        logits, plain = model(images, way=e.way, shot=e.shot, labels=known)
        share = len(images) / total
        loss = share * F.cross_entropy(logits.flatten(0, 1).float(), answers.flatten(), label_smoothing=smoothing)
        if plain is not None:
            loss = loss + share * self.recipe.auxiliary * F.cross_entropy(plain.float(), labels, label_smoothing=0.1)
        return loss

    def evaluate(self, model: nn.Module, part: Part) -> dict[str, Tensor]:
        if self.validation is None:
            return {}
        assert isinstance(model, FewShot)
        embeddings = self.seen(model)
        setting = Setting.of(self.recipe.evaluation.selection_setting)
        sums = tally(
            model.head,
            embeddings,
            self.judged_by,
            **setting._asdict(),
            query=self.recipe.evaluation.query,
            episodes=self.recipe.evaluation.selection_episodes,
            part=part,
            unknown=False,
        )
        facts = attention_facts(model.head, embeddings, self.judged_by, setting.way, setting.shot)
        return {**sums.sums, **facts, "judges": torch.ones((), dtype=torch.float64, device=self.device)}

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return metrics(sums) if sums else {}


def classes_of(images: ImageSet) -> Classes:
    """Where its classes lie, and which of them go together."""
    return Classes.of(images.labels, images.classes, groups_of(images.classes))


def _sources(splits: ClassSplits) -> list[Source]:
    """What to draw training episodes from: the classes of the first data set, and of each beside it."""
    classes = classes_of(splits.train)
    first = len(classes.names) - sum(one.classes for one in splits.shares)
    sources = [Source(classes.part(0, first), 0, 1 - sum(one.episodes for one in splits.shares))]
    for count, share in splits.shares:
        sources.append(Source(classes.part(first, first + count), first, share))
        first += count
    return sources


def _held(splits: ClassSplits, levels: Tensor) -> dict[str, Any]:
    """Counts and digests of what a data set holds; `levels` are those of its training images."""
    facts: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        images: ImageSet | None = getattr(splits, name)
        facts[name] = {"images": 0 if images is None else len(images)}
        if images is not None:
            facts[name]["classes"] = digest("\0".join(images.classes).encode())
            facts[name]["labels"] = digest(images.labels.cpu().numpy().tobytes())
    facts["train"]["levels"] = digest(levels.numpy().tobytes())
    return facts
