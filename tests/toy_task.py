"""A small regression task for tests of the training loop."""

import itertools
import json

import torch
from safetensors.torch import load_file
from torch import nn

from sightline.training.config import TrainingConfig
from sightline.training.device import choose_device
from sightline.training.distributed import ProcessGroup
from sightline.training.hooks import default_hooks
from sightline.training.loop import Trainer

COUNT, INPUTS = 30, 3
CONFIG = {
    "steps": 11,
    "batch_size": 6,
    "log_every": 3,
    "evaluate_every": 4,
    "checkpoint_every": 2,
    "learning_rate": 0.02,
    "device": "cpu",
}


class Layers(nn.ModuleList):
    """Layers applied in order, in a ModuleList as in the models."""

    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


class ToyTask:
    """Regression with a small network; the loss of step `nan_step` is NaN."""

    monitor, higher_is_better, unit, calibration = "loss", False, "examples", ""

    def __init__(self, *, nan_step: int | None = None, validation: int = 7):
        random = torch.Generator().manual_seed(0)
        self.model: nn.Module = Layers((nn.Linear(INPUTS, 5), nn.Tanh(), nn.Dropout(0.1), nn.Linear(5, 2)))
        self.x = torch.randn(COUNT, INPUTS, generator=random)
        self.y = torch.stack((self.x.sum(1).sin(), self.x[:, 0]), 1)
        self.nan_step, self.validation = nan_step, validation
        self.loss_calls = 0

    def steps_per_epoch(self, batch_size):
        return COUNT // batch_size

    def to(self, device):
        self.model.to(device)

    def batches(self, first_step, batch_size, batch_slice):
        for step in itertools.count(first_step):
            batch = (torch.arange(batch_size) + step * batch_size) % COUNT
            scale = float("nan") if step == self.nan_step else 1.0
            micro_batches = [batch[indices] for indices in batch_slice.indices(batch_size)]
            yield [(self.x[indices], self.y[indices] * scale, batch_size) for indices in micro_batches]

    def loss(self, model, micro_batch):
        x, y, batch_size = micro_batch
        self.loss_calls += 1
        return (model(x) - y).square().sum() / batch_size

    def evaluate(self, model, batch_slice):
        if not self.validation:
            return {}
        x, y = self.x[: self.validation], self.y[: self.validation]
        return {"loss": (model(x) - y).square().sum().double(), "count": torch.tensor(len(x))}

    def metrics(self, sums):
        return {"loss": float(sums["loss"] / sums["count"])} if sums else {}

    def finish(self, weights):
        return weights, {}


def train(folder, *, task=None, validation=7, resume=False, seed=0, hooks=(), config_digest="", **changes):
    """Train the toy task, or another one; return the result and the task."""
    torch.manual_seed(seed)
    task = task or ToyTask(validation=validation)
    config = TrainingConfig(**{**CONFIG, **changes})
    group = ProcessGroup(0, 1, choose_device(config.device))
    hooks = [*default_hooks(config, quiet=True), *hooks]
    trainer = Trainer(task, config, folder, group, seed=seed, hooks=hooks, config_digest=config_digest)
    if resume:
        trainer.restore()
    return trainer.fit(), task


def weights(folder):
    return load_file(folder / "model.safetensors")


def logged(folder, key="loss"):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[key] for line in lines if key in line}
