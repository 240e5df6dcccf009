"""A trained model as files that travel: read with care, copied whole, pushed to and pulled from a model hub."""

import json
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import nn

from .errors import SightlineError
from .files import atomic_write

CONFIG, WEIGHTS, CARD, DATA = "config.yaml", "model.safetensors", "README.md", "data.json"
PATTERNS = (CONFIG, WEIGHTS, CARD, "metrics.jsonl", "*.json")
"""What of a run travels; its checkpoints stay."""
MOST_BYTES = 1 << 24
"""No text file of a run is larger."""
Model = TypeVar("Model", bound=nn.Module)
Self = TypeVar("Self", bound="Shared")


class Shared(ABC):
    """What has the files of a run, and can give them away."""

    folder: Path

    def save_pretrained(self, folder: str | Path) -> Path:
        """Copy what is needed to use the model into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(path for pattern in PATTERNS for path in self.folder.glob(pattern)):
            with atomic_write(folder / path.name) as part:
                shutil.copyfile(path, part)
        return folder

    def push_to_hub(
        self, name: str, *, private: bool = False, token: str | None = None, revision: str | None = None
    ) -> str:
        """Upload to a model hub as `owner/name`; the address of what was uploaded comes back."""
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        try:
            api.create_repo(name, private=private, exist_ok=True)
            return str(
                api.upload_folder(
                    repo_id=name,
                    folder_path=self.folder,
                    allow_patterns=list(PATTERNS),
                    ignore_patterns="*/*",
                    revision=revision,
                )
            )
        except Exception as error:  # the hub's client raises many kinds; the user needs one
            raise SightlineError(f"name must be a place on the hub you may write to, got {name!r}: {error}") from error

    @classmethod
    def from_pretrained(
        cls: type[Self], name: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> Self:
        """From a folder, or by `owner/name` from a model hub."""
        return cls.open(pulled(name, revision=revision, token=token))

    @classmethod
    @abstractmethod
    def open(cls: type[Self], folder: Path) -> Self:
        """From the files of a run."""


def pulled(name: str | Path, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of this name, or of what a model hub has by it."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), revision=revision, token=token, allow_patterns=list(PATTERNS)))
    except Exception as error:  # the hub's client raises many kinds; the user needs one
        raise SightlineError(f"name must be a folder or a model on the hub, got {str(name)!r}: {error}") from error


def read_json(path: Path) -> Any:
    """A small JSON file from outside."""
    if not path.is_file():
        raise SightlineError(f"a run must have a file {path.name}, got none in {path.parent}")
    if path.stat().st_size > MOST_BYTES:
        raise SightlineError(f"{path} must be at most {MOST_BYTES:,} bytes, got {path.stat().st_size:,}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SightlineError(f"{path} must be JSON, got an error: {error}") from error


def read_weights(folder: Path, make: Callable[[], Model], *, depth: int) -> Model:
    """The model that `make` makes with the weights of the folder.

    Nothing is built before the file is known to hold what it needs, so a configuration from outside cannot ask for more
    memory than its weights take on disk.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        begun = (folder / "checkpoints").is_dir()
        fix = f"go on with: sightline train {shlex.quote(str(folder))} --resume" if begun else "has it been trained?"
        raise SightlineError(f"a run must have weights in {WEIGHTS}, got none in {folder}; {fix}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            there = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        check_shapes(path, there, make, depth=depth)
        state = safetensors.torch.load_file(path)
        for name, tensor in state.items():
            if not tensor.is_floating_point():
                raise SightlineError(f"{path} must hold floating-point numbers, got {tensor.dtype} in {name}")
    except (safetensors.SafetensorError, OSError) as error:
        raise SightlineError(f"{path} must be a safetensors file, got an error: {error}") from error
    model = make()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(state[name])
    return model


def check_shapes(
    path: Path, there: Mapping[str, tuple[int, ...]], make: Callable[[], nn.Module], *, depth: int
) -> None:
    """Whether a file holds tensors of the shapes that the model of `make` needs, found out without taking memory."""
    if depth > len(there):
        raise SightlineError(f"{path} must hold the weights of {depth} blocks, got {len(there)} tensors")
    wanted = _shapes(path, make)
    for name in sorted(wanted.keys() | there.keys()):
        if wanted.get(name) != there.get(name):
            raise SightlineError(
                f"{path} must fit its configuration: {name} must be {wanted.get(name, 'absent')}, "
                f"got {there.get(name, 'nothing')}"
            )


def _shapes(path: Path, make: Callable[[], nn.Module]) -> dict[str, tuple[int, ...]]:
    """What the model would need, found out without taking memory."""
    try:
        with torch.device("meta"):
            return {name: tuple(tensor.shape) for name, tensor in make().state_dict().items()}
    except (RuntimeError, OverflowError, TypeError) as error:  # numbers beyond those of torch
        raise SightlineError(f"{path} must fit its configuration, got one that no model can have: {error}") from error
