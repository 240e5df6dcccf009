"""How sure to be, and what to call unknown: both from the examples alone.

Each example is asked while it is left out (a moved copy of it, where it is the only one of its class), which shows what
known images look like to the classifier; and each is asked while its whole class is left out, which shows what
strangers look like.

Legend for all shapes: K support images, N way, Q queries, P tokens of an image, M model embed_dim.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import SightlineError
from ..metrics import auroc, fit_calibration_scale
from ..models.few_shot import FewShotHead, Memory
from .support import Support

MANY = 1000
"""Tokens of examples from which on fewer rounds are held."""
MOST = 10_000
"""And from which on none is looked at anew in a round: what is left out has been seen by the rest, and counts
for next to nothing among so many."""
ROUNDS, ROUNDS_OF_MANY = 10, 5
"""In so many rounds, at most, all examples are left out once."""
STRANGERS, STRANGERS_OF_MANY = 10, 3
"""In so many rounds, at most, all classes are left out once."""
ASKED = 1000
"""Examples asked in all, at most."""
COPIED = 50
"""Examples that are alone in their class and are copied, at most."""
AT_ONCE, TOKENS_AT_ONCE = 256, 512
"""Images asked in one go, and their tokens, so that a table of who looks at whom stays small beside 1,000 classes."""
TRUST = {True: 0.5, False: 1.5}
"""By how much, in powers of e, the calibration_scale of a trained head and of an untrained one is expected to be off.

Chosen on held-out alphabets of Omniglot's background set: an untrained head is far off there, a trained one hardly.
"""
FALL = 0.36
"""How far below known images the threshold lies, as a share of the way down to strangers.

Chosen on held-out alphabets of Omniglot's background set, for 2 to 20 classes of 1 to 10 images: known images vary less
than strangers do, so it is above the middle. Both spreads of so few examples are too unsure to go by.
"""
LEAST_FALL = 1e-3
"""In logits, where all examples are the same."""
MIXED = 0.47
"""How far a copy of an embedding is moved towards the nearest one of another class. Chosen as `FALL` was: with less, a
trained head is too sure of 20 classes of one image each."""

Copies = Callable[[Tensor], Tensor | None]
"""Indices of examples (n,) -> moved copies, embedded (n, copies, P, M), where there are pictures to move."""


@dataclass(frozen=True)
class Confidence:
    """How to read logits."""

    calibration_scale: float
    """What logits are multiplied by before they become shares."""
    threshold: float
    """Largest logits from this on are those of known images."""
    scale: float
    """How far above it known_score is sure."""
    separation: float
    """How often an example looks more familiar than a stranger, over all pairs (AUROC)."""

    @property
    def change(self) -> str:
        """What was done to the model's own confidence, in words."""
        if f"{self.calibration_scale:.2f}" == "1.00":
            return "left as it is, which fits"
        how = "sharpened" if self.calibration_scale >= 1 else "softened"
        little = " a little" if 0.8 < self.calibration_scale < 1.25 else ""
        return f"{how}{little} (x {self.calibration_scale:.2f}) to fit"

    def known_score(self, logits: Tensor) -> Tensor:
        """logits (Q, N) -> (Q,), from 0 to 1, 0.5 at the threshold"""
        return torch.sigmoid((logits.double().amax(-1) - self.threshold) / self.scale)


@torch.no_grad()
def set_by(head: FewShotHead, support: Support, memory: Memory, copies: Copies) -> Confidence:
    """The confidence of a classifier, from its examples alone."""
    held = list(held_out(head, support, memory))
    asked = [(logits, labels) for logits, labels, _ in held]
    asked += _copied(head, support, memory, copies)
    known = torch.cat([logits.amax(-1) for logits, _ in asked]).double()
    unknown = torch.cat(list(strangers(head, support, memory))).double()
    calibration_scale = fit_calibration_scale(asked, prior_std=TRUST[head.config.depth > 0])
    high, low, spread = float(known.mean()), float(unknown.mean()), float(known.std(correction=0))
    fall = max(FALL * (high - low), spread / 2, LEAST_FALL)  # most known images stay, even if strangers look like them
    return Confidence(calibration_scale, high - fall, fall / 2, auroc(known, unknown))


