import re

import pytest

from sightline.errors import SightlineError
from sightline.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"epochs": 0.0}, "epochs must be above 0 and finite, got 0.0"),
        ({"epochs": 2.0, "steps": 9}, "epochs and steps must not both be given, got 2.0 and 9; set one to null"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0 and finite, got nan"),
        ({"learning_rate": float("inf")}, "learning_rate must be above 0 and finite, got inf"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be above 0 and finite, got -1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0 and finite, got -0.1"),
        ({"betas": (0.9, 1.0)}, "betas[1] must be at least 0 and below 1, got 1.0"),
        ({"ema_decay": 1.0}, "ema_decay must be at least 0 and below 1, got 1.0"),
        ({"min_lr_ratio": -0.5}, "min_lr_ratio must be at least 0 and below 1, got -0.5"),
        ({"gamma": 1.5}, "gamma must be above 0 and at most 1, got 1.5"),
        ({"keep_checkpoints": 1}, "keep_checkpoints must be an integer of at least 2, got 1"),
        ({"early_stopping_patience": 0}, "early_stopping_patience must be an integer of at least 1, got 0"),
        ({"warmup_steps": -1}, "warmup_steps must be an integer of at least 0, got -1"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        ({"device": "3"}, "device must be auto, cpu, cuda or cuda:N, got '3'"),
        ({"device": "cuda:"}, "device must be auto, cpu, cuda or cuda:N, got 'cuda:'"),
        ({"fsdp": True, "optimizer": "muon"}, "optimizer must be adamw or adam with fsdp, got 'muon'"),
    ],
)
def test_invalid_values_are_refused(changes, message):
    with pytest.raises(SightlineError, match=re.escape(message)):
        TrainingConfig(**changes)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:7"])
def test_device_names_are_accepted(device):
    assert TrainingConfig(device=device).device == device
