"""`make web` in a folder whose virtual environment consists of scripts that log their arguments."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$2" in
  "import "*) test ! -e missing ;;
esac
"""
LOG = """#!/bin/sh
echo "$(basename "$0") $*$PYTHONDONTWRITEBYTECODE" >> log
"""
INSTALL = (
    "pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable .[web,photos]"
)


@pytest.fixture
def folder(tmp_path):
    """The Makefile, and an environment in which everything is installed."""
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name, text in (("python", PYTHON), ("pip", LOG), ("sightline", LOG)):
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    for stamp in ("ready", "web"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def make_web(folder):
    """The commands that `make web` runs."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # make removes it: pip does not compile the modules
    subprocess.run(["make", "web", "PORT=8001"], cwd=folder, check=True, capture_output=True, env=environment)
    lines = (folder / "log").read_text().splitlines()
    (folder / "log").unlink()
    return lines


def test_make_web_installs_what_is_missing(folder):
    assert make_web(folder) == ["sightline serve --port 8001"]
    (folder / "missing").touch()  # a package was removed after the stamp was written
    assert make_web(folder) == [INSTALL, "sightline serve --port 8001"]
    (folder / "missing").unlink()
    (folder / ".venv" / "web").unlink()
    assert make_web(folder) == [INSTALL, "sightline serve --port 8001"]


def test_make_web_imports_a_module_of_every_package_of_its_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [modules] = re.findall(r"^WEB_MODULES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    owners = packages_distributions()
    imported = {_normalized(name) for module in modules.split(", ") for name in owners[module]}
    required = {_normalized(re.split(r"[<>=\[]", line)[0]) for line in (*extras["web"], *extras["photos"])}
    assert imported == required


def _normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()
