"""The methods that a classifier chooses among: the head of its model, simpler readouts, and a blend.

All have the interface of a head: `encode_support`, `classify` and `device`.

Shapes: E episodes, S support images, Q queries, T tokens per image, M embedding dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from ..errors import check
from ..models.few_shot_head import FewShotHead
from ..models.support_state import SupportState

READOUTS = ("prototypes", "ridge", "logistic")
"""Methods without attention, on the normalized embeddings: `model.readout` of a head without blocks."""
SPATIAL, SPATIAL_WEIGHT = "spatial", 0.5
"""The method for embeddings with a feature map, and the weight of the map: ridge regression with more than the weight
of the model, for images whose classes differ in what is where."""
METHODS = ("head", *READOUTS, SPATIAL, "blend")
MIN_RIDGE_DIM = 8
"""Dimension of embeddings from which on ridge regression is the default: it compares centered directions, of which a
low dimension has few."""


class State(Protocol):
    """An encoded support set."""

    @property
    def num_tokens(self) -> int:
        """Support tokens."""

    @property
    def device(self) -> torch.device:
        """The device of the state."""

    def select(self, subsets: Tensor, labels: Tensor) -> Self:
        """See `SupportState.select`."""


class Method(Protocol):
    """A head, or a combination of heads."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    def is_trained(self) -> bool:
        """Whether it has trained blocks."""

    @property
    def has_regression(self) -> bool:
        """Whether it is a regression on the support images."""

    @property
    def has_statistics(self) -> bool:
        """See `FewShotHead.has_statistics`."""

    def class_similarity(self, state: Any) -> Tensor:
        """See `FewShotHead.class_similarity`."""

    def encode_support(self, support: Tensor, labels: Tensor, *, way: int) -> Any:
        """See `FewShotHead.encode_support`; returns a `State`."""

    def classify(self, state: Any, query: Tensor) -> Tensor:
        """See `FewShotHead.classify`; takes a state of `encode_support`."""


@dataclass(frozen=True, eq=False)
class BlendState:
    """The states of the members of a blend."""

    members: tuple[SupportState, ...]

    @property
    def num_tokens(self) -> int:
        """Support tokens."""
        return self.members[0].num_tokens

    @property
    def device(self) -> torch.device:
        """The device of the states."""
        return self.members[0].device

    def select(self, subsets: Tensor, labels: Tensor) -> "BlendState":
        """See `SupportState.select`."""
        return BlendState(tuple(state.select(subsets, labels) for state in self.members))


class Blend:
    """The mean of the logits of several heads, each multiplied by a factor: its calibration scale and weight."""

    def __init__(self, members: Sequence[FewShotHead], scales: Sequence[float]):
        self.members, self.scales = tuple(members), tuple(scales)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.members[0].device

    @property
    def is_trained(self) -> bool:
        """Whether a member has trained blocks."""
        return any(member.is_trained for member in self.members)

    @property
    def has_regression(self) -> bool:
        """True: logistic regression is a member."""
        return True

    @property
    def has_statistics(self) -> bool:
        """See `FewShotHead.has_statistics`."""
        return self.members[0].has_statistics

    def class_similarity(self, state: BlendState) -> Tensor:
        """See `FewShotHead.class_similarity`."""
        return self.members[0].class_similarity(state.members[0])

    def encode_support(self, support: Tensor, labels: Tensor, *, way: int) -> BlendState:
        """See `FewShotHead.encode_support`."""
        return BlendState(tuple(member.encode_support(support, labels, way=way) for member in self.members))

    def classify(self, state: BlendState, query: Tensor) -> Tensor:
        """query (E, Q, T, M) -> logits float64 (E, Q, way)"""
        logits = [member.classify(own, query) for member, own in zip(self.members, state.members, strict=True)]
        return blended(logits, self.scales)


def blended(logits: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
    """The mean of logits, each multiplied by a scale."""
    return torch.stack([scale * values for scale, values in zip(scales, logits, strict=True)]).mean(0)


def make_method(head: FewShotHead, name: str, scales: Sequence[float] = ()) -> FewShotHead | Blend:
    """The method of this name for the embeddings of a model; `scales` are those of the members of a blend."""
    if name == "blend":
        return Blend([_single(head, member) for member in blend_members(head)], scales)
    return _single(head, name)


def available_methods(head: FewShotHead) -> tuple[str, ...]:
    """The methods for a model: its head in place of the same readout, unless the head is no more than a readout.

    Logistic regression is always one of them, since it is a member of the blend.
    """
    left_out = head.config.readout if _is_more_than_a_readout(head) else "head"
    has_map = head.config.feature_map_size is not None and default_method(head) == head.config.readout == "ridge"
    names = (name for name in METHODS if name != SPATIAL or has_map)
    return tuple(name for name in names if name != left_out or name == "logistic")


def default_method(head: FewShotHead) -> str:
    """The head; or ridge regression, or prototypes in a low dimension, if the head is no more than a readout."""
    if _is_more_than_a_readout(head):
        return "head"
    return "ridge" if head.embed_dim >= MIN_RIDGE_DIM else "prototypes"


def single_example_method(head: FewShotHead) -> str:
    """The method for one example per class: the default one, or logistic regression if nothing is known of the encoder.

    Ridge regression compares directions from the mean of all classes, which is uncertain then (benchmarks/domains.py).
    """
    is_uncertain = not has_prior(head) and default_method(head) == "ridge"
    return "logistic" if is_uncertain else default_method(head)


def has_prior(head: FewShotHead) -> bool:
    """Whether the default method has seen other images of the same encoder: in training, or in its statistics."""
    return head.has_statistics or _is_more_than_a_readout(head)


def blend_members(head: FewShotHead) -> tuple[str, str]:
    """The methods that are blended: the default method and logistic regression."""
    return default_method(head), "logistic"


def _single(head: FewShotHead, name: str) -> FewShotHead:
    if name == SPATIAL:
        names = ", ".join(other for other in METHODS if other != SPATIAL)
        rule = f"method must be one of {names} for a model without a feature map"
        check(name in available_methods(head), f"{rule}, got {name!r}, which --model photos has")
        return head.with_map_weight(SPATIAL_WEIGHT)
    is_own = name == head.config.readout != "prototypes" and not _is_more_than_a_readout(head)  # with its own penalty
    return head if name == "head" or is_own else head.without_blocks(name)


def _is_more_than_a_readout(head: FewShotHead) -> bool:
    return head.is_trained or head.config.patch_matching or head.config.metric != "cosine"
