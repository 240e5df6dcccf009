"""Record the attention of many models of other packages, and print what is seen.

    python -m benchmarks.sweep transformers --tests CHECKOUT   # a checkout of transformers with its folder tests/
    python -m benchmarks.sweep timm                            # also: vit_pytorch, diffusers

Models are small and have random weights. Those of transformers are built by its own tests: the classes are listed in
`sweep_transformers.txt`, and CHECKOUT must be of the installed version or near it. Each model runs without and with a
recording. A model is

- seen: every attention is recorded;
- partial: a warning names attention that is not recorded;
- refused: no attention can be recorded, and the error names what was missed;
- without: it has no attention, and the error says that there is none;
- wrong: its outputs differ by more than 1e-6, a map differs from that of `output_attentions=True` with the eager
  implementation, or attention is missed without a word (silent);
- unbuilt: the test of transformers does not build or run it with these versions.

Whether attention is missed without a word is decided by the operations that ran: every softmax over the last of three
or more dimensions and every fused attention must be in a module that has a map or is named as missed, unless the module
is listed in `OTHER_SOFTMAX`. A sweep writes its progress beside its table and continues where it was broken off.
"""

import argparse
import contextlib
import importlib.metadata
import json
import random
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sightline.attention import Record, record_attention
from sightline.errors import SightlineError, SightlineWarning
from sightline.files import atomic_write

RESULTS = Path(__file__).parent / "results"
STATUSES = ("seen", "partial", "refused", "without", "wrong", "unbuilt")
MAX_DIFFERENCE = 1e-6
"""Of outputs with and without a recording."""
MAX_MAP_DIFFERENCE = 1e-4
"""Of a map and the one of the eager implementation."""
TIMEOUT = 120
"""Seconds of CPU time for one model."""
OTHER_SOFTMAX = {
    "*Router*": "experts",
    "*HyperConnection": "residual streams",
    "*CTCEncoder": "characters",
    "*RecHead": "characters",
    "SLANe*Head": "characters",
    "Ovis2VisionModel": "a visual vocabulary",
    "EfficientLoFTRForKeypointMatching": "matches of keypoints",
    "EsmForProteinFolding": "bins of distances",
}
"""What a softmax is over that is not attention, by patterns of the class name of its module."""


@dataclass
class Case:
    """One model and its inputs."""

    model: nn.Module
    run: Callable[[nn.Module], Any]
    """Calls the model and returns its outputs."""
    eager: Callable[[], tuple[list[Tensor], Record] | None] = lambda: None
    """The maps that the model returns with its eager implementation, and its record; None if it returns none."""


@dataclass
class Outcome:
    """What a recording of one model shows."""

    name: str
    status: str
    reason: str = ""
    maps: int = 0
    equal_maps: int = 0
    """Maps of the eager implementation that the record has."""
    eager_maps: int = 0
    difference: float = 0.0
    """Largest difference of an output."""
    unaccounted: list[str] = field(default_factory=list)


def sweep(cases: dict[str, Callable[[], Case]], progress: Path) -> list[Outcome]:
    """The outcomes of all cases; those in the file `progress` are not computed again."""
    done = {}
    if progress.is_file():
        done = {o["name"]: Outcome(**o) for o in map(json.loads, progress.read_text("utf-8").splitlines())}
    with progress.open("a", encoding="utf-8") as file:
        for i, (name, build) in enumerate(cases.items()):
            if name not in done:
                done[name] = outcome = examine(name, build)
                file.write(json.dumps(vars(outcome)) + "\n")
                file.flush()
                print(f"{i + 1:4} of {len(cases)}  {line(outcome)}", flush=True)
    return [done[name] for name in cases]


def examine(name: str, build: Callable[[], Case]) -> Outcome:
    """Build a model, run it without and with a recording, and compare."""
    with _time_limit(TIMEOUT), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad():
                _seed()
                case = build()
                case.model.eval()
                expected, ran = _operations(case)
        except Exception as error:
            return Outcome(name, "unbuilt", _one_line(error))
        try:
            with torch.no_grad():
                return _compare(name, case, expected, ran)
        except Exception as error:
            traceback.print_exc()
            return Outcome(name, "wrong", f"recording raised {_one_line(error)}")


