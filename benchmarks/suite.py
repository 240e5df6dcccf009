"""The benchmark suite: which benchmarks there are, how they are selected and run, and where results are written."""

import argparse
import importlib
import os
import platform
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from . import page, record
from .clock import device_name
from .peers import PEERS, MissingPeerError, PeerProcess, find_python, installed_version
from .record import Report

BENCHMARKS = {
    "attention": "Attention",
    "few_shot": "Few-shot episodes",
    "translation": "Translation training",
    "decoding": "Decoding",
    "image_classifier": "Image classifier",
    "viewer": "Viewer",
    "startup": "Startup",
    "growth": "Growth with length",
    "recording": "Recording attention",
    "training": "Training steps",
}
"""Titles by name. The module of the same name has a docstring and `run(settings, report)`."""
CPU = tuple(name for name in BENCHMARKS if name != "training")
"""Benchmarks of `python -m benchmarks.cpu` if none are named. The profile of training steps is one of a GPU."""
GPU = tuple(name for name in BENCHMARKS if name not in ("viewer", "startup"))
RESULTS = Path(__file__).parent / "results"
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Where and at which size to measure."""

    device: str
    tiny: bool = False
    """Sizes that only show that everything runs."""
    pythons: dict[str, str] = field(default_factory=dict)
    """Interpreters of peers, by name."""
    data: Path = Path("data")
    """Folder of data sets."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the peers that were used; filled while benchmarks run."""

    def pick(self, *, tiny: T, cpu: T, gpu: T) -> T:
        """The value for this size and device."""
        return tiny if self.tiny else gpu if self.device == "cuda" else cpu

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    @contextmanager
    def peer(self, name: str, report: Report, *arguments: object) -> Iterator[PeerProcess | None]:
        """The process of a peer; None if it is missing, which the report then says."""
        process = None
        try:
            python = find_python(name, self.pythons)
            process = PeerProcess(name, python, torch.get_num_threads(), self.device, *arguments)
            self.versions[name] = process.versions[name]
            note_version(name, process.versions[name], report)
            if process.versions["torch"] != torch.__version__:
                report.note(f"{name} runs on torch {process.versions['torch']}.")
        except MissingPeerError as error:
            report.skip(error)
        try:
            yield process
        finally:
            if process is not None:
                process.close()

    def has_peer(self, name: str, report: Report) -> bool:
        """Whether a peer is installed in our own environment; the report says if it is not."""
        try:
            self.versions[name] = installed_version(name)
            note_version(name, self.versions[name], report)
        except MissingPeerError as error:
            report.skip(error)
            return False
        return True


def note_version(name: str, version: str, report: Report) -> None:
    """Note a peer whose version is not that of `PEERS`."""
    if version != PEERS[name].version:
        report.note(f"{name} has version {version}, not {PEERS[name].version}.")


def main(device: str, arguments: Sequence[str] | None = None) -> None:
    """Run benchmarks by name and write the record and the page."""
    settings, names, out = parse(device, arguments)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu needs a CUDA device; --device cpu runs it on the CPU")
    torch.manual_seed(0)
    print(
        f"{device_name(settings.device)}, torch {torch.__version__}; ratios are ours / theirs, with their middle half"
    )
    if settings.tiny:
        print("Tiny sizes: these numbers only show that the suite runs.")
    failed = []
    for name in names:
        report = run(name, settings)
        results = write(name, report, settings, out)
        failed += [name] if report.failed else []
    print(f"\nwrote {out} and {page.write(results, out.with_suffix('.html'))}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def write(name: str, report: Report, settings: Settings, out: Path) -> dict[str, Any]:
    """Add the results of one benchmark to the record, so that a later failure does not lose them."""
    new = {
        "machine": {"device": device_name(settings.device), "cpu": processor(), "system": platform.system()},
        "tiny": settings.tiny,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **settings.versions},
        "benchmarks": {name: report.to_dict()},
    }
    results = record.merge(record.read(out), new)
    results["benchmarks"] = {key: results["benchmarks"][key] for key in BENCHMARKS if key in results["benchmarks"]}
    record.write(out, results)
    return results


def parse(device: str, arguments: Sequence[str] | None) -> tuple[Settings, Sequence[str], Path]:
    """Settings, names of benchmarks and the path of the record from the command line."""
    defaults = GPU if device == "cuda" else CPU
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{'gpu' if device == 'cuda' else 'cpu'}")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: {len(defaults)})"
    )
    parser.add_argument("--out", type=Path, help="the record, a .json file; the page is written beside it")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets (default: data)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test the suite")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"NAME must be one of {', '.join(BENCHMARKS)}, got {', '.join(unknown)}")
    pythons = dict(pair.partition("=")[::2] for pair in options.peer)
    if not pythons.keys() <= PEERS.keys() or not all(pythons.values()):
        parser.error(f"--peer must be NAME=PYTHON with one of {', '.join(PEERS)}, got {' '.join(options.peer)}")
    name = "gpu" if device == "cuda" else "cpu"
    out = options.out or RESULTS / f"{name}{'-tiny' if options.tiny else ''}.json"
    return Settings(options.device, options.tiny, pythons, options.data), options.names or defaults, out


def run(name: str, settings: Settings) -> Report:
    """Run one benchmark."""
    report, start = Report(), time.perf_counter()
    print(f"\n{name}: {BENCHMARKS[name]}")
    try:
        importlib.import_module(f".{name}", __package__).run(settings, report)
    except ImportError as error:
        report.skip(f"{error.name} is not installed: pip install -e '.[dev]'")
    except Exception as error:  # the other benchmarks still run
        traceback.print_exc()
        report.failed = f"{type(error).__name__}: {error}"
    print(f"{'':8} {'':14}  {time.perf_counter() - start:.0f} s")
    return report


def processor() -> str:
    """The name of the CPU and its number of cores."""
    name = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {os.cpu_count()} cores"
