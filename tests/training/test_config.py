import re

import pytest

from sightline.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"epochs": 0.0}, "epochs must be above 0 and finite, got 0.0"),
        ({"epochs": 2.0, "steps": 9}, "epochs and steps must not both be given, got 2 and 9; set one to null"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0 and finite, got nan"),
        ({"learning_rate": float("inf")}, "learning_rate must be above 0 and finite, got inf"),
        ({"clip": -1.0}, "clip must be above 0 and finite, got -1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0 and finite, got -0.1"),
        ({"betas": (0.9, 1.0)}, "betas[1] must be at least 0 and below 1, got 1.0"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1, got 1.0"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1, got 1.0"),
        ({"floor": -0.5}, "floor must be at least 0 and below 1, got -0.5"),
        ({"gamma": 1.5}, "gamma must be at most 1, got 1.5"),
        ({"keep": 1}, "keep must be an integer of at least 2, got 1"),
        ({"patience": 0}, "patience must be an integer of at least 1, got 0"),
        ({"warmup": -1}, "warmup must be an integer of at least 0, got -1"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        ({"device": "3"}, "device must be auto, cpu, cuda or cuda:N, got '3'"),
        ({"device": "cuda:"}, "device must be auto, cpu, cuda or cuda:N, got 'cuda:'"),
        ({"shard": True, "optimizer": "muon"}, "optimizer must be adamw or adam where weights are shared out"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainingConfig(**changes)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:7"])
def test_devices_by_their_names(device):
    assert TrainingConfig(device=device).device == device
