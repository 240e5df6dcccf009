"""Why an answer is what it is: the examples it would not be the same without, and the parts that it goes by.

Nothing here is read off the weights. An example is left out, a part of an image is hidden, and the classifier is asked
again: what the winning logit loses is what that example or that part was worth.

Legend for all shapes: K support images, C channels, S side of an image, P tokens of an image, M model embed_dim, G parts of
an image.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check_int, check_max
from ..models.few_shot import FewShotHead
from ..view import explanations as reasons
from ..view import figures as pictures
from ..view import page
from ..view.explanations import Array, Reason, Sight
from .calibration import Confidence
from .embedding import Embeds
from .predictions import Answer
from .support import Support

if TYPE_CHECKING:
    from ..view.page import Page

MOST_SUPPORT, MOST_NUMBERS = 128, 1 << 16
"""Examples among which an answer is explained, and the numbers of their embeddings; beyond them, the nearest."""
LEAST_WORTH = 0.02
"""What an example must be worth to be named, as a share of the one that is worth most."""
NUMBERS_AT_ONCE = 1 << 22
"""Of the embeddings of the questions in work."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A question, and who answered it."""

    head: FewShotHead
    embeds: Embeds | None
    support: Support
    confidence: Confidence
    embedding: Tensor
    """(P, M)."""
    pixels: Tensor | None
    """uint8 (C, S, S)."""


