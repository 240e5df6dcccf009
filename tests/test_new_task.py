"""A fourth task, defined in `tagging.py`, is trained, evaluated, predicted and resumed through the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tagging
from sightline import registry
from sightline.cli import app


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(registry.TASKS, "tagging", tagging.SPEC)


def sightline(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_a_task_costs_at_most_150_lines():
    assert len(Path(tagging.__file__).read_text().splitlines()) <= 150


def test_a_new_task_works_through_every_command(tmp_path):
    run = tmp_path / "run"
    output = sightline("train", "task=tagging", "training.device=cpu", f"out={run}")
    assert "validation accuracy 1.0000" in output
    assert "accuracy  1.0000" in sightline("evaluate", run)
    assert json.loads((run / "evaluation.json").read_text())["accuracy"] == 1
    page = tmp_path / "page.html"
    assert "the bird runs: D N V" in sightline("predict", run, "the bird runs", "cats run", "--show", page)
    assert page.is_file()
    table = sightline("predict", run, "xyz", "cats run", "--format", "csv", status=2)
    assert "input,tags,error\n" in table
    assert 'cats run,"[""N"", ""V""]",\n' in table
    records = sightline("predict", run, "cats run", "xyz", "--format", "jsonl", status=2)
    first, second = (json.loads(line) for line in records.splitlines() if line.startswith("{"))
    assert first == {"input": "cats run", "tags": ["N", "V"]}
    assert "got ['xyz']" in second["error"]


def test_a_new_task_is_resumed(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    common = ("task=tagging", "training.device=cpu", "training.checkpoint_every=10")
    sightline("train", *common, f"out={whole}")
    sightline("train", *common, f"out={run}")
    for path in (run / "checkpoints").glob("step-00000060.*"):
        path.unlink()
    (run / "README.md").unlink()
    sightline("train", run, "--resume")
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
