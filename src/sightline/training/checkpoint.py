"""Checkpoints: written whole or not at all, checked when they are read.

    checkpoints/step-00000500.safetensors   weights, their running mean, the optimiser's state
    checkpoints/step-00000500.json          written last: step, digest, what else the loop must know
    checkpoints/best-00000400.safetensors   the best weights as they were when they were found

A checkpoint is there once its JSON is. One that is torn or does not match its digest is passed over.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from ..files import whole

BROKEN = (ValueError, KeyError, TypeError, OSError)
"""What reading a torn or corrupt file raises."""


@dataclass(frozen=True)
class Checkpoint:
    """One that was read and found good."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    """What the loop must know beside the tensors."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int):
        self.folder, self.keep = folder, keep
        self.complaints: list[str] = []
        """What was wrong with those that were passed over."""

    def save(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], *, scheduled: bool = True) -> None:
        """Add a checkpoint and drop the oldest; one that a signal asked for is not `scheduled`."""
        name = f"step-{step:08}"
        digest = self._write(f"{name}.safetensors", tensors)
        record = {"step": step, "scheduled": scheduled, **digest, "facts": facts}
        write_bytes(self.folder / f"{name}.json", json.dumps(record, indent=1).encode())
        self._drop_old()

    def save_best(self, step: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Keep these weights as the best; what comes back finds them again and belongs into the facts as `best`."""
        name = f"best-{step:08}.safetensors"
        return {"file": name, **self._write(name, tensors)}

    def newest(self) -> Checkpoint | None:
        """The newest that is whole; what is newer is removed and complained of."""
        for path in reversed(self._records()):
            try:
                record = self._record(path)
                found = Checkpoint(record["step"], self.read(record), record["facts"])
            except BROKEN as error:
                self.complaints.append(f"{path.stem} is torn or corrupt and was passed over ({error})")
                path.unlink(missing_ok=True)
                continue
            return self._with_best(found)
        return None

    def last(self, count: int) -> list[dict[str, Tensor]]:
        """The tensors of the last `count` scheduled checkpoints, oldest first."""
        records = [record for record in map(self._record, self._records()) if record["scheduled"]]
        return [self.read(record) for record in records[-count:]]

    def _with_best(self, found: Checkpoint) -> Checkpoint:
        try:
            self.read(found.facts["best"] or {})
        except BROKEN as error:
            if found.facts["best"]:
                self.complaints.append(
                    f"the best weights are torn or corrupt; the search for them starts anew ({error})"
                )
            found.facts["best"] = None
        return found

    def read(self, record: dict[str, Any]) -> dict[str, Tensor]:
        """The tensors a record speaks of, if they are what was written."""
        path = self.folder / record["file"]
        if path.stat().st_size != record["bytes"]:
            raise ValueError(f"{path.name} must have {record['bytes']} bytes, got {path.stat().st_size}")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != record["sha256"]:
            raise ValueError(f"{path.name} must match its digest, got other bytes")
        return safetensors.torch.load(data)

    def _write(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        data = to_bytes(tensors)
        write_bytes(self.folder / name, data)
        return {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _records(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.json"))

    def _record(self, path: Path) -> dict[str, Any]:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not isinstance(record["step"], int) or "/" in record["file"]:
            raise ValueError(f"{path.name} must be the record of a checkpoint")
        return record

    def _drop_old(self) -> None:
        records = [self._record(path) for path in self._records()]
        scheduled = [record for record in records if record["scheduled"]]
        kept = [*scheduled[-self.keep :], records[-1]]
        steps = {record["step"] for record in kept}
        files = {record["file"] for record in kept}
        files |= {best["file"] for record in kept if (best := record["facts"].get("best"))}
        for record in records:
            if record["step"] not in steps:
                (self.folder / record["file"]).with_suffix(".json").unlink(missing_ok=True)
        for path in [*self.folder.glob("*.safetensors"), *self.folder.glob(".*.part")]:
            if path.name not in files:
                path.unlink(missing_ok=True)


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """As a safetensors file holds them."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"format": "pt"})


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole; if the disk does not let us, say what is lost (nothing) and what to do."""
    try:
        with whole(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} must be written, and the disk said: {error.strerror}; what was saved before is intact: "
            f"make room, then go on with --resume",
        ) from error
