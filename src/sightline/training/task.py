"""The interface between a task and the training loop."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

MIN_CALIBRATION_EXAMPLES = 50
"""Validation examples from which on confidence is calibrated. A scale that is fitted to fewer can be worse than 1."""


@dataclass(frozen=True)
class BatchSlice:
    """The share of every batch that this process works on, as a number of micro-batches."""

    rank: int = 0
    world_size: int = 1
    micro_batches: int = 1

    def indices(self, batch_size: int) -> list[slice]:
        """The slice of a batch for each micro-batch of this process. Those of an uneven batch are rounded up."""
        size = -(-batch_size // (self.world_size * self.micro_batches))
        first = self.rank * self.micro_batches
        return [slice(i * size, (i + 1) * size) for i in range(first, first + self.micro_batches)]


class Task(Protocol):
    """A model and the data it is trained on.

    An implementation also has a static method `load_data(config, progress=None)` and the constructor
    `(config, data, progress=None)`. Methods with a body are defaults for subclasses. All randomness of a step follows
    from the seed and the step number, so a resumed run gives the same weights as an uninterrupted one.
    """

    model: nn.Module
    config: Any
    """The config, completed with what follows from the data."""
    data_fingerprint: dict[str, Any]
    """Counts and digests of the data; a run is resumed on the same data only."""
    monitor: str
    """The validation metric that selects the best weights."""
    higher_is_better: bool
    unit: str = "examples"
    """What the batch size counts."""
    calibration: str = ""
    """Whether `finish` calibrated the confidence, for the report of training."""
    notes: tuple[str, ...] = ()
    """What is reported about the data before the first step."""

    @staticmethod
    def complete_config(config: Any, data: Any) -> Any:
        """The config, completed with what follows from the data; an error if they do not fit each other."""
        return config

    def new_parameters(self, predictor: Any) -> tuple[str, ...]:
        """Prefixes of the parameters that start anew when training starts from the model of a `Predictor`.

        Such as a head of other classes; parameters of other shapes always start anew.
        """
        return ()

    def steps_per_epoch(self, batch_size: int) -> int:
        """The number of batches in an epoch."""

    def to(self, device: torch.device) -> None:
        """Move the model, and the data that is kept on the device."""
        self.model.to(device)

    def batches(self, first_step: int, batch_size: int, batch_slice: BatchSlice) -> Generator[list[Any], None, None]:
        """An endless generator of batches from `first_step` on, each a list of this process's micro-batches.

        Closing it releases its resources, such as worker processes.
        """

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The contribution of a micro-batch to the mean loss of its batch; these add up over all processes."""

    def evaluate(self, model: nn.Module, batch_slice: BatchSlice) -> dict[str, Tensor]:
        """Sums over this process's share of the validation set; empty if there is none."""

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Metrics from the sums of all processes."""

    def files(self) -> dict[str, bytes]:
        """Files that a run needs beside its weights, such as a tokenizer."""
        return {}

    def can_calibrate(self, examples: int) -> bool:
        """Whether this many validation examples are enough to calibrate the confidence on, which sets `calibration`."""
        is_enough, minimum = examples >= MIN_CALIBRATION_EXAMPLES, MIN_CALIBRATION_EXAMPLES
        reason = f"not calibrated, which takes {minimum} validation examples (got {examples})"
        self.calibration = "after calibration" if is_enough else reason
        return is_enough

    def finish(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Complete the final weights, for instance by calibration, and return them with their validation metrics.

        Called in the main process, with all weights on the CPU, before they are written. Empty metrics leave those of
        training as they are.
        """
        return weights, {}
