"""Checkpoints: written whole or not at all, checked when they are read.

    checkpoints/step-00000500.safetensors   weights, their running mean, the optimizer's state
    checkpoints/step-00000500.json          written last: step, digest, what else the loop must know
    checkpoints/best-00000400.safetensors   the best weights as they were when they were found

A checkpoint is there once its JSON is. Both files carry a digest; one that is torn or does not match is passed over.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from ..errors import SightlineError
from ..files import write_bytes
from ..weights import to_bytes

BROKEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError)
"""What reading a torn or corrupt file raises."""
NAME = re.compile(r"(step|best)-(\d{8})\.safetensors")
"""Files of tensors that a run makes; all others in the folder belong to somebody else."""
PART = re.compile(r"\.(step|best)-\d{8}\.(safetensors|json)\.[0-9a-f]{8}\.part")


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
        write_bytes(self.folder / f"{name}.json", _sealed(record))
        self.drop_old()

    def save_best(self, step: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Keep these weights as the best; what comes back finds them again and belongs into the facts as `best`."""
        name = f"best-{step:08}.safetensors"
        return {"file": name, **self._write(name, tensors)}

    def newest(self) -> Checkpoint | None:
        """The newest that is whole; what is newer is removed and complained of."""
        for record in reversed(self._records()):
            tensors = self._tensors(record)
            if tensors is not None:
                return self._with_best(Checkpoint(record["step"], tensors, record["facts"]))
        return None

    def last(self, count: int) -> list[dict[str, Tensor]]:
        """The tensors of the last `count` scheduled checkpoints, oldest first, less those that are torn."""
        records = [record for record in self._records() if record["scheduled"]]
        return [tensors for tensors in map(self._tensors, records[-count:]) if tensors is not None]

    def _with_best(self, found: Checkpoint) -> Checkpoint:
        if found.facts.get("best"):
            try:
                self.read(found.facts["best"])
            except BROKEN as error:
                self.complaints.append(f"the best weights are torn or corrupt; the search starts anew ({error})")
                found.facts["best"] = None
        return found

    def read(self, record: dict[str, Any]) -> dict[str, Tensor]:
        """The tensors a record speaks of, if they are what was written."""
        if not NAME.fullmatch(record["file"]):
            raise SightlineError(f"file must be the bare name of a checkpoint, got {record['file']!r}")
        path = self.folder / record["file"]
        if path.stat().st_size != record["bytes"]:
            raise SightlineError(f"{path.name} must have {record['bytes']} bytes, got {path.stat().st_size}")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != record["sha256"]:
            raise SightlineError(f"{path.name} must match its digest, got other bytes")
        return safetensors.torch.load(data)

    def _write(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        data = to_bytes(tensors)
        write_bytes(self.folder / name, data)
        return {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _tensors(self, record: dict[str, Any]) -> dict[str, Tensor] | None:
        try:
            return self.read(record)
        except BROKEN as error:
            self._pass_over(self.folder / f"step-{record['step']:08}.json", error)
            return None

    def _records(self) -> list[dict[str, Any]]:
        """Those that can be read, oldest first."""
        records = []
        for path in sorted(self.folder.glob("step-*.json")):
            if not NAME.fullmatch(path.with_suffix(".safetensors").name):
                continue
            try:
                data = path.read_bytes()
                record = json.loads(data)
                del record["seal"]
                if data != _sealed(record):
                    raise SightlineError(f"{path.name} must match its digest, got other bytes")
                _check_names(record, path.stem)
                records.append(record)
            except BROKEN as error:
                self._pass_over(path, error)
        return records

    def _pass_over(self, path: Path, error: Exception) -> None:
        self.complaints.append(f"{path.stem} is torn or corrupt and was passed over ({error})")
        path.unlink(missing_ok=True)

    def drop_old(self) -> None:
        """Keep the newest; what a process that was killed on the way left of others goes too."""
        records = self._records()
        if not records:
            return
        scheduled = [record for record in records if record["scheduled"]]
        kept = [*scheduled[-self.keep :], records[-1]]
        steps = {record["step"] for record in kept}
        files = {record["file"] for record in kept}
        files |= {best["file"] for record in kept if (best := record["facts"].get("best"))}
        for record in records:
            if record["step"] not in steps:
                (self.folder / f"step-{record['step']:08}.json").unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if PART.fullmatch(path.name) or (NAME.fullmatch(path.name) and path.name not in files):
                path.unlink(missing_ok=True)


def _check_names(record: dict[str, Any], stem: str) -> None:
    """A record names the tensors beside it, and the best weights by a bare name."""
    if stem != f"step-{record['step']:08}" or record["file"] != f"{stem}.safetensors":
        raise SightlineError(f"{stem}.json must be about the step in its name, got {record['file']!r:.200}")
    best = record["facts"].get("best")
    if best is not None and not NAME.fullmatch(best["file"]):
        raise SightlineError(
            f"file of the best weights must be the bare name of a checkpoint, got {best['file']!r:.200}"
        )


def _sealed(record: dict[str, Any]) -> bytes:
    """As JSON, with a digest of itself."""
    seal = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    return json.dumps({**record, "seal": seal}, indent=1).encode()
