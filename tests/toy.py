"""The smallest task there is: a line through points, for tests of the loop alone."""

import itertools

import torch
from torch import nn

COUNT, WIDTH = 30, 3


class Layers(nn.ModuleList):
    """One after the other; a ModuleList, as blocks are in."""

    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


class Line:
    """A linear map learns another one; `spoil` names a step whose loss is not a number."""

    goal, rising = "loss", False

    def __init__(self, *, spoil: int | None = None, validation: int = 7):
        random = torch.Generator().manual_seed(0)
        self.model: nn.Module = Layers((nn.Linear(WIDTH, 5), nn.Tanh(), nn.Dropout(0.1), nn.Linear(5, 2)))
        self.x = torch.randn(COUNT, WIDTH, generator=random)
        self.y = torch.stack((self.x.sum(1).sin(), self.x[:, 0]), 1)
        self.spoil, self.validation = spoil, validation
        self.losses = 0

    def steps_per_epoch(self, batch_size):
        return COUNT // batch_size

    def to(self, device):
        self.model.to(device)

    def batches(self, first, batch_size, part):
        for step in itertools.count(first):
            rows = (torch.arange(batch_size) + step * batch_size) % COUNT
            weight = float("nan") if step == self.spoil else 1.0
            yield [(self.x[rows[one]], self.y[rows[one]] * weight, batch_size) for one in part.indices(batch_size)]

    def loss(self, model, piece):
        x, y, total = piece
        self.losses += 1
        return (model(x) - y).square().sum() / total

    def evaluate(self, model, part):
        if not self.validation:
            return {}
        x, y = self.x[: self.validation], self.y[: self.validation]
        return {"loss": (model(x) - y).square().sum().double(), "count": torch.tensor(len(x))}

    def metrics(self, sums):
        return {"loss": float(sums["loss"] / sums["count"])} if sums else {}