def held_out(head: FewShotHead, support: Support, memory: Memory) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Every example of a class with others, asked while it is left out: logits (Q, N), labels (Q,), indices (Q,)."""
    counts, places = support.counts, support.places()
    rounds = min(int(counts.max()), ROUNDS_OF_MANY if _many(support) else ROUNDS)
    chosen = _some(counts[support.labels] > 1, ASKED)
    for number in range(rounds if rounds > 1 else 0):
        out = (places % rounds == number) & (counts[support.labels] > 1)
        asked = (out & chosen).nonzero().flatten()
        if len(asked):
            left = _left(head, support, memory, ~out)
            yield ask(head, left, support.embeddings[asked]), support.labels[asked], asked


def strangers(head: FewShotHead, support: Support, memory: Memory) -> Iterator[Tensor]:
    """The largest logits (Q,) of examples whose class is left out."""
    way = len(support.classes)
    rounds = min(way, STRANGERS_OF_MANY if _many(support) else STRANGERS)
    chosen = _some(torch.ones(len(support), dtype=torch.bool), ASKED)
    for number in range(rounds):
        out = support.labels % rounds == number
        left = _left(head, support, memory, ~out)
        there = torch.arange(way) % rounds != number
        yield ask(head, left, support.embeddings[out & chosen])[:, there].amax(-1)


def remembered(head: FewShotHead, support: Support, rows: Tensor) -> Memory:
    """What a head keeps of these examples; the classes stay as many."""
    where = head.calibration_scale.device
    embeddings, labels = support.embeddings[rows].to(where), support.labels[rows].to(where)
    return head.remember(embeddings[None], labels[None], way=len(support.classes))


@torch.no_grad()
def ask(head: FewShotHead, memory: Memory, query: Tensor) -> Tensor:
    """query (Q, P, M) -> logits (Q, N), on the CPU; how many are asked in one go changes no answer"""
    some, where = max(1, min(AT_ONCE, TOKENS_AT_ONCE // query.shape[1])), memory.known.classes.device
    parts = [head.ask(memory, part[None].to(where))[0].cpu() for part in query.split(some)]
    logits = torch.cat(parts)
    if not logits.isfinite().all():
        raise SightlineError("answers must be finite, got NaN or infinity; are the weights of the model whole?")
    return logits


def _copied(head: FewShotHead, support: Support, memory: Memory, copies: Copies) -> list[tuple[Tensor, Tensor]]:
    """Moved copies of those that are alone in their class, with all there to see."""
    alone = _some(support.counts[support.labels] == 1, COPIED).nonzero().flatten()
    if not len(alone):
        return []
    made = copies(alone)
    if made is None:
        made = _mixed(support, alone)[:, None]
    labels = support.labels[alone].repeat_interleave(made.shape[1])
    return [(ask(head, memory, made.flatten(0, 1)), labels)]


def _mixed(support: Support, rows: Tensor) -> Tensor:
    """Embeddings nearly half way to the nearest of another class: (n, P, M)"""
    vectors = F.normalize(support.embeddings.mean(1), dim=-1)
    alike = vectors[rows] @ vectors.mT
    alike[support.labels[rows][:, None] == support.labels] = -2
    return support.embeddings[rows].lerp(support.embeddings[alike.argmax(1)], MIXED)


def _left(head: FewShotHead, support: Support, memory: Memory, rows: Tensor) -> Memory:
    """What a head keeps of these examples, where `memory` is what it keeps of all."""
    if memory.tokens <= MOST:
        return remembered(head, support, rows)
    where = memory.known.classes.device
    return memory.only(rows.to(where), support.labels.to(where))


def _many(support: Support) -> bool:
    return len(support) * support.embeddings.shape[1] > MANY


def _some(rows: Tensor, most: int) -> Tensor:
    """At most so many of these rows (K,), evenly spread."""
    there = rows.nonzero().flatten()
    if len(there) <= most:
        return rows
    chosen = torch.zeros_like(rows)
    chosen[there[torch.linspace(0, len(there) - 1, most).round().long()]] = True
    return chosen
