"""Export of a model to ONNX or to a program of `torch.export`, checked against the original.

A task describes its models as an `Export`; `write` converts them. The files need no Sightline to run.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .errors import MissingDependencyError, SightlineError, check
from .files import atomic_write, versions, write_bytes
from .progress import Progress

Format = Literal["onnx", "torch"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torch": ".pt2"}
METADATA = "export.json"
MAX_DIFFERENCE = 1e-4
"""Largest difference from the output of the original, relative to the largest value where that is above 1."""

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """A dimension of inputs that varies."""

    name: str
    min: int = 1
    max: int | None = None
    """None for any size."""


BATCH = Dimension(name="batch")


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """A module to export. Its `forward` takes tensors by name and returns one tensor or a tuple of them."""

    name: str
    module: nn.Module
    examples: list[Tensors]
    """Inputs of different sizes. The first is traced, where every varying dimension has a size of its own, above 1; the
    export is checked on all."""
    dimensions: dict[str, dict[int, Dimension]]
    """The varying dimensions of each input."""
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Export:
    """The models of a task, and what is needed to use them."""

    parts: list[Part]
    metadata: dict[str, Any]
    """Plain JSON values: classes, sizes, token ids."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Further files by name, such as tokenizers."""


@dataclass(frozen=True)
class Exported:
    """The files of an export."""

    files: tuple[Path, ...]
    differences: dict[str, float]
    """The largest difference of each part from the original."""
    checks: int
    """Examples that were compared."""

    def __str__(self) -> str:
        lines = [f"wrote {path}" for path in self.files]
        worst = max(self.differences.values())
        return "\n".join([*lines, f"checked on {self.checks} inputs: largest difference {worst:.1e}"])


def write(export: Export, folder: Path, format: Format, progress: Progress = lambda *_: None) -> Exported:
    """Convert all parts, check them, and write them to a folder. `progress` gets finished steps, 3 of each part."""
    if format == "onnx":
        _check_onnx()
    files, differences = [], {}
    with ExitStack() as written:  # no part replaces an older file before all are checked
        for i, part in enumerate(export.parts):
            path = folder / f"{part.name}{SUFFIXES[format]}"
            file = written.enter_context(atomic_write(path))
            with torch.no_grad(), _quiet():
                program = trace(part)
                progress(3 * i + 1, 3 * len(export.parts))
                _save_onnx(program, part, file) if format == "onnx" else _save_program(program, file)
                progress(3 * i + 2, 3 * len(export.parts))
                differences[part.name] = check_part(part, file, format)
                progress(3 * i + 3, 3 * len(export.parts))
            files.append(path)
    for name, content in export.files.items():
        write_bytes(folder / name, content)
        files.append(folder / name)
    described = {part.name: _describe(part) for part in export.parts}
    metadata = {"format": format, **export.metadata, "models": described, "versions": versions()}
    write_bytes(folder / METADATA, json.dumps(metadata, indent=1, ensure_ascii=False).encode())
    checks = sum(len(part.examples) for part in export.parts)
    return Exported((*files, folder / METADATA), differences, checks)


def trace(part: Part) -> torch.export.ExportedProgram:
    """The part as a program."""
    dims: dict[str, Any] = {}

    def dim(dimension: Dimension) -> Any:
        sizes = {"min": dimension.min} | ({} if dimension.max is None else {"max": dimension.max})
        return dims.setdefault(dimension.name, torch.export.Dim(dimension.name, **sizes))

    example = part.examples[0]
    shapes = {name: {axis: dim(d) for axis, d in part.dimensions.get(name, {}).items()} for name in example}
    return torch.export.export(part.module.eval(), (), kwargs=example, dynamic_shapes=shapes, strict=False)


def check_part(part: Part, path: Path, format: Format) -> float:
    """The largest difference of an exported part from the original on all examples; an error if it is too large."""
    largest = 0.0
    run = _onnx_runner(path) if format == "onnx" else _torch_runner(path)
    for example in part.examples:
        expected = _as_tuple(part.module(**example))
        for name, ours, theirs in zip(part.outputs, expected, run(example), strict=True):
            rule = f"the exported {part.name} must give the output {name} of the original"
            sizes = {key: tuple(tensor.shape) for key, tensor in example.items()}
            is_same_shape = ours.shape == theirs.shape
            check(is_same_shape, f"{rule}, {tuple(ours.shape)}, got {tuple(theirs.shape)} for inputs {sizes}")
            if not ours.numel():
                continue
            scale = max(1.0, float(ours.abs().max()))
            difference = float((ours.double() - theirs.double()).abs().max()) / scale
            is_equal = difference <= MAX_DIFFERENCE  # false for NaN
            check(is_equal, f"{rule} to {MAX_DIFFERENCE:g}, got a difference of {difference:.2g} for inputs {sizes}")
            largest = max(largest, difference)
    return largest


def _onnx_runner(path: Path) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}

    def run(example: Tensors) -> list[Tensor]:
        arrays = session.run(None, {name: tensor.numpy() for name, tensor in example.items() if name in names})
        return [torch.from_numpy(array) for array in arrays]

    return run


def _torch_runner(path: Path) -> Any:
    with path.open("rb") as file:
        module = torch.export.load(file).module()
    return lambda example: _as_tuple(module(**example))


def _save_onnx(program: torch.export.ExportedProgram, part: Part, path: Path) -> None:
    names: dict[str, Any] = {"input_names": list(part.examples[0]), "output_names": list(part.outputs)}
    try:
        converted = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    except torch.onnx.OnnxExporterError as error:
        rule = f"format must be torch for the part {part.name!r}, which has operations that ONNX lacks"
        raise SightlineError(f"{rule} (such as the fit of a ridge regression), got onnx") from error
    assert converted is not None
    converted.save(str(path), external_data=False)


def _save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    with path.open("wb") as file:  # torch warns about a path that does not end in .pt2
        torch.export.save(program, file)


def _describe(part: Part) -> dict[str, Any]:
    """Inputs and outputs of a part: names, types and shapes, in which a name stands for a varying dimension."""
    inputs = {}
    for name, tensor in part.examples[0].items():
        varying = part.dimensions.get(name, {})
        shape = [varying[axis].name if axis in varying else size for axis, size in enumerate(tensor.shape)]
        inputs[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}
    limits = {d.name: d.max for axes in part.dimensions.values() for d in axes.values() if d.max is not None}
    return {"inputs": inputs, "outputs": list(part.outputs), "max_sizes": limits}


def _as_tuple(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        rule = "an export to ONNX must have onnx, onnxscript and onnxruntime installed"
        raise MissingDependencyError(f"{rule}, got no {error.name}: pip install 'sightline[export]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch's exporter and the optimizer of ONNX report about themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def random_lengths(batch: int, tokens: int) -> Tensor:
    """A mask of rows of different lengths, the first one full: bool (batch, tokens)"""
    lengths = tokens - torch.arange(batch) % tokens
    return torch.arange(tokens) < lengths[:, None]
