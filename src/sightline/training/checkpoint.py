"""Checkpoints: training state as named tensors, written atomically and verified when read.

    checkpoints/step-00000500.safetensors   weights, their moving average, optimizer state
    checkpoints/step-00000500.json          step, digests and metadata; written last
    checkpoints/best-00000400.safetensors   best weights so far

A checkpoint exists once its JSON file does. Files that are truncated or do not match their digest are skipped.
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ..errors import SightlineError, check
from ..files import digest, write_bytes
from ..weights import to_bytes
from .averaging import ExponentialMovingAverage
from .distributed import distribute_like

DAMAGE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError)
"""Exceptions that a truncated or corrupt file causes."""
TENSOR_FILE = re.compile(r"(step|best)-(\d{8})\.safetensors")
"""Names of tensor files written by a run; files with other names are never touched."""
PART_FILE = re.compile(r"\.(step|best)-\d{8}\.(safetensors|json)\.[0-9a-f]{8}\.part")
FIX = "remove the checkpoints or train in another folder with out=FOLDER"
"""Ends a message about checkpoints that do not fit the run."""
OPTIMIZER_KEYS = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""Per-parameter state of the optimizers."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    step: int
    tensors: dict[str, Tensor]
    metadata: dict[str, Any]
    """State of the loop that is not a tensor."""


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int, report: Callable[[str], object] = warnings.warn):
        """`report` gets messages about damaged checkpoints that are skipped."""
        self.folder, self.keep, self.report = folder, keep, report

    def save(self, step: int, tensors: dict[str, Tensor], metadata: dict[str, Any], *, scheduled: bool = True) -> Path:
        """Write a checkpoint, remove old ones and return its path. One written on a signal is not `scheduled`."""
        name = f"step-{step:08}"
        files = self._write(f"{name}.safetensors", tensors)
        record = {"step": step, "scheduled": scheduled, **files, "metadata": metadata}
        path = self.folder / f"{name}.json"
        write_bytes(path, _with_digest(record))
        self.remove_old()
        return path

    def save_best(self, step: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Write the best weights; return the record to store in the metadata as `best`."""
        return self._write(f"best-{step:08}.safetensors", tensors)

    def latest(self) -> Checkpoint | None:
        """Read the newest intact checkpoint; newer damaged ones are removed with a warning."""
        for record in reversed(self._records()):
            if (tensors := self._read_or_remove(record)) is not None:
                return Checkpoint(record["step"], tensors, self._check_best(record["metadata"]))
        return None

    def last(self, count: int) -> list[dict[str, Tensor]]:
        """Read the tensors of the last `count` scheduled checkpoints, oldest first, without damaged ones."""
        records = [record for record in self._records() if record["scheduled"]]
        return [tensors for tensors in map(self._read_or_remove, records[-count:]) if tensors is not None]

    def read(self, record: dict[str, Any]) -> dict[str, Tensor]:
        """Read the tensors of a record and verify their size and digest."""
        name = record["file"]
        check(TENSOR_FILE.fullmatch(name), f"file must be the bare name of a checkpoint, got {name!r:.200}")
        size, path = record["bytes"], self.folder / name
        check(path.stat().st_size == size, f"{name} must have {size} bytes, got {path.stat().st_size}")
        data = path.read_bytes()
        check(digest(data) == record["sha256"], f"{name} must match its digest, got other bytes")
        return safetensors.torch.load(data)

    def remove_old(self) -> None:
        """Keep the newest checkpoints; remove older ones and files that a killed process left."""
        records = self._records()
        if not records:
            return
        kept = [*[record for record in records if record["scheduled"]][-self.keep :], records[-1]]
        steps = {record["step"] for record in kept}
        files = {record["file"] for record in kept}
        files |= {best["file"] for record in kept if (best := record["metadata"].get("best"))}
        for record in records:
            if record["step"] not in steps:
                (self.folder / f"step-{record['step']:08}.json").unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if PART_FILE.fullmatch(path.name) or (TENSOR_FILE.fullmatch(path.name) and path.name not in files):
                path.unlink(missing_ok=True)

    def _write(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        data = to_bytes(tensors)
        write_bytes(self.folder / name, data)
        return {"file": name, "bytes": len(data), "sha256": digest(data)}

    def _check_best(self, metadata: dict[str, Any]) -> dict[str, Any]:
        if metadata.get("best") is not None:
            try:
                self.read(metadata["best"])
            except DAMAGE_ERRORS as error:
                self.report(f"the best weights are damaged and were discarded ({error})")
                metadata["best"] = None
        return metadata

    def _read_or_remove(self, record: dict[str, Any]) -> dict[str, Tensor] | None:
        try:
            return self.read(record)
        except DAMAGE_ERRORS as error:
            self._remove_damaged(self.folder / f"step-{record['step']:08}.json", error)
            return None

    def _records(self) -> list[dict[str, Any]]:
        """Read the intact records, oldest first."""
        records = []
        for path in sorted(self.folder.glob("step-*.json")):
            if not TENSOR_FILE.fullmatch(path.with_suffix(".safetensors").name):
                continue
            try:
                data = path.read_bytes()
                record = json.loads(data)
                del record["digest"]
                check(data == _with_digest(record), f"{path.name} must match its digest, got other bytes")
                _check_record(record, path.stem)
                records.append(record)
            except DAMAGE_ERRORS as error:
                self._remove_damaged(path, error)
        return records

    def _remove_damaged(self, path: Path, error: Exception) -> None:
        self.report(f"{path.stem} is damaged and was skipped ({error})")
        path.unlink(missing_ok=True)


RECORD_KEYS = {"step": int, "scheduled": bool, "file": str, "bytes": int, "sha256": str, "metadata": dict}


def _check_record(record: dict[str, Any], stem: str) -> None:
    """A record must name the tensor file beside it, and the best weights by a bare name."""
    for key, kind in RECORD_KEYS.items():
        value = record.get(key)
        check(isinstance(value, kind), f"{key} of {stem}.json must be {kind.__name__}, got {value!r:.200}")
    is_beside = (f"step-{record['step']:08}", record["file"]) == (stem, f"{stem}.safetensors")
    check(is_beside, f"{stem}.json must name {stem}.safetensors, got {record['file']!r:.200}")
    if (best := record["metadata"].get("best")) is not None:
        is_bare = TENSOR_FILE.fullmatch(best["file"])
        check(is_bare, f"file of the best weights must be a bare name, got {best['file']!r:.200}")


def _with_digest(record: dict[str, Any]) -> bytes:
    """Serialize a record to JSON with its own digest."""
    return json.dumps({**record, "digest": digest(json.dumps(record).encode())}, indent=1).encode()


def training_state(
    model: nn.Module, ema: ExponentialMovingAverage | None, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Return the weights, their moving average and the optimizer state as named tensors."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if ema is not None:
        tensors |= {f"ema.{name}": tensor for name, tensor in ema.weights.items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            tensors |= {f"optimizer.{key}.{names[parameter]}": value for key, value in state.items()}
    return tensors


@torch.no_grad()
def restore_state(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    ema: ExponentialMovingAverage | None,
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """Restore what `training_state` returned."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(distribute_like(_fitting(tensors, f"model.{name}", tensor), tensor))
        if ema is not None:
            ema.weights[name].copy_(distribute_like(_fitting(tensors, f"ema.{name}", tensor), tensor))
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        state: dict[int, dict[str, Tensor]] = {}
        for i, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            saved = {key: f"optimizer.{key}.{names[parameter]}" for key in OPTIMIZER_KEYS}
            state[i] = {key: _as_parameter(tensors, name, parameter) for key, name in saved.items() if name in tensors}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _fitting(tensors: Mapping[str, Tensor], name: str, expected: Tensor) -> Tensor:
    saved = tensors.get(name)
    if saved is None or saved.shape != expected.shape or saved.dtype != expected.dtype:
        got = "none" if saved is None else f"{saved.dtype} {tuple(saved.shape)}"
        needed = f"{name} must be {expected.dtype} {tuple(expected.shape)}"
        raise SightlineError(f"the checkpoint must fit the model: {needed}, got {got}; {FIX}")
    return saved


def _as_parameter(tensors: Mapping[str, Tensor], name: str, parameter: Tensor) -> Tensor:
    """Give optimizer state the device and memory format of its parameter, as fused optimizers index raw memory.

    Scalars stay as they are.
    """
    if not tensors[name].dim():
        return tensors[name]
    saved = distribute_like(_fitting(tensors, name, parameter), parameter)
    return saved if hasattr(parameter, "device_mesh") else torch.empty_like(parameter).copy_(saved)
