"""Weights averaged over training: they generalize better than those of any one step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RunningMean:
    """The exponential running mean of a model's weights; young means forget faster, so the start leaves no trace."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        own = model.state_dict()
        self.weights = {name: tensor.detach().clone() for name, tensor in own.items()}
        floats = [name for name, tensor in own.items() if tensor.is_floating_point()]
        self._floats = local([self.weights[name] for name in floats]), local([own[name] for name in floats])
        self._others = [(self.weights[name], own[name]) for name in own.keys() - set(floats)]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights of the model as they are after step `step`, counted from 1."""
        torch._foreach_lerp_(*self._floats, 1 - min(self.decay, step / (step + 10)))
        for mean, new in self._others:
            mean.copy_(new)

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """Inside the block the model has the mean weights."""
        with torch.no_grad():
            state = model.state_dict()
            own = {name: tensor.detach().clone() for name, tensor in state.items()}
            for name, tensor in state.items():
                tensor.copy_(self.weights[name])
            try:
                yield
            finally:
                for name, tensor in state.items():
                    tensor.copy_(own[name])


def mean(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several states of one model; numbers that are not floats are those of the last."""
    result = {}
    for name, last in states[-1].items():
        if last.is_floating_point():
            result[name] = torch.stack([state[name].double() for state in states]).mean(0).to(last.dtype)
        else:
            result[name] = last
    return result


def local(tensors: list[Tensor]) -> list[Tensor]:
    """What of sharded tensors lies here; others as they are."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
