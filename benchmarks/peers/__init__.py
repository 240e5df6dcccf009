"""Other libraries: their versions, their environments, and processes that run them.

A peer that cannot share our environment runs in a process of its own, `python -m benchmarks.peers.NAME`, started with
the Python of its environment. It reads a job as a line of JSON from standard input and answers with one. Peers without
a module here are imported in our process.
"""

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".peers"
"""Environments, by the name of the peer."""


class Peer(NamedTuple):
    """A library that we are compared with."""

    package: str
    """Name on PyPI."""
    version: str
    """The version that the results name."""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


PEERS = {
    "transformers": Peer("transformers", "5.22.2"),
    "easyfsl": Peer("easyfsl", "1.5.0"),
    "bertviz": Peer("bertviz", "1.4.1"),
    "x_transformers": Peer("x-transformers", "2.31.10"),
}


class MissingPeerError(Exception):
    """A peer is not installed or does not run here."""

    def __init__(self, name: str, reason: str = "not installed"):
        super().__init__(f"{PEERS[name].package}: {reason}: pip install {PEERS[name].requirement}")


def installed_version(name: str) -> str:
    """The version of a peer in our own environment."""
    try:
        return importlib.metadata.version(PEERS[name].package)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingPeerError(name) from error


def find_python(name: str, given: dict[str, str]) -> str:
    """The Python of a peer: the one given, that of .peers/NAME, or our own if the peer is installed there."""
    environment = FOLDER / name / "bin" / "python"
    if name in given:
        return given[name]
    if environment.exists():
        return str(environment)
    installed_version(name)
    return sys.executable


class PeerProcess:
    """A peer in its own process."""

    def __init__(self, name: str, python: str, *arguments: object):
        command = [python, "-m", f"benchmarks.peers.{name}", *map(str, arguments)]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        except OSError as error:
            raise MissingPeerError(name, f"{python} does not start") from error
        self.name = name
        self.versions: dict[str, str] = self._read()
        """Of the peer and of its torch."""

    def call(self, **job: Any) -> Any:
        """Run a job and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise MissingPeerError(self.name, "its process has ended, with the error above")
        return json.loads(line)


def serve(name: str, answer: Callable[..., Any]) -> None:
    """In the process of a peer: report versions, then answer jobs until standard input ends."""
    import torch

    output, sys.stdout = sys.stdout, sys.stderr  # what the peer prints is no answer
    versions = {name: importlib.metadata.version(PEERS[name].package), "torch": torch.__version__}
    print(json.dumps(versions), file=output, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=output, flush=True)
