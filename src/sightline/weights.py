"""Weights as safetensors: read into a model, checked against its shapes first, and written."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .errors import SightlineError, check, reraise
from .files import CHECKPOINTS, WEIGHTS, resume_command

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
        fix = f"resume with: {resume_command(folder)}" if started else "train it first"
        raise SightlineError(f"a run must have weights in {WEIGHTS}, got none in {folder}; {fix}")
    state = load_tensors(path, lambda shapes: check_shapes(path, shapes, build, depth=depth))
    model = build()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(state[name])
    return model


def load_tensors(path: Path, check_shapes: Callable[[Shapes], None]) -> dict[str, Tensor]:
    """The floating-point tensors of a file; `check_shapes` gets their shapes before any tensor is read."""
    with reraise(f"{path} must be a safetensors file", safetensors.SafetensorError, OSError):
        with safetensors.safe_open(path, framework="pt") as file:
            check_shapes({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
        state = safetensors.torch.load_file(path)
    for name, tensor in state.items():
        rule = f"{path} must hold floating-point numbers of 16 to 64 bits"
        check(tensor.dtype in DTYPES, f"{rule}, got {tensor.dtype} in {name}")
    return state


def check_shapes(
    path: Path,
    shapes: Shapes,
    build: Callable[[], nn.Module],
    *,
    depth: int,
    model: str = "its config",
    absent: Collection[str] = (),
) -> None:
    """Check that a file's tensors have the names and shapes that the model of `build` needs; `model` tells which.

    Tensors of the model in `absent` are not in the file.
    """
    check(depth <= len(shapes), f"{path} must hold the weights of {depth} layers, got {len(shapes)} tensors")
    # sizes beyond those of torch
    errors = (RuntimeError, OverflowError, TypeError)
    with reraise(f"{path} must fit {model}", *errors), torch.device("meta"), _NoInitialization():
        needed = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items() if name not in absent}
    for name in sorted(needed.keys() | shapes.keys()):
        rule, got = needed.get(name, "absent"), shapes.get(name, "nothing")
        check(needed.get(name) == shapes.get(name), f"{path} must fit {model}: {name} must be {rule}, got {got}")


class _NoInitialization(TorchFunctionMode):
    """Skips in-place methods, such as `normal_`. On the meta device they change nothing, and torch imports its compiler
    for them, which takes seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        is_in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        if is_in_place and args and isinstance(args[0], Tensor):
            return args[0]
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def copy_matching(source: Mapping[str, Tensor], model: nn.Module, *, new: Sequence[str] = ()) -> list[str]:
    """Copy the tensors of the same name and shape into a model; returns the names of those that were not copied.

    Names that begin with one of `new`, and the scale of calibrated confidences, are not copied.
    """
    remaining = []
    for name, tensor in model.state_dict().items():
        is_new = name.startswith(tuple(new)) or name.endswith("calibration_scale")
        if is_new or name not in source or source[name].shape != tensor.shape:
            remaining.append(name)
        else:
            tensor.copy_(source[name])
    return remaining


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file with these tensors."""
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(contiguous, {"format": "pt"})
