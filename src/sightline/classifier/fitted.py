"""A model that is fitted to a support set."""

from dataclasses import dataclass
from functools import cached_property

import torch

from ..models.embedders import ImageEmbedder
from ..models.few_shot import FewShot, SupportState
from . import calibration
from .predictions import Estimate
from .support import SupportSet


@dataclass(eq=False)
class Fitted:
    """A model and its support set, which do not change; what is derived from them is computed on first use.

    A classifier replaces this object as a whole, so a prediction never combines two support sets.
    """

    model: FewShot
    support: SupportSet
    embedder: ImageEmbedder | None
    """Embeds images; None if the support set was given as embeddings and the model has no image encoder."""

    @cached_property
    @torch.no_grad()
    def state(self) -> SupportState:
        """The encoded support set."""
        return calibration.encode(self.model.head, self.support)

    @cached_property
    @torch.no_grad()
    def held_out(self) -> list[calibration.HeldOut]:
        """The support images, each classified while it is held out."""
        return list(calibration.held_out_logits(self.model.head, self.support, self.state))

    @cached_property
    def calibration(self) -> calibration.Calibration:
        """The calibration of the confidence and of the known threshold."""
        return calibration.calibrate(self.model.head, self.support, self.state, self.embedder, self.held_out)

    def estimate(self) -> Estimate:
        """The expected accuracy on new images."""
        return Estimate.from_logits(self.support.classes, ((logits, labels) for logits, labels, _ in self.held_out))
