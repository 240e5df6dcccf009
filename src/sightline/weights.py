"""Weights as safetensors: read into a model, checked against its shapes first, and written."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from .errors import SightlineError
from .files import CHECKPOINTS, WEIGHTS

Model = TypeVar("Model", bound=nn.Module)
Shapes = Mapping[str, tuple[int, ...]]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def read_weights(folder: Path, build: Callable[[], Model], *, depth: int) -> Model:
    """The model that `build` returns, with the weights of a run's folder.

    The file's shapes are compared with those of the model on the meta device before the model is built. So a config
    cannot ask for more memory than its weights take on disk. `depth` is the number of layers, checked first.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        started = (folder / CHECKPOINTS).is_dir()
        fix = f"resume with: sightline train {shlex.quote(str(folder))} --resume" if started else "train it first"
        raise SightlineError(f"a run must have weights in {WEIGHTS}, got none in {folder}; {fix}")
    state = load_tensors(path, lambda shapes: check_shapes(path, shapes, build, depth=depth))
    model = build()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(state[name])
    return model


def load_tensors(path: Path, check: Callable[[Shapes], None]) -> dict[str, Tensor]:
    """The floating-point tensors of a file; `check` gets their shapes before any tensor is read."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            check({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
        state = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise SightlineError(f"{path} must be a safetensors file, got an error: {error}") from error
    for name, tensor in state.items():
        if tensor.dtype not in DTYPES:
            raise SightlineError(
                f"{path} must hold floating-point numbers of 16 to 64 bits, got {tensor.dtype} in {name}"
            )
    return state


def check_shapes(path: Path, shapes: Shapes, build: Callable[[], nn.Module], *, depth: int) -> None:
    """Check that a file's tensors have the names and shapes that the model of `build` needs."""
    if depth > len(shapes):
        raise SightlineError(f"{path} must hold the weights of {depth} layers, got {len(shapes)} tensors")
    try:
        with torch.device("meta"):
            needed = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes beyond those of torch
        raise SightlineError(f"{path} must fit its config, got a config that no model can have: {error}") from error
    for name in sorted(needed.keys() | shapes.keys()):
        if needed.get(name) != shapes.get(name):
            raise SightlineError(
                f"{path} must fit its config: {name} must be {needed.get(name, 'absent')}, "
                f"got {shapes.get(name, 'nothing')}"
            )


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file with these tensors."""
    return safetensors.torch.save(
        {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, {"format": "pt"}
    )
