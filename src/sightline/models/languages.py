"""What every translator must know of its two languages."""

from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check_int, check_max, one_of
from ..layers.embeddings import TieEmbeddings


@dataclass(frozen=True, kw_only=True)
class Languages:
    """The part of a translator's config that is about words."""

    source_vocab_size: int | None = None
    """Tokens of the source language; in training null, for it is that of the data."""
    target_vocab_size: int | None = None
    """Tokens of the target language; in training null, for it is that of the data."""
    tie_embeddings: TieEmbeddings = "target"
    """Which tables of words are one: none, the target's for reading and writing, or all."""

    def __post_init__(self) -> None:
        if self.tie_embeddings not in get_args(TieEmbeddings):
            raise SightlineError(f"tie_embeddings must be {one_of(str(self.tie_embeddings), get_args(TieEmbeddings))}")
        for name in ("source_vocab_size", "target_vocab_size"):
            if getattr(self, name) is not None:
                check_int(4, **{name: getattr(self, name)})  # padding, begin, end and unknown are in every one
                check_max(limits.MAX_MODEL_VOCAB_SIZE, **{name: getattr(self, name)})
        sizes = {self.source_vocab_size, self.target_vocab_size} - {None}
        if self.tie_embeddings == "all" and len(sizes) == 2:
            raise SightlineError(
                f"tie_embeddings must be target or none where the vocabularies differ, got all with {self.source_vocab_size} "
                f"and {self.target_vocab_size}; or let both languages share their tokens"
            )

    def of_data(self, *, source_vocab_size: int, target_vocab_size: int) -> Self:
        """The same for these vocabularies; refused where it was told others."""
        sizes: dict[str, Any] = {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
        for name, value in sizes.items():
            if getattr(self, name) not in (None, value):
                raise SightlineError(
                    f"model.{name} must be that of the data, {value}, or null, got {getattr(self, name)}"
                )
        try:
            return replace(self, **sizes)
        except ValueError as error:
            raise SightlineError(f"model: {error}") from error

    @property
    def vocabularies(self) -> tuple[int, int]:
        """Source and target, which a model must know."""
        source, target = self.source_vocab_size, self.target_vocab_size
        if source is None or target is None:
            raise SightlineError(f"source_vocab_size and target_vocab_size must be given, got {source} and {target}")
        return source, target


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Whether this is one of the choices there are."""
    if value not in known:
        raise SightlineError(f"{name} must be {one_of(str(value), known)}")


def checked_source(source: Tensor, attention_mask: Tensor) -> Tensor:
    """What is attention_mask, if these are ids; a sentence without a word reads its first place, for something must be seen."""
    if source.dim() != 2 or source.dtype != torch.int64 or not source.shape[1]:
        raise SightlineError(
            f"source must be int64 of shape (batch, tokens) with a token at least, got {source.dtype} "
            f"{tuple(source.shape)}"
        )
    if attention_mask.dtype != torch.bool or attention_mask.shape != source.shape:
        raise SightlineError(
            f"attention_mask must be bool and of source's shape {tuple(source.shape)}, got {attention_mask.dtype} {tuple(attention_mask.shape)}"
        )
    return attention_mask | (torch.arange(source.shape[1], device=attention_mask.device) == 0)