@dataclass(frozen=True, eq=False)
class Example:
    """An example and what it was worth to an answer."""

    label: str
    name: str
    worth: float
    """What the winning logit loses without it; below 0 where it gains."""
    picture: Array | None
    """uint8 (H, W) or (H, W, 3)."""
    parts: Array | None
    """What it loses without each part of it: (rows, columns)."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """An answer and what it rests on."""

    answer: Answer
    logit: float
    """The winning one."""
    picture: Array | None
    """The image that was asked, as the model saw it: uint8 (H, W) or (H, W, 3)."""
    parts: Array | None
    """What the winning logit loses without each part of it: (rows, columns)."""
    examples: tuple[Example, ...]
    """Those that were worth most, the most first; at least one, and none that was worth next to nothing."""
    among: int
    """Examples that were there to be asked."""
    whole: bool
    """Whether those are all; else the nearest."""

    def save(self, path: str | Path) -> Path:
        """A picture (.png or .svg) or a page (.html)."""
        path = Path(path)
        if path.suffix in page.SUFFIXES:
            return self.page().save(path)
        if path.suffix not in pictures.SUFFIXES:
            raise SightlineError(f"path must end in .png, .svg or .html, got {path.name!r}")
        return pictures.save(reasons.picture(self.reason()), path)

    def page(self, *, name: str = "image") -> "Page":
        """One self-contained page."""
        return reasons.page([self.reason(name=name)], title=str(self.answer))

    def reason(self, *, name: str = "image") -> Reason:
        """As plain numbers and text, to be drawn."""
        name, notes = "embedding" if self.picture is None else name, []
        if not self.whole:
            notes.append(f"Explained among the {self.among} nearest examples.")
        if self.answer.transductive:
            notes.append("Transductive: the answer was given together with others and may depend on them.")
        return Reason(
            name=name,
            label=self.answer.label,
            known=self.answer.known,
            confidence=self.answer.confidence,
            scores=list(self.answer.scores.items()),
            image=Sight(name, self.picture, self.parts),
            examples=[Sight(e.name, e.picture, e.parts, e.label, e.worth) for e in self.examples],
            notes=notes,
        )


@torch.no_grad()
def explained(asked: Asked, answer: Answer, *, images: int = 3, parts: int = 6) -> Explanation:
    """Ask again and again, each time without something."""
    check_int(1, images=images, parts=parts)
    check_max(limits.MAX_EXPLANATION_IMAGES, images=images)
    check_max(limits.MAX_OCCLUSION_CELLS, parts=parts)
    again = _Again(asked, asked.support.take(_nearest(asked, answer.label)), answer.label)
    support, worths = again.support, again.worths()
    shown = []
    best = worths.argsort(descending=True, stable=True)[:images]
    best = best[(worths[best] > LEAST_WORTH * worths.max()) | (best == best[0])]
    for i in best.tolist():
        picture = None if support.pictures is None else support.pictures[i]
        label, heat = support.classes[int(support.labels[i])], again.parts(picture, parts, i)
        shown.append(Example(label, support.names[i], float(worths[i]), _plain(picture), heat))
    return Explanation(
        answer=answer,
        logit=again.top,
        picture=_plain(asked.pixels),
        parts=again.parts(asked.pixels, parts),
        examples=tuple(shown),
        among=len(support),
        whole=len(support) == len(asked.support),
    )


class _Again:
    """The same question, asked anew with something missing."""

    def __init__(self, asked: Asked, support: Support, label: str):
        self.asked, self.support, self.winner = asked, support, support.classes.index(label)
        self.query = asked.embedding[None, None]
        self.at_once = max(1, NUMBERS_AT_ONCE // support.embeddings.numel())
        self.top = float(self.logits(support.embeddings[None], support.labels[None], self.query)[0])

    def logits(self, examples: Tensor, labels: Tensor, query: Tensor) -> Tensor:
        """examples (B, K, P, M), labels (B, K), query (B, 1, P, M) -> the winning logit (B,)"""
        head = self.asked.head
        where = head.calibration_scale.device
        memory = head.remember(examples.to(where), labels.to(where), way=len(self.support.classes))
        return self.asked.confidence.calibration_scale * head.ask(memory, query.to(where))[:, 0, self.winner].cpu()

    def worths(self) -> Tensor:
        """What the winning logit loses without each example: (K,)"""
        count = len(self.support)
        others = torch.arange(count).expand(count, -1)[~torch.eye(count, dtype=torch.bool)].view(count, -1)
        lost = []
        for left in others.split(self.at_once):
            query = self.query.expand(len(left), -1, -1, -1)
            lost.append(self.top - self.logits(self.support.embeddings[left], self.support.labels[left], query))
        return torch.cat(lost)

    def parts(self, pixels: Tensor | None, parts: int, place: int | None = None) -> Array | None:
        """What it loses without each part of the image that was asked, or of the example at this place."""
        embeds = self.asked.embeds
        if pixels is None or embeds is None or pixels.shape[-1] != embeds.image_size:
            return None
        hidden, changed = hide_each(pixels, parts)
        worth = torch.zeros(len(hidden), dtype=torch.float64)
        for rows in changed.nonzero().flatten().split(self.at_once):
            new = embeds.embed(hidden[rows]).cpu()
            examples = self.support.embeddings.expand(len(rows), -1, -1, -1)
            query = self.query.expand(len(rows), -1, -1, -1)
            if place is None:
                query = new[:, None]
            else:
                examples = examples.clone()
                examples[:, place] = new
            worth[rows] = self.top - self.logits(examples, self.support.labels.expand(len(rows), -1), query)
        array: Array = worth.view(parts, parts).numpy()
        return array


def hide_each(pixels: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """The image with each part of a grid hidden in turn, and whether that changes a pixel.

    pixels uint8 (C, S, S) -> uint8 (G, C, S, S), bool (G,)
    """
    cells = cells_of(pixels.shape[-1], parts)
    hidden = torch.where(cells[:, None], paper(pixels), pixels)
    return hidden, (hidden != pixels).flatten(1).any(1)


def cells_of(side: int, parts: int) -> Tensor:
    """Which pixels each part of a grid covers: bool (G, side, side), in reading order"""
    line = torch.arange(side) * parts // side
    rows = line == torch.arange(parts)[:, None]
    return (rows[:, None, :, None] & rows[None, :, None, :]).flatten(0, 1)


def paper(pixels: Tensor) -> Tensor:
    """What to hide parts with: the middle of all levels of each channel, (C, 1, 1). It is the paper of a drawing."""
    return pixels.flatten(1).median(1).values[:, None, None]


def _nearest(asked: Asked, label: str) -> Tensor:
    """The examples among which to explain, in order: all, or those of the class and the nearest others."""
    count, (places, embed_dim) = len(asked.support), asked.support.embeddings.shape[1:]
    most = min(MOST_SUPPORT, max(4, MOST_NUMBERS // (places * embed_dim)))
    if count <= most:
        return torch.arange(count)
    alike = F.cosine_similarity(asked.support.embeddings.mean(1), asked.embedding.mean(0)[None])
    own = asked.support.labels == asked.support.classes.index(label)
    first = (alike + 4.0 * own).argsort(descending=True, stable=True)
    mine = first[: min(int(own.sum()), most // 2)]
    rest = first[int(own.sum()) :][: most - len(mine)]
    return torch.cat((mine, rest)).sort().values


def _plain(picture: Tensor | None) -> Array | None:
    """uint8 (C, H, W) -> (H, W) or (H, W, 3)"""
    if picture is None:
        return None
    array: Array = np.ascontiguousarray(picture.permute(1, 2, 0).squeeze(-1).cpu().numpy())
    return array
