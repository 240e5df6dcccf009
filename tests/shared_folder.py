"""A folder that the first worker of a test run builds and that all workers use."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_folder(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The folder `name`, after `build(folder)`, which only one worker calls. Tests must not change it for others."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, built = base / name, base / f"{name}.built"
    with FileLock(base / f"{name}.lock"):
        if not built.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a build that failed
            folder.mkdir()
            build(folder)
            built.touch()
    return folder
