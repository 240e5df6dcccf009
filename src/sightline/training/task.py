"""What the loop knows of a task: where its batches come from, what a batch costs, and how good the model is."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Part:
    """Which of the equal parts of every batch are worked on here: `pieces` of them one after the other, on process
    `rank` of `world`."""

    rank: int = 0
    world: int = 1
    pieces: int = 1

    def rows(self, count: int) -> list[slice]:
        """The rows of a batch of `count` that belong here, piece by piece."""
        share = count // (self.world * self.pieces)
        first = self.rank * self.pieces
        return [slice(i * share, (i + 1) * share) for i in range(first, first + self.pieces)]


class Task(Protocol):
    """One thing to learn.

    Everything random about a step follows from the seed and the number of the step alone, so a run that was broken off
    goes on as if it had not been.
    """

    model: nn.Module
    monitor: str
    """The metric that says which weights are best."""
    higher_is_better: bool
    """Whether more of it is better."""

    def steps_per_epoch(self, batch_size: int) -> int:
        """How many batches make one round through the data."""
        ...

    def to(self, device: torch.device) -> None:
        """Bring the data that lives on a device there, and the model."""
        ...

    def batches(self, first: int, batch_size: int, part: Part) -> Generator[list[Any], None, None]:
        """The batches from step `first` on, without end, each as the pieces of it that belong here.

        When it is closed it lets go of all it holds, processes that read files among them.
        """
        ...

    def loss(self, model: nn.Module, piece: Any) -> Tensor:
        """What this piece adds to the mean loss of its whole batch: the pieces of all processes sum to it."""
        ...

    def evaluate(self, model: nn.Module, part: Part) -> dict[str, Tensor]:
        """Sums over the part of the validation set that belongs here; `metrics` reads the sums of all processes."""
        ...

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Metrics from sums; empty where there is nothing to validate on."""
        ...
