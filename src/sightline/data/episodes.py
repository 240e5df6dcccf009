"""Few-shot episodes, sampled as a batch on the device of the labels.

An episode has `way` classes with `shot` support images and `query` query images each. No image is in both.

Legend for all shapes: C classes, E episodes; `way`, `shot` and `query` as above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import seeds
from ..errors import SightlineError, check, check_int


@dataclass(frozen=True, eq=False)
class ClassIndex:
    """Indices of the images of each class in a data set."""

    indices: Tensor
    """int64 (C, maximum images of a class), padded with -1."""
    counts: Tensor
    """int64 (C,), number of images of each class."""
    names: tuple[str, ...]
    """Class names."""
    groups: Tensor | None = None
    """int64 (C,), group of each class, such as the alphabet of a character."""

    @classmethod
    def from_labels(cls, labels: Tensor, names: tuple[str, ...], groups: Tensor | None = None) -> "ClassIndex":
        """Index images by their labels (N,)."""
        counts = torch.bincount(labels.cpu(), minlength=len(names))
        order = labels.cpu().argsort(stable=True)
        column = torch.arange(int(counts.max()))
        starts = counts.cumsum(0) - counts
        positions = (starts[:, None] + column).clamp_max(len(order) - 1)
        return cls(torch.where(column < counts[:, None], order[positions], -1), counts, names, groups)

    def to(self, device: torch.device) -> "ClassIndex":
        """Move to the device on which episodes are sampled."""
        groups = None if self.groups is None else self.groups.to(device)
        return ClassIndex(self.indices.to(device), self.counts.to(device), self.names, groups)

    def slice(self, start: int, stop: int) -> "ClassIndex":
        """A contiguous range of the classes."""
        classes = slice(start, stop)
        groups = None if self.groups is None else self.groups[classes]
        return ClassIndex(self.indices[classes], self.counts[classes], self.names[classes], groups)

    def check(self, way: int, images_per_class: int) -> None:
        """Check that episodes with `way` classes and `images_per_class` images of each can be sampled."""
        check_int(2, way=way)
        check_int(2, images_per_class=images_per_class)
        count = len(self.names)
        check(way <= count, f"way must be at most the number of classes, {count}, got {way}; lower way or add classes")
        too_small = (self.counts < images_per_class).nonzero().flatten().tolist()
        if too_small:
            more = f" and {len(too_small) - 1} more such classes" if len(too_small) > 1 else ""
            got = f"{int(self.counts[too_small[0]])} of {self.names[too_small[0]]!r}{more}"
            rule = f"each class must have at least {images_per_class} images for shot and query, got {got}"
            raise SightlineError(f"{rule}; lower shot or query, or remove these classes")


class Episodes(NamedTuple):
    """A batch of episodes as indices of classes and images."""

    classes: Tensor
    """int64 (E, way), classes of each episode."""
    support: Tensor
    """int64 (E, way * shot), support images, sorted by class."""
    query: Tensor
    """int64 (E, way * query), query images, sorted by class."""

    @property
    def support_labels(self) -> Tensor:
        """(E, way * shot), from 0 to way - 1."""
        return self._labels(self.support)

    @property
    def query_labels(self) -> Tensor:
        """(E, way * query), from 0 to way - 1."""
        return self._labels(self.query)

    def _labels(self, images: Tensor) -> Tensor:
        episodes, way = self.classes.shape
        labels = torch.arange(way, device=images.device).repeat_interleave(images.shape[1] // way)
        return labels.expand(episodes, -1)

    def check(self) -> None:
        """Check that no image is twice in an episode."""
        images = torch.cat((self.support, self.query), 1).sort(1).values
        duplicates = (images[:, 1:] == images[:, :-1]).any(1).nonzero().flatten().tolist()
        if duplicates:
            got = f"{len(duplicates)} of {len(images)} episodes that do; the first is episode {duplicates[0]}"
            raise SightlineError(f"support and query must not share an image, got {got}")


def sample_episodes(
    classes: ClassIndex,
    *,
    episodes: int,
    way: int,
    shot: int,
    query: int,
    seed: int,
    step: int,
    within_group: float = 0.0,
    num_within_group: int | None = None,
) -> Episodes:
    """Sample the episodes of one step. The result depends only on the arguments and the device type.

    Args:
        within_group: Fraction of episodes, over all steps, whose classes are from one group, as far as it has enough.
            They are the first episodes of a step.
        num_within_group: Number of such episodes in this step, instead of the fraction.
    """
    check_int(1, episodes=episodes, shot=shot, query=query)
    check_int(0, seed=seed, step=step)
    check(0 <= within_group <= 1, f"within_group must be 0 to 1, got {within_group}")
    device = classes.indices.device
    generator = torch.Generator(device).manual_seed(seeds.derive_seed(seed, seeds.EPISODES, step))
    class_scores = torch.rand(episodes, len(classes.names), generator=generator, device=device)
    if num_within_group is None:  # the sum over steps is the rounded fraction of all episodes
        num_within_group = round(within_group * episodes * (step + 1)) - round(within_group * episodes * step)
    if num_within_group and classes.groups is not None:
        anchor = torch.randint(len(classes.names), (num_within_group, 1), generator=generator, device=device)
        class_scores[:num_within_group] += classes.groups == classes.groups[anchor]
    chosen = class_scores.topk(way, 1).indices
    indices = classes.indices[chosen]
    image_scores = torch.rand(indices.shape, generator=generator, device=device).masked_fill(indices < 0, -1.0)
    images = indices.gather(2, image_scores.topk(shot + query, 2).indices)
    return Episodes(chosen, images[..., :shot].flatten(1), images[..., shot:].flatten(1))


class EpisodeSource(NamedTuple):
    """One of several data sets that episodes are sampled from."""

    classes: ClassIndex
    first_class: int
    """Index of its first class among the classes of all sources."""
    fraction: float
    """Fraction of all episodes."""


def sample_from_sources(
    sources: Sequence[EpisodeSource],
    *,
    episodes: int,
    seed: int,
    step: int,
    within_group: float = 0.0,
    **options: Any,
) -> Episodes:
    """Sample the episodes of one step, each from one source; `options` are those of `sample_episodes`.

    Episodes are shuffled, so that every slice of the batch has episodes of all sources.
    """
    generator = seeds.make_generator(seed, seeds.SOURCES, step, 1)
    batches: list[Episodes] = []
    if len(sources) == 1:
        options |= {"episodes": episodes, "seed": seed, "within_group": within_group}
        batches.append(sample_episodes(sources[0].classes, step=step, **options))
        if not 0 < within_group < 1:
            return batches[0]
    else:
        # systematic sampling: counts of a step are as close to the fractions as possible, and exact on average
        points = (np.arange(episodes) + generator.random()) / episodes
        thresholds = [*accumulate(source.fraction for source in sources)][:-1]
        counts = np.bincount(np.searchsorted(thresholds, points, side="right"), minlength=len(sources))
        for number, (count, (classes, first_class, _)) in enumerate(zip(counts.tolist(), sources, strict=True)):
            if count:
                source_seed = seeds.derive_seed(seed, seeds.SOURCES, number) if number else seed
                options |= {"seed": source_seed, "num_within_group": int(within_group * count + generator.random())}
                sampled = sample_episodes(classes, episodes=count, step=step, **options)
                batches.append(sampled._replace(classes=sampled.classes + first_class))
    order = torch.from_numpy(generator.permutation(episodes)).to(batches[0].classes.device)
    return Episodes(*(torch.cat(tensors)[order] for tensors in zip(*batches, strict=True)))


def drop_support_labels(labels: Tensor, *, way: int, min_shot: int, seed: int, step: int) -> Tensor:
    """Replace support labels (E, way * shot) by -1 at random, so that each class keeps `min_shot` to shot images."""
    shot = labels.shape[1] // way
    generator = torch.Generator(labels.device).manual_seed(seeds.derive_seed(seed, seeds.SHOTS, step))
    kept = torch.randint(min_shot, shot + 1, (len(labels), way, 1), generator=generator, device=labels.device)
    is_dropped = torch.arange(shot, device=labels.device) >= kept
    return labels.masked_fill(is_dropped.flatten(1), -1)


def sample_way(
    sources: Sequence[EpisodeSource], *, min_way: int, way: int, seed: int, step: int
) -> tuple[int, list[EpisodeSource]]:
    """The number of classes of a step, log-uniform from `min_way` to `way`, and the sources that have that many.

    It is at most the number of classes of the largest source. The fractions of the sources sum to 1 again.
    """
    random = seeds.make_generator(seed, seeds.SOURCES, step, 2)
    drawn = round(float(np.exp(random.uniform(np.log(min_way - 0.5), np.log(way + 0.5)))))
    drawn = min(max(drawn, min_way), way, max(len(source.classes.names) for source in sources))
    chosen = [source for source in sources if len(source.classes.names) >= drawn]
    total = sum(source.fraction for source in chosen)
    return drawn, [source._replace(fraction=source.fraction / total) for source in chosen]


def change_labels(labels: Tensor, *, way: int, fraction: float, seed: int, step: int) -> Tensor:
    """Replace this fraction of the support labels (E, way * shot) by random ones; the first image of a class keeps its.

    So no class is without an image that shows it.
    """
    generator = torch.Generator(labels.device).manual_seed(seeds.derive_seed(seed, seeds.SHOTS, step, 1))
    shape, device = labels.shape, labels.device
    is_changed = torch.rand(shape, generator=generator, device=device) < fraction
    is_changed &= torch.arange(shape[1], device=device) % (shape[1] // way) > 0
    return torch.where(is_changed, torch.randint(way, shape, generator=generator, device=device), labels)
