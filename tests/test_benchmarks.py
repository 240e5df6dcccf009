"""The benchmarks can be opened, and the one that defends constants measures the shipped code."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from sightline import config
from sightline.classifier import calibration as confidence
from sightline.classifier import queries as questions
from sightline.models.few_shot import FewShot, FewShotConfig
from sightline.tasks.few_shot.task import FewShotData, Recipe
from sightline.weights import to_bytes

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ELSEWHERE = ("easyfsl_peer.py",)
"""Runs in another environment."""
SERVING = ("clock.py", "marian.py")
"""What other benchmarks import."""


def scripts():
    return sorted(path.name for path in BENCHMARKS.glob("*.py"))


@pytest.fixture
def opened(monkeypatch):
    """A benchmark as its own command sees it, not run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: runpy.run_path(str(BENCHMARKS / name), run_name="opened")


@pytest.mark.parametrize("name", scripts())
def test_a_benchmark_compiles_and_says_what_it_measures(name):
    code = compile((BENCHMARKS / name).read_text(encoding="utf-8"), name, "exec", dont_inherit=True)
    assert code.co_consts[0].strip()


@pytest.mark.parametrize("name", [name for name in scripts() if name not in ELSEWHERE])
def test_a_benchmark_finds_what_it_imports_and_has_a_command_unless_it_serves_others(name, opened):
    assert ("main" in opened(name)) == (name not in SERVING)


@pytest.fixture
def run(tmp_path):
    """A few-shot model that has learned nothing, as a run leaves it: small, with four tokens of an image."""
    torch.manual_seed(0)
    form = FewShotConfig(image_size=32, channels=1, backbone_channels=(3, 5, 7, 8), num_heads=2, tokens="patches")
    (tmp_path / "config.yaml").write_text(config.dump(Recipe(data=FewShotData(image_size=32), model=form)))
    (tmp_path / "model.safetensors").write_bytes(to_bytes(FewShot(form).state_dict()))
    return tmp_path


def test_classifiers_as_they_are_judged_on_test_classes(run, opened, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["confidence.py", str(run), "--episodes", "1", "--test"])
    opened("confidence.py")["main"]()
    head, table = re.split(r"\n\n", capsys.readouterr().out.rstrip())
    assert " test classes" in head
    assert [line.split()[0] for line in table.split("\n")[1:]] == list(opened("confidence.py")["SETTINGS"])


def test_constants_are_shown_beside_other_values_and_stay_as_they_are(run, opened, monkeypatch, capsys):
    before = [dict(vars(module)) for module in (confidence, questions)]
    monkeypatch.setattr(sys, "argv", ["confidence.py", str(run), "--episodes", "1"])
    opened("confidence.py")["main"]()
    assert before == [vars(module) for module in (confidence, questions)]
    heads, *tables = re.split(r"\n\n", capsys.readouterr().out.rstrip())
    assert "40 validation classes" in heads
    found = {table.split("\n")[0]: [line.split() for line in table.split("\n")[2:]] for table in tables}
    used = {name: [row[0] for row in rows if row[-1] == "use"] for name, rows in found.items()}
    assert used["FALL, trained head"] == [f"{confidence.FALL:g}"]
    assert used["TRUST, untrained head"] == [f"{confidence.TRUST[False]:g}"]
    assert used["COPIES, trained head"] == [f"{questions.COPIES:g}"]
    assert all(len(own) == 1 for own in used.values())
    strangers = [float(row[4].rstrip("%")) for row in found["FALL, trained head"]]
    assert strangers == sorted(strangers, reverse=True)  # the lower the threshold, the fewer are refused
    assert strangers[0] > strangers[-1]
