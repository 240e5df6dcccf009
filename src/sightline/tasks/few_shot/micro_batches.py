"""What a batch of few-shot episodes is cut into, and the images of each piece, changed on their way.

Legend for all shapes: E episodes, K support images, Q queries, C channels.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ...data.episodes import Episodes
from ...data.images import augmentation as augment
from ...data.images.augmentation import Augment
from ...data.images.loading import ImageSet

Shown = list[tuple[Tensor, Tensor]]
"""Of each piece the images, (E, K + Q, …), support first, class by class; and their labels, (E * (K + Q))."""


class Piece(NamedTuple):
    """Some episodes of a batch."""

    images: Tensor
    """(E, K + Q, C, size, size), support first, class by class; or embeddings, (E, K + Q, tokens, width)"""
    labels: Tensor
    """(E * (K + Q)), among all training classes"""
    answers: Tensor
    """(E, Q), among the classes of the episode"""
    known: Tensor | None
    """(E, K), -1 where an image of the support is passed over; null where none is"""
    total: int
    """Episodes of the whole batch."""


def pieces(drawn: Episodes, known: Tensor | None, rows: Sequence[slice], shown: Shown) -> list[Piece]:
    """These rows of a batch, with what is shown of each."""
    answers, total = drawn.query_labels, len(drawn.query)
    return [
        Piece(images, labels, answers[some], None if known is None else known[some], total)
        for some, (images, labels) in zip(rows, shown, strict=True)
    ]


def changed(images: ImageSet, how: Augment, chosen: Tensor, rows: Sequence[slice], *, seed: int, step: int) -> Shown:
    """These rows of the images chosen for a step, (E, K + Q), each changed in a way of its own."""
    (episodes, each), device = chosen.shape, images.pixels.device
    draws = augment.draw(how, episodes * each, seed=seed, step=step)
    shown = []
    for some in rows:
        own, flat = draws.rows(slice(some.start * each, some.stop * each)).to(device), chosen[some].flatten()
        moved, labels = augment.apply(how, images.pixels[flat], images.labels[flat], len(images.classes), own)
        shown.append((moved.unflatten(0, (-1, each)), labels))
    return shown
