"""Averages of weights over training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .distributed import local_tensors


class ExponentialMovingAverage:
    """Exponential moving average of a model's state, with a smaller decay in the first steps."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        state = model.state_dict()
        self.weights = {name: tensor.detach().clone() for name, tensor in state.items()}
        floats = [name for name, tensor in state.items() if tensor.is_floating_point()]
        self._floats = tuple(local_tensors([source[name] for name in floats]) for source in (self.weights, state))
        self._others = [(self.weights[name], state[name]) for name in state.keys() - set(floats)]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights of the model after step `step`, counted from 1."""
        averages, weights = self._floats
        torch._foreach_lerp_(averages, weights, 1 - min(self.decay, step / (step + 10)))
        for average, current in self._others:
            average.copy_(current)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Give the model the average weights inside the block."""
        with torch.no_grad():
            state = model.state_dict()
            backup = {name: tensor.detach().clone() for name, tensor in state.items()}
            for name, tensor in state.items():
                tensor.copy_(self.weights[name])
            try:
                yield
            finally:
                for name, tensor in state.items():
                    tensor.copy_(backup[name])


def average_states(states: list[dict[str, Tensor]], prefix: str = "") -> dict[str, Tensor]:
    """Average the tensors with a prefix, which is removed; those that are not floating point come from the last."""

    def average(name: str, last: Tensor) -> Tensor:
        return torch.stack([state[name].double() for state in states]).mean(0).to(last.dtype)

    return {
        name.removeprefix(prefix): average(name, last) if last.is_floating_point() else last
        for name, last in states[-1].items()
        if name.startswith(prefix)
    }
