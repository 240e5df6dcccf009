"""Device, precision and compilation."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ..errors import check
from .config import TrainingConfig, check_device_name


def choose_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is CUDA where available, else the CPU."""
    check_device_name("device", name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device, count = torch.device(name), torch.cuda.device_count()
    is_available = device.type == "cpu" or (device.index or 0) < count
    check(is_available or count, f"device must be cpu, got {name!r}: this machine has no CUDA device; use --device cpu")
    check(is_available, f"device must be one of {count} CUDA devices, got {name!r}")
    return device


def supports_compile(device: torch.device) -> bool:
    """Whether compilation pays: on a CPU every new shape takes minutes and gains almost nothing."""
    return device.type == "cuda"


def compile_model(model: nn.Module, device: torch.device, *, cuda_graphs: bool) -> nn.Module:
    """Compile a model where that pays; with `cuda_graphs` a step on a GPU is one CUDA graph."""
    if not supports_compile(device):
        return model
    return torch.compile(model, mode="reduce-overhead" if cuda_graphs else None)  # type: ignore[return-value]


def autocast(config: TrainingConfig, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast context of the configured precision."""
    enabled = config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)
