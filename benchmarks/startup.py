"""The time of `sightline --help`, of `import sightline` and of `sightline predict` on top of `import torch`.

`sightline demo` is measured in a folder of its own. Bytecode is cached, as it is for an installed package.
"""

import os
import subprocess
import sys
import tempfile

from .clock import Samples, alternate, wall_seconds
from .record import Report
from .suite import Settings

COMMANDS = {
    "python": ["-c", "pass"],
    "sightline --help": ["-m", "sightline", "--help"],
    "import torch": ["-c", "import torch"],
    "import torch, sightline": ["-c", "import torch, sightline"],
    "import torch, sightline.attention": ["-c", "import torch, sightline.attention"],
    "sightline predict de-en": ["-m", "sightline", "predict", "de-en", "Guten Abend", "--device", "cpu"],
    "sightline demo": ["-m", "sightline", "demo"],
}
ADDED = {
    "import sightline, added to torch": "import torch, sightline",
    "import sightline.attention, added to torch": "import torch, sightline.attention",
    "sightline predict de-en, added to torch": "sightline predict de-en",
}
"""Rows that are the difference of a command to `import torch` in the same round."""


def run(settings: Settings, report: Report) -> None:
    """Measure all commands alternately."""
    names = ["python", "sightline --help"] if settings.tiny else list(COMMANDS)
    samples = alternate({name: lambda name=name: start(COMMANDS[name]) for name in names}, 1 if settings.tiny else 3)
    for name, seconds in samples.items():
        report.add(name, seconds)
    for title, name in ADDED.items():
        if name in samples:
            pairs = zip(samples[name].values, samples["import torch"].values, strict=True)
            report.add(title, Samples(tuple(max(0.0, a - b) for a, b in pairs)))


def start(arguments: list[str]) -> float:
    """Seconds of a new Python process."""
    command = [sys.executable, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        options = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder, "env": environment}
        return wall_seconds(lambda: subprocess.run(command, **options))
