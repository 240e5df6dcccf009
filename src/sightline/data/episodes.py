"""Episodes: small tasks drawn from many classes, a whole batch of them at once, where the labels are.

An episode has `way` classes, of each `shot` images to learn from and `query` images to be asked. No image is both.

Legend for all shapes: C classes, E episodes, N way, S shot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import seeds
from ..errors import SightlineError, check_fraction, check_int


@dataclass(frozen=True, eq=False)
class Classes:
    """Where in a set the images of each class lie."""

    places: Tensor
    """(C, most images of a class), what is beyond a class's own count is -1."""
    counts: Tensor
    """(C,)"""
    names: tuple[str, ...]
    groups: Tensor | None = None
    """(C,), such as the alphabet of each character."""

    @classmethod
    def of(cls, labels: Tensor, names: tuple[str, ...], groups: Tensor | None = None) -> "Classes":
        """From the label of each image."""
        counts = torch.bincount(labels.cpu(), minlength=len(names))
        order = labels.cpu().argsort(stable=True)
        column = torch.arange(int(counts.max()))
        starts = counts.cumsum(0) - counts
        places = torch.where(column < counts[:, None], order[(starts[:, None] + column).clamp_max(len(order) - 1)], -1)
        return cls(places, counts, names, groups)

    def to(self, device: torch.device) -> "Classes":
        """Where episodes are to be drawn."""
        groups = None if self.groups is None else self.groups.to(device)
        return Classes(self.places.to(device), self.counts.to(device), self.names, groups)

    def part(self, start: int, stop: int) -> "Classes":
        """Some of the classes; their images lie where they lay."""
        some = slice(start, stop)
        groups = None if self.groups is None else self.groups[some]
        return Classes(self.places[some], self.counts[some], self.names[some], groups)

    def check(self, way: int, images: int) -> None:
        """Whether episodes of this way with so many images of each class can be drawn."""
        check_int(2, way=way)
        check_int(2, images=images)
        if way > len(self.names):
            raise SightlineError(
                f"way must be at most the number of classes, {len(self.names)}, got {way}; "
                f"lower way or bring more classes"
            )
        few = (self.counts < images).nonzero().flatten().tolist()
        if few:
            more = f" and {len(few) - 1} more such classes" if len(few) > 1 else ""
            raise SightlineError(
                f"each class must have at least {images} images, shot and query together, got "
                f"{int(self.counts[few[0]])} of {self.names[few[0]]!r}{more}; lower shot or query, or leave these "
                f"classes out"
            )


