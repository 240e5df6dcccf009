"""The package as a whole: what it costs to load, what it offers, what its command says."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sightline

ROOT = Path(__file__).parents[1]


def run(*args, **kwargs):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, **kwargs)


def test_help_and_import_load_nothing_heavy():
    loaded = run("-c", "import sys, sightline, sightline.cli; print(*sys.modules)").stdout.split()
    assert "sightline.cli" in loaded
    assert not {"torch", "numpy", "matplotlib", "transformers", "safetensors"} & set(loaded)


def test_help_names_every_verb():
    answer = run("-m", "sightline", "--help")
    assert answer.returncode == 0
    assert "demo" in answer.stdout


def test_version_is_the_project_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run("-m", "sightline", "--version").stdout.strip() == f"sightline {project['version']}"


def test_everything_promised_is_there():
    for name in sightline.__all__:
        assert getattr(sightline, name)
    assert set(dir(sightline)) == set(sightline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        sightline.atention  # noqa: B018


def test_a_folder_that_cannot_be_made_is_named_without_a_stack_trace(tmp_path):
    (tmp_path / "file").write_text("")
    answer = run("-m", "sightline", "demo", "--out", tmp_path / "file")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr
