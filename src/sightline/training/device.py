"""Where and how a model computes: its device, its precision, compiled or not."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ..errors import SightlineError
from .config import TrainingConfig


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SightlineError(
            f"device must be one that is here ({torch.cuda.device_count()} CUDA devices), got {name!r}"
        )
    return device


def worth_compiling(device: torch.device) -> bool:
    """On a CPU every new shape takes minutes, and wins next to nothing."""
    return device.type == "cuda"


def compiled(model: nn.Module, device: torch.device, *, graphs: bool) -> nn.Module:
    """The model compiled by torch where that is worth it; with `graphs`, a step on a GPU is one recorded graph, which
    waits for no Python."""
    if not worth_compiling(device):
        return model
    recorded = graphs and device.type == "cuda"
    return torch.compile(model, mode="reduce-overhead" if recorded else None)  # type: ignore[return-value]


def precision(settings: TrainingConfig, device: torch.device) -> AbstractContextManager[Any]:
    """Inside it, the model computes as it is told to."""
    half = settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, torch.bfloat16, enabled=half)
