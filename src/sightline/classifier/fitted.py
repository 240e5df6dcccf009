"""A model that is fitted to a support set."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ..errors import check
from ..models.embedders import ImageEmbedder
from ..models.few_shot import FewShot
from ..models.text_embedders import TextEmbedder
from . import calibration
from .choice import AUTO, Choice, choose
from .methods import Method, State, make_method
from .predictions import Estimate
from .span import in_span
from .support import SupportSet

MAX_FEATURE_MAPS = 128
"""Feature maps of support images that are kept in memory."""
MAX_SUBSET_VALUES = 1 << 22
"""Values of support embeddings, and of their memberships of classes, in a batch of support sets that each lack one
example."""


@dataclass(eq=False)
class Fitted:
    """A model and its support set, which do not change; what is derived from them is computed on first use.

    A classifier replaces this object as a whole, so a prediction never combines two support sets.
    """

    model: FewShot
    support: SupportSet
    embedder: ImageEmbedder | None
    """Embeds images; None if the support set was given as embeddings and the model has no image encoder."""
    method: str = AUTO
    """A method of `methods.METHODS`, or `auto` to choose one by the examples."""
    reject: float | None = None
    """The fraction of images of known classes to reject; None for a default that is lower if unknown images differ."""
    _feature_maps: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _held_out: list[calibration.HeldOut] | None = field(default=None, repr=False)

    @cached_property
    def choice(self) -> Choice:
        """The method that is used, and why."""
        choice, self._held_out = choose(self.model.head, self.support, self.method)
        return choice

    @cached_property
    def head(self) -> Method:
        """The head of the model, or the method that is used in its place."""
        return make_method(self.model.head, self.choice.method, self.choice.scales)

    @property
    def num_held_out(self) -> int:
        """The number of support images that are classified while they are held out; 0 if they show nothing."""
        if not self.support.has_estimate:
            return 0
        counts = self.support.counts
        return min(int(counts[counts > 1].sum()), calibration.MAX_HELD_OUT)

    @property
    def has_inputs(self) -> bool:
        """Whether the classifier takes images or texts; otherwise it takes embeddings."""
        return self.support.images is not None or isinstance(self.embedder, TextEmbedder)

    @cached_property
    @torch.no_grad()
    def state(self) -> State:
        """The encoded support set."""
        return calibration.encode(self.head, self.support)

    @cached_property
    @torch.no_grad()
    def held_out(self) -> list[calibration.HeldOut]:
        """The support images, each classified while it is held out."""
        head = self.head  # the choice may have computed them
        if self._held_out is not None:
            return self._held_out
        return list(calibration.held_out_logits(head, self.support, self.state))

    @cached_property
    def calibration(self) -> calibration.Calibration:
        """The calibration of the confidence and of the known threshold."""
        return calibration.calibrate(self.head, self.support, self.state, self.embedder, self.held_out, self.reject)

    def scores(self, query: Tensor) -> Tensor:
        """Calibrated logits (N, way) of query embeddings (N, T, M).

        Explanations use a head through this method and `scores_without` alone.
        """
        return self.calibration.scale * calibration.classify(self.head, self.state, query)

    def scores_without(self, query: Tensor, indices: Tensor) -> Tensor:
        """The same without each of these support examples: query (N, T, M), indices (I,) -> (I, N, way)

        A regression is fitted again, for many examples at once. Examples that remain keep their encoding, which may
        depend on those that are left out.
        """
        labels, device = self.support.labels.to(self.head.device), self.head.device
        head, support, query, whole = self.head, self.support, query.cpu(), self.state
        if whole.num_tokens <= calibration.MAX_REENCODED_TOKENS:
            head, embeddings = in_span(head, torch.cat((support.embeddings, query)))
            support, query = replace(support, embeddings=embeddings[: len(support)]), embeddings[len(support) :]
            whole = whole if head is self.head else calibration.encode(head, support)
        everything, logits = torch.arange(len(labels)), []
        values = max(support.embeddings.numel(), len(support) * len(support.classes))
        for batch in indices.split(max(1, MAX_SUBSET_VALUES // values)):
            subsets = torch.stack([everything[everything != i] for i in batch])
            state = whole.select(subsets.to(device), labels)
            logits.append(calibration.classify_episodes(head, state, query.expand(len(batch), -1, -1, -1)))
        return self.calibration.scale * torch.cat(logits)

    def held_out_known_scores(self, label: str) -> list[float]:
        """The known scores of the images of a class, each classified while it is held out; none if it has one image."""
        index, scores = self.support.classes.index(label), list[float]()
        for logits, labels, _ in self.held_out:
            scores += self.calibration.known_score(logits[labels == index]).tolist()
        return scores

    def changed(self, support: SupportSet) -> "Fitted":
        """The same model and options with another support set. A method that was chosen is chosen again."""
        return Fitted(self.model, support, self.embedder, self.method, self.reject)

    def feature_maps(self, indices: Sequence[int]) -> dict[int, Tensor]:
        """Features (rows, columns, P) of support images, whose mean is pooled for the embedding; empty if none."""
        support, embedder = self.support, self.embedder
        if support.images is None or embedder is None or support.images.shape[-1] != embedder.image_size:
            return {}
        missing = [i for i in indices if i not in self._feature_maps]
        if missing:
            maps = embedder.feature_maps(support.images[missing])
            if maps is None:
                return {}
            if len(self._feature_maps) + len(missing) > MAX_FEATURE_MAPS:
                self._feature_maps = {}
            self._feature_maps = self._feature_maps | dict(zip(missing, maps.cpu(), strict=True))
        known = self._feature_maps
        return {i: known[i] for i in indices if i in known}

    def estimate(self) -> Estimate:
        """The expected accuracy on new images."""
        rule, fix = "two classes must have 2 images each for an estimate", "add a second image to other classes"
        counts = self.support.counts
        check(self.support.has_estimate, f"{rule}, got {int((counts > 1).sum())} such class; {fix}")
        return Estimate.from_logits(self.support.classes, ((logits, labels) for logits, labels, _ in self.held_out))
