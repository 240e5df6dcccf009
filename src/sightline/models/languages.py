"""What every translator must know of its two languages."""

from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor

from ..checks import check_most, check_whole, nearest
from ..layers.words import Tied

MOST_WORDS = 1 << 20
"""No vocabulary is larger."""


@dataclass(frozen=True, kw_only=True)
class Languages:
    """The part of a translator's config that is about words."""

    source_vocabulary: int | None = None
    """Tokens of the source language; in training null, for it is that of the data."""
    target_vocabulary: int | None = None
    """Tokens of the target language; in training null, for it is that of the data."""
    tied: Tied = "target"
    """Which tables of words are one: none, the target's for reading and writing, or all."""

    def __post_init__(self) -> None:
        if self.tied not in get_args(Tied):
            raise ValueError(f"tied must be {nearest(str(self.tied), get_args(Tied))}")
        for name in ("source_vocabulary", "target_vocabulary"):
            if getattr(self, name) is not None:
                check_whole(4, **{name: getattr(self, name)})  # padding, begin, end and unknown are in every one
                check_most(MOST_WORDS, **{name: getattr(self, name)})
        sizes = {self.source_vocabulary, self.target_vocabulary} - {None}
        if self.tied == "all" and len(sizes) == 2:
            raise ValueError(
                f"tied must be target or none where the vocabularies differ, got all with {self.source_vocabulary} "
                f"and {self.target_vocabulary}; or let both languages share their tokens"
            )

    def of_data(self, *, source_vocabulary: int, target_vocabulary: int) -> Self:
        """The same for these vocabularies; refused where it was told others."""
        sizes: dict[str, Any] = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        for name, value in sizes.items():
            if getattr(self, name) not in (None, value):
                raise ValueError(f"model.{name} must be that of the data, {value}, or null, got {getattr(self, name)}")
        try:
            return replace(self, **sizes)
        except ValueError as error:
            raise ValueError(f"model: {error}") from error

    @property
    def vocabularies(self) -> tuple[int, int]:
        """Source and target, which a model must know."""
        source, target = self.source_vocabulary, self.target_vocabulary
        if source is None or target is None:
            raise ValueError(f"source_vocabulary and target_vocabulary must be given, got {source} and {target}")
        return source, target


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Whether this is one of the choices there are."""
    if value not in known:
        raise ValueError(f"{name} must be {nearest(str(value), known)}")


def checked_source(source: Tensor, real: Tensor) -> Tensor:
    """What is real, if these are ids; a sentence without a word reads its first place, for something must be seen."""
    if source.dim() != 2 or source.dtype != torch.int64 or not source.shape[1]:
        raise ValueError(
            f"source must be int64 of shape (batch, tokens) with a token at least, got {source.dtype} "
            f"{tuple(source.shape)}"
        )
    if real.dtype != torch.bool or real.shape != source.shape:
        raise ValueError(
            f"real must be bool and of source's shape {tuple(source.shape)}, got {real.dtype} {tuple(real.shape)}"
        )
    return real | (torch.arange(source.shape[1], device=real.device) == 0)