@dataclass(frozen=True, eq=False)
class Episodes:
    """A batch of episodes: which images, and of which class they are among those of their episode."""

    classes: Tensor
    """(E, N), the classes of each episode."""
    support: Tensor
    """(E, N * S), class by class."""
    query: Tensor
    """(E, N * query), class by class."""

    @property
    def support_labels(self) -> Tensor:
        """(E, N * S), 0 to N - 1."""
        return self._labels(self.support)

    @property
    def query_labels(self) -> Tensor:
        """(E, N * query), 0 to N - 1."""
        return self._labels(self.query)

    def _labels(self, images: Tensor) -> Tensor:
        episodes, way = self.classes.shape
        labels = torch.arange(way, device=images.device).repeat_interleave(images.shape[1] // way)
        return labels.expand(episodes, -1)

    def check(self) -> None:
        """Whether no image is asked that was shown, and none comes twice."""
        both = torch.cat((self.support, self.query), 1).sort(1).values
        twice = (both[:, 1:] == both[:, :-1]).any(1).nonzero().flatten().tolist()
        if twice:
            raise SightlineError(
                f"support and query must not share an image, got {len(twice)} of {len(both)} episodes that do, "
                f"the first is episode {twice[0]}"
            )


def draw(
    classes: Classes,
    *,
    episodes: int,
    way: int,
    shot: int,
    query: int,
    seed: int,
    step: int,
    within: float = 0.0,
    inside: int | None = None,
) -> Episodes:
    """The episodes of one step: the same for the same arguments, on the same kind of device.

    Over the steps, of `within` of them all classes come from one group, as far as it has enough. `inside` says of how
    many now, for steps that have not all as many episodes.
    """
    check_int(1, episodes=episodes, shot=shot, query=query)
    check_int(0, seed=seed, step=step)
    if within != 1:
        check_fraction(within=within)
    device = classes.places.device
    random = torch.Generator(device).manual_seed(seeds.derive_seed(seed, seeds.EPISODES, step))
    likes = torch.rand(episodes, len(classes.names), generator=random, device=device)
    if inside is None:
        inside = round(within * episodes * (step + 1)) - round(within * episodes * step)  # right on the whole
    if inside and classes.groups is not None:
        middle = torch.randint(len(classes.names), (inside, 1), generator=random, device=device)
        likes[:inside] += classes.groups == classes.groups[middle]
    chosen = likes.topk(way, 1).indices
    places = classes.places[chosen]
    likes = torch.rand(places.shape, generator=random, device=device).masked_fill(places < 0, -1.0)
    images = places.gather(2, likes.topk(shot + query, 2).indices)
    return Episodes(chosen, images[..., :shot].flatten(1), images[..., shot:].flatten(1))


class Source(NamedTuple):
    """One of several sets of classes that episodes are drawn from."""

    classes: Classes
    first: int
    """Where its classes begin among all."""
    share: float
    """Of all episodes."""


def draw_from(
    sources: Sequence[Source], *, episodes: int, seed: int, step: int, within: float = 0.0, **how: Any
) -> Episodes:
    """Those of one step, each of one source alone: over the steps, of every source its share. `how` is as for `draw`.

    They come in any order, so that processes and pieces, which have some of them each, see all sources.
    """
    lots = seeds.make_generator(seed, seeds.SOURCES, step, 1)
    if len(sources) == 1:
        drawn = draw(sources[0].classes, episodes=episodes, seed=seed, step=step, within=within, **how)
        if not 0 < within < 1:
            return drawn
        # `draw` puts episodes of one group first; every process must get both kinds
        order = torch.from_numpy(lots.permutation(episodes)).to(drawn.classes.device)
        return Episodes(drawn.classes[order], drawn.support[order], drawn.query[order])
    # evenly spaced, so that a step is as near to the shares as it can be; begun by lot, so that all steps together are
    marks = (np.arange(episodes) + lots.random()) / episodes
    counts = np.bincount(np.searchsorted([*accumulate(one.share for one in sources)][:-1], marks, side="right"))
    found = []
    for number, (count, (classes, first, _)) in enumerate(zip(counts.tolist(), sources, strict=False)):
        if count:
            own = seeds.derive_seed(seed, seeds.SOURCES, number) if number else seed
            inside = int(within * count + lots.random())
            drawn = draw(classes, episodes=count, seed=own, step=step, inside=inside, **how)
            found.append((drawn.classes + first, drawn.support, drawn.query))
    order = torch.from_numpy(lots.permutation(episodes)).to(found[0][0].device)
    return Episodes(*(torch.cat(parts)[order] for parts in zip(*found, strict=True)))


def left_out(labels: Tensor, *, way: int, least: int, seed: int, step: int) -> Tensor:
    """Support labels (E, N * S) with -1 in the place of some, so that a class keeps `least` to S images, by lot."""
    shot = labels.shape[1] // way
    random = torch.Generator(labels.device).manual_seed(seeds.derive_seed(seed, seeds.SHOTS, step))
    kept = torch.randint(least, shot + 1, (len(labels), way, 1), generator=random, device=labels.device)
    gone = torch.arange(shot, device=labels.device) >= kept
    return labels.masked_fill(gone.flatten(1), -1)


def check_apart(**splits: tuple[str, ...]) -> None:
    """No class may be in two splits: what is judged must be new."""
    seen: dict[str, str] = {}
    for split, names in splits.items():
        for name in names:
            if name in seen:
                raise SightlineError(
                    f"a class must be in one split alone, got {name!r} in {seen[name]} and in {split}; "
                    f"take it out of one"
                )
        seen |= dict.fromkeys(names, split)