def _compare(name: str, case: Case, expected: list[Tensor], ran: list[tuple[str, str, str]]) -> Outcome:
    record, is_refused, outputs = None, False, []
    _seed()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with record_attention(case.model) as record:
                outputs = list(_tensors(case.run(case.model)))
        except SightlineError:
            is_refused = True
        warned = any(issubclass(w.category, SightlineWarning) for w in caught)
    assert record is not None
    outcome = Outcome(name, "seen", maps=len(record), difference=_difference(expected, outputs))
    names = {*record.names(), *record.missed}
    outcome.unaccounted = sorted(
        {
            f"{module} ({class_name}) {operation}"
            for module, class_name, operation in ran
            if not any(module == n or module.startswith(f"{n}.") or n == type(case.model).__name__ for n in names)
            and not any(fnmatch(class_name, pattern) for pattern in OTHER_SOFTMAX)
        }
    )
    eager = case.eager() if record.maps else None
    if eager is not None:
        maps = [x for x in eager[0] if _is_map(x)]
        outcome.eager_maps = len(maps)
        outcome.equal_maps = _equal_maps(maps, record)
        if outcome.equal_maps < len(maps):  # both implementations of the model may differ
            outcome.equal_maps = max(outcome.equal_maps, _equal_maps(maps, eager[1]))
    if is_refused:
        outcome.status = "refused" if record.missed else "without"
        outcome.reason = record.missed_text() if record.missed else ""
    elif record.missed:
        outcome.status, outcome.reason = "partial", record.missed_text()
    silent = outcome.unaccounted or (record.missed and not is_refused and not warned)
    if outcome.difference > MAX_DIFFERENCE:
        outcome.status, outcome.reason = "wrong", f"outputs moved by {outcome.difference:.2g}"
    elif silent:
        outcome.status, outcome.reason = "wrong", f"silent: {'; '.join(outcome.unaccounted)}"
    elif outcome.equal_maps < outcome.eager_maps and outcome.status == "seen":
        outcome.status, outcome.reason = "wrong", "maps differ from those of the eager implementation"
    return outcome


def _operations(case: Case) -> tuple[list[Tensor], list[tuple[str, str, str]]]:
    """The outputs of a model without a recording, and its attention operations: module, class name, operation.

    The model runs once before, because some fill caches or replace modules in their first call.
    """
    case.run(case.model)
    running: list[nn.Module] = []
    names = {module: name or type(module).__name__ for name, module in case.model.named_modules()}
    mode = _AttentionOperations(lambda: running[-1] if running else case.model)
    with contextlib.ExitStack() as hooks:
        for module in names:
            enter = module.register_forward_pre_hook(lambda module, _: running.append(module))
            leave = module.register_forward_hook(lambda *_: running.pop() and None, always_call=True)
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        _seed()
        with mode:
            case.run(case.model)
    _seed()
    outputs = list(_tensors(case.run(case.model)))
    return outputs, [(names[module], type(module).__name__, operation) for module, operation in mode.operations]


