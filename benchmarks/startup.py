"""The time of `sightline --help`, and of `import sightline` on top of `import torch`."""

import subprocess
import sys

from .clock import Samples, alternate, wall_seconds
from .record import Report
from .suite import Settings

COMMANDS = {
    "python": ["-c", "pass"],
    "sightline --help": ["-m", "sightline", "--help"],
    "import torch": ["-c", "import torch"],
    "import torch, sightline": ["-c", "import torch, sightline"],
    "import torch, sightline.attention": ["-c", "import torch, sightline.attention"],
}


def run(settings: Settings, report: Report) -> None:
    """Measure all commands alternately."""
    names = ["python", "sightline --help"] if settings.tiny else list(COMMANDS)
    samples = alternate({name: lambda name=name: start(COMMANDS[name]) for name in names}, 1 if settings.tiny else 3)
    for name, seconds in samples.items():
        report.add(name, seconds)
    for name in ("sightline", "sightline.attention"):
        if f"import torch, {name}" in samples:
            pairs = zip(samples[f"import torch, {name}"].values, samples["import torch"].values, strict=True)
            report.add(f"import {name}, added to torch", Samples(tuple(max(0.0, a - b) for a, b in pairs)))


def start(arguments: list[str]) -> float:
    """Seconds of a new Python process."""
    command = [sys.executable, *arguments]
    return wall_seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
