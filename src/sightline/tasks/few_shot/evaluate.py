"""How good a few-shot classifier is: thousands of episodes, each image embedded once.

Legend for all shapes: I images, E episodes, N way, K support images, Q queries, P tokens of an image, M model width.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention import record_attention
from ...attention.scores import CosineScore
from ...data.episodes import Classes, Episodes, draw
from ...errors import SightlineError
from ...models.few_shot import FewShot, FewShotHead
from ...training.task import BatchSlice

BINS = 15
"""Of confidence, for the calibration error."""
EMBEDDED_AT_ONCE = {"cpu": 64, "cuda": 1024}
"""Images; on a CPU so few that what is between two layers stays in its cache."""
CHUNK = 250
"""Episodes drawn together: the same ones, however many are worked on at once."""
FLOATS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}
"""How many numbers the embeddings of the episodes in work may be."""
MOST_UNKNOWN = 5
"""Classes beside those of an episode whose images belong to none of it."""
SEED = 0
"""All models are evaluate_on on the same episodes."""
ALL = BatchSlice()
RECORDED = 8
"""Episodes whose attention is looked at."""


class Setting(NamedTuple):
    """What an episode of judging is: `5w1s` is five classes with one image of each, `5w1s within` of one group."""

    way: int
    shot: int
    within: bool = False

    @classmethod
    def of(cls, text: str) -> "Setting":
        """From its name."""
        found = re.fullmatch(r"(\d{1,4})w(\d{1,4})s( within)?", text)
        if not found or int(found[1]) < 2 or int(found[2]) < 1:
            raise SightlineError(
                f"a setting must read like 5w1s, two classes or more with an image or more, or like 5w1s within for "
                f"classes of one group, got {text!r}"
            )
        return cls(int(found[1]), int(found[2]), found[3] is not None)

    def check(self, classes: Classes, query: int) -> None:
        """Whether such episodes can be drawn."""
        classes.check(self.way, self.shot + query)
        if self.within and classes.groups is None:
            raise SightlineError(
                "a setting within groups must have classes in groups, named like Alphabet/character, got none; "
                "leave `within` out"
            )


def drawable(names: Iterable[str], classes: Classes, most: int) -> tuple[list[str], int]:
    """Of these settings those that can be drawn, and how many images of each class can be asked in all of them, at most
    so many. Refused where there is none."""
    possible, refusals = [], []
    for name in names:
        try:
            Setting.of(name).check(classes, 1)
            possible.append(name)
        except ValueError as error:
            refusals.append(f"{name}: {error}; other settings go by --settings")
    if not possible:
        raise SightlineError(refusals[0])
    shot = max(Setting.of(name).shot for name in possible)
    return possible, min(most, int(classes.counts.min()) - shot)


class Answers(Protocol):
    """What is evaluate_on: a head, or one of the baselines."""

    def __call__(self, support: Tensor, labels: Tensor, query: Tensor, *, way: int) -> Tensor:
        """support (E, K, P, M), labels (E, K), query (E, Q, P, M) -> logits (E, Q, N)"""
        ...


@dataclass
class Tally:
    """What was seen over some episodes."""

    accuracies: list[Tensor] = field(default_factory=list)
    """The share that was right, of each episode."""
    known: list[Tensor] = field(default_factory=list)
    """The largest logit of each query that belongs to a class of its episode."""
    unknown: list[Tensor] = field(default_factory=list)
    """And of those that belong to none."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """loss; right and seen by class; sure and sure_right by confidence."""

    @property
    def episodes(self) -> int:
        return sum(len(part) for part in self.accuracies)

    def add(self, drawn: Episodes, logits: Tensor, classes: int) -> None:
        """Take in the answers to the queries of some episodes, those of unknown classes last."""
        asked = drawn.query_labels
        known, unknown = logits[:, : asked.shape[1]], logits[:, asked.shape[1] :]
        shares, answers = known.softmax(-1).double().max(-1)
        right = (answers == asked).double()
        bins = (shares * BINS).long().clamp_max(BINS - 1).flatten()
        owners = drawn.classes.gather(1, asked).flatten()

        def spread(size: int, where: Tensor, values: Tensor) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=logits.device).index_add_(0, where, values.flatten())

        found = {
            "loss": F.cross_entropy(known.flatten(0, 1), asked.flatten(), reduction="sum").double(),
            "right": spread(classes, owners, right),
            "seen": spread(classes, owners, torch.ones_like(right)),
            "sure": spread(BINS, bins, shares),
            "sure_right": spread(BINS, bins, right),
        }
        self.sums = {name: self.sums[name] + value for name, value in found.items()}
        self.accuracies.append(right.mean(1).cpu())
        self.known.append(known.amax(-1).flatten().cpu())
        self.unknown.append(unknown.amax(-1).flatten().cpu())

    def interval(self) -> tuple[float, float]:
        """The mean accuracy over episodes and half of its 95% interval."""
        return mean_and_half(torch.cat(self.accuracies))

    def auroc(self) -> float | None:
        """How often a query of a known class looks more at home than one of an unknown class, over all pairs."""
        known, unknown = torch.cat(self.known).double(), torch.cat(self.unknown).double()
        if not len(unknown):
            return None
        return auroc(known, unknown)


def auroc(known: Tensor, unknown: Tensor) -> float:
    """How often one of the known is above one of the unknown, over all pairs; a tie is half: (n,), (m,)"""
    below = unknown.sort().values
    less = torch.searchsorted(below, known, right=False).double()
    equal = torch.searchsorted(below, known, right=True).double() - less
    return float(((less + equal / 2) / len(unknown)).mean())


def mean_and_half(values: Tensor) -> tuple[float, float]:
    """The mean and half of its 95% interval."""
    spread = float(values.double().std()) if len(values) > 1 else math.nan
    return float(values.double().mean()), 1.96 * spread / math.sqrt(len(values))


@torch.no_grad()
def embed_all(model: FewShot, pixels: Tensor, device: torch.device) -> Tensor:
    """All images once: uint8 (I, C, size, size) -> (I, P, M)"""
    parts = [model.embed(some.to(device).float() / 255).float() for some in pixels.split(EMBEDDED_AT_ONCE[device.type])]
    return torch.cat(parts)


@torch.no_grad()
def tally(
    answer: Answers,
    embeddings: Tensor,
    classes: Classes,
    *,
    way: int,
    shot: int,
    query: int,
    episodes: int,
    within: bool = False,
    part: BatchSlice = ALL,
    unknown: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Judge answers over seeded episodes, the same for all that are evaluate_on on these classes.

    Without `unknown` no image of other classes is asked; the episodes stay the same. `progress` is told of each few
    episodes how many they are.
    """
    device = embeddings.device
    result = Tally(sums=_nothing(len(classes.names), device))
    strangers = min(MOST_UNKNOWN, way, len(classes.names) - way)
    each = (way * (shot + query) + strangers * query) * embeddings.shape[1] * embeddings.shape[2]
    together = max(1, FLOATS_AT_ONCE[device.type] // each)
    for drawn, extra in _drawn(classes, Setting(way, shot, within), strangers, query, episodes, part):
        for start in range(0, len(drawn.classes), together):
            some = slice(start, start + together)
            few = Episodes(drawn.classes[some].to(device), drawn.support[some].to(device), drawn.query[some].to(device))
            asked = torch.cat((few.query, extra[some].to(device)), 1) if unknown else few.query
            logits = answer(embeddings[few.support], few.support_labels, embeddings[asked], way=way)
            result.add(few, logits.float(), len(classes.names))
            if progress is not None:
                progress(len(few.classes))
    return result


def _nothing(classes: int, device: torch.device) -> dict[str, Tensor]:
    """What is counted before anything is seen: a process without episodes has it too, to be summed with the others."""
    sizes: dict[str, tuple[int, ...]] = {
        "loss": (),
        "right": (classes,),
        "seen": (classes,),
        "sure": (BINS,),
        "sure_right": (BINS,),
    }
    return {name: torch.zeros(size, dtype=torch.float64, device=device) for name, size in sizes.items()}


def _drawn(
    classes: Classes, setting: Setting, strangers: int, query: int, episodes: int, part: BatchSlice
) -> Iterator[tuple[Episodes, Tensor]]:
    """Episodes, and for each some images of classes that it does not have; drawn on the CPU, so the same everywhere."""
    way, shot, within = setting
    for number, start in enumerate(range(0, episodes, CHUNK)):
        if number % part.world_size != part.rank:
            continue
        wide = draw(
            classes,
            episodes=min(CHUNK, episodes - start),
            way=way + strangers,
            shot=shot,
            query=query,
            seed=SEED,
            step=number,
            within=float(within),
        )
        wide.check()
        own, asked = way * shot, way * query
        yield Episodes(wide.classes[:, :way], wide.support[:, :own], wide.query[:, :asked]), wide.query[:, asked:]


def metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """Accuracy, loss, how far confidence is from the truth, and what attention is like, from what was counted."""
    seen = float(sums["seen"].sum())
    result = {
        "accuracy": float(sums["right"].sum()) / seen,
        "loss": float(sums["loss"]) / seen,
        "calibration_error": float((sums["sure"] - sums["sure_right"]).abs().sum()) / seen,
    }
    return result | {name: float(value / sums["judges"]) for name, value in sums.items() if "/" in name}


@torch.no_grad()
def attention_facts(head: FewShotHead, embeddings: Tensor, classes: Classes, way: int, shot: int) -> dict[str, Tensor]:
    """The temperature of every head and the entropy of its attention in bits, over a few episodes."""
    if not head.blocks:
        return {}
    few = draw(classes, episodes=RECORDED, way=way, shot=shot, query=1, seed=SEED, step=0)
    support, asked = few.support.to(embeddings.device), few.query.to(embeddings.device)
    with record_attention(head) as record:
        head(embeddings[support], few.support_labels.to(embeddings.device), embeddings[asked], way=way)
    facts = {}
    for number, (block, seen) in enumerate(zip(head.blocks, record, strict=True)):
        score = block.attention.score  # type: ignore[union-attr]
        weights = seen.weights.double()
        bits = -(weights * weights.clamp_min(1e-12).log2()).sum(-1).mean((0, 2))
        for i in range(weights.shape[1]):
            facts[f"entropy/block {number + 1} head {i + 1}"] = bits[i]
            if isinstance(score, CosineScore):
                facts[f"temperature/block {number + 1} head {i + 1}"] = score.temperature().flatten()[i]
    facts["temperature/answer"] = head.similarity.temperature().flatten()[0].to(embeddings.device)
    return facts