class _AttentionOperations(TorchDispatchMode):
    """Lists softmaxes over the last of three or more dimensions, and fused attention."""

    def __init__(self, running: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.running, self.operations = running, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in ("_softmax", "_safe_softmax", "_log_softmax"):
            x, dim = args[0], args[1]
            if x.dim() >= 3 and dim in (-1, x.dim() - 1) and name != "_log_softmax":
                self.operations.append((self.running(), f"softmax over {tuple(x.shape)}"))
        elif "scaled_dot_product" in name or "multi_head_attention" in name or "transformer_encoder_layer" in name:
            self.operations.append((self.running(), name))
        return func(*args, **(kwargs or {}))


def _equal_maps(eager_maps: list[Tensor], record: Record) -> int:
    """How many maps of the eager implementation are in the record."""
    return sum(any(_same_map(expected, m.weights) for m in record) for expected in eager_maps)


def _is_map(x: Tensor) -> bool:
    """Whether rows are probabilities. Some models return scores or states as attentions."""
    sums = x.float().sum(-1)
    return x.dim() >= 3 and bool((x >= 0).all()) and bool((((sums - 1).abs() < 1e-2) | (sums == 0)).all())


def _same_map(expected: Tensor, weights: Tensor) -> bool:
    """Whether both are equal, also if `expected` is the mean over heads.

    It may lack queries at the end (padding) and have rows of zeros (padding, or tokens with global attention).
    Deformable attention is returned with queries before heads.
    """
    batch, heads, queries, _ = weights.shape
    if heads != queries and expected.shape[:-1] == (batch, queries, heads):
        expected = expected.transpose(1, 2)
    if expected.dim() == 4:
        weights = weights[:, :, : expected.shape[2]]
    means = weights.mean(1, keepdim=True)
    candidates = (weights, means.expand_as(weights), means)
    return any(
        expected.numel() == x.numel()
        and expected.shape[-1] == x.shape[-1]
        and _largest_difference(expected.float().reshape(x.shape), x.float()) < MAX_MAP_DIFFERENCE
        for x in candidates
    )


def _largest_difference(expected: Tensor, weights: Tensor) -> float:
    """Of rows that are not zero in `expected`."""
    is_empty = (expected == 0).all(-1, keepdim=True)
    return float((expected - weights).masked_fill(is_empty, 0.0).abs().max())


def _difference(expected: list[Tensor], outputs: list[Tensor]) -> float:
    """The largest absolute difference relative to the largest value; infinite if shapes differ."""
    if not outputs and expected:
        return 0.0  # refused before the outputs were known
    if [x.shape for x in expected] != [x.shape for x in outputs]:
        return float("inf")
    differences = [0.0]
    for a, b in zip(expected, outputs, strict=True):
        if a.is_floating_point() and not torch.equal(a, b):
            a, b = a.double(), b.double()
            same = (a == b) | (a.isnan() & b.isnan())
            difference = (a - b).abs().masked_fill(same, 0.0)
            differences.append(float(difference.max() / max(1.0, float(a[a.isfinite()].abs().max()))))
        elif not torch.equal(a, b):
            differences.append(float("inf"))
    return max(differences)


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs.detach().clone()
    elif isinstance(outputs, dict):
        for value in outputs.values():
            yield from _tensors(value)
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from _tensors(value)


def _seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def line(outcome: Outcome) -> str:
    """One row of the table."""
    eager = f"{outcome.equal_maps} of {outcome.eager_maps} equal" if outcome.eager_maps else ""
    maps = f"{outcome.maps} maps" if outcome.maps else ""
    return f"{outcome.status:<8} {outcome.name:<44} {maps:<9} {eager:<15} {outcome.reason}".rstrip()


def table(package: str, outcomes: list[Outcome]) -> str:
    """Counts, then one row for each model."""
    counts = Counter(outcome.status for outcome in outcomes)
    moved = sum(outcome.difference > MAX_DIFFERENCE for outcome in outcomes)
    silent = sum(outcome.reason.startswith("silent") for outcome in outcomes)
    eager = [outcome for outcome in outcomes if outcome.eager_maps]
    equal = sum(outcome.equal_maps == outcome.eager_maps for outcome in eager)
    built = len(outcomes) - counts["unbuilt"]
    lines = [
        f"python -m benchmarks.sweep {package}",
        f"{package} {importlib.metadata.version(package.replace('_', '-'))}, torch {torch.__version__}",
        f"{built} models: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]),
        f"outputs moved: {moved}, silent partial records: {silent}",
        *([f"equal to output_attentions of the eager implementation: {equal} of {len(eager)} models"] if eager else []),
        "",
    ]
    order = {status: i for i, status in enumerate((*STATUSES[1:], "seen"))}
    return "\n".join([*lines, *map(line, sorted(outcomes, key=lambda o: order[o.status]))]) + "\n"


def main() -> None:
    """Sweep one package and write its table."""
    from . import sweep_models

    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__.split("\n\n")[0])
    parser.add_argument("package", choices=sorted(sweep_models.PACKAGES))
    parser.add_argument("--tests", type=Path, help="a checkout of transformers that has the folder tests")
    parser.add_argument("--only", default="*", help="pattern of model names; nothing is written")
    parser.add_argument("--again", action="store_true", help="forget the progress of an earlier sweep")
    options = parser.parse_args()
    if options.package == "transformers" and not (options.tests and (options.tests / "tests" / "models").is_dir()):
        parser.error(f"--tests must be a checkout of transformers with tests/models, got {options.tests}")
    cases = sweep_models.PACKAGES[options.package](options.tests)
    cases = {name: build for name, build in cases.items() if fnmatch(name, options.only)}
    if options.only != "*":
        for name, build in cases.items():
            print(line(examine(name, build)))
        return
    out = RESULTS / f"sweep-{options.package}.txt"
    progress = out.with_name(f"{out.stem}-tiny.jsonl")
    if options.again:
        progress.unlink(missing_ok=True)
    text = table(options.package, sweep(cases, progress))
    with atomic_write(out) as part:
        part.write_text(text, encoding="utf-8")
    print(text.partition("\n\n")[0], f"\nwrote {out}")


if __name__ == "__main__":
    main()
