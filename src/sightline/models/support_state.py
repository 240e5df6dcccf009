"""What a few-shot head keeps of a support set.

Shapes: E episodes, S support images, T tokens per image, M embedding dimension, H heads, D head dimension.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .readouts import FitReadout, LinearReadout


@dataclass(frozen=True, eq=False)
class SupportState:
    """An encoded support set: all that `FewShotHead.classify` needs of it."""

    class_means: Tensor
    """(E, way, M)"""
    has_images: Tensor
    """(E, way), bool: whether each class has support images."""
    image_means: Tensor
    """(E, S, M), the mean of the tokens of each support image."""
    tokens: Tensor | None = None
    """(E, S * T, M), all support tokens at unit length; None without patch matching."""
    token_labels: Tensor | None = None
    """(E, S * T), the class of each of these; None without patch matching."""
    keys_values: tuple[tuple[Tensor, ...], ...] = ()
    """Keys and values of every block, (E, H, S * T, D)."""
    num_tokens: int = 0
    """S * T."""
    readout: LinearReadout | None = None
    """The fitted readout; None for similarity to the class means."""
    fit_readout: FitReadout | None = None
    """Computes the readout of other support images."""

    @property
    def device(self) -> torch.device:
        """The device of the state."""
        return self.class_means.device

    def select(self, subsets: Tensor, labels: Tensor) -> "SupportState":
        """The states of subsets of the support images of one episode, without encoding them again.

        Each subset is an episode of the result: subsets (E, S) are indices of support images, labels are those of all.
        This is an approximation: the selected images have attended to the others.
        """
        images, steps = self.image_means[0, subsets], torch.arange(self.num_tokens // len(labels), device=self.device)
        tokens = (subsets[..., None] * len(steps) + steps).flatten(1)
        membership = class_membership(labels[subsets], self.class_means.shape[1]).to(images.dtype)
        readout = None if self.fit_readout is None else self.fit_readout(images, membership)
        return SupportState(
            class_means=class_means(membership, images),
            has_images=membership.any(-1),
            image_means=images,
            tokens=None if self.tokens is None else self.tokens[0, tokens],
            token_labels=None if self.token_labels is None else self.token_labels[0, tokens],
            keys_values=tuple(tuple(x[0][:, tokens].transpose(0, 1) for x in block) for block in self.keys_values),
            num_tokens=tokens.shape[1],
            readout=readout,
            fit_readout=self.fit_readout,
        )


def class_membership(labels: Tensor, way: int) -> Tensor:
    """Whether each support image is of each class: labels (E, S) -> bool (E, way, S)"""
    return labels[:, None] == torch.arange(way, device=labels.device)[:, None]


def class_means(membership: Tensor, x: Tensor) -> Tensor:
    """The mean of each class, 0 for an empty class: membership (E, way, S), x (E, S, M) -> (E, way, M)"""
    return membership / membership.sum(-1, keepdim=True).clamp_min(1) @ x
