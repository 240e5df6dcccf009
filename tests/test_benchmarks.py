"""The benchmarks can be imported, and the benchmark of calibration measures the code of the package."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from sightline import config
from sightline.classifier import calibration
from sightline.models.few_shot import FewShot, FewShotConfig
from sightline.tasks.few_shot.config import FewShotData, FewShotTaskConfig
from sightline.weights import to_bytes

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py"))
OTHER_ENVIRONMENT = ("easyfsl_peer.py",)
MODULES = ("clock.py", "marian.py")
"""Imported by other benchmarks."""


@pytest.fixture
def load_script(monkeypatch):
    """A function that imports a benchmark without running it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: runpy.run_path(str(BENCHMARKS / name), run_name="imported")


@pytest.mark.parametrize("name", SCRIPTS)
def test_benchmark_compiles_and_has_a_docstring(name):
    code = compile((BENCHMARKS / name).read_text(encoding="utf-8"), name, "exec", dont_inherit=True)
    assert code.co_consts[0].strip()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in OTHER_ENVIRONMENT])
def test_benchmark_can_be_imported_and_has_a_main_function(name, load_script):
    assert ("main" in load_script(name)) == (name not in MODULES)


@pytest.fixture
def run(tmp_path):
    """The folder of a small few-shot run with random weights and four tokens per image."""
    torch.manual_seed(0)
    model = FewShotConfig(image_size=32, channels=1, backbone_channels=(3, 5, 7, 8), num_heads=2, tokens="patches")
    task_config = FewShotTaskConfig(data=FewShotData(image_size=32), model=model)
    (tmp_path / "config.yaml").write_text(config.dump(task_config))
    (tmp_path / "model.safetensors").write_bytes(to_bytes(FewShot(model).state_dict()))
    return tmp_path


def test_calibration_is_evaluated_on_test_classes(run, load_script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["confidence.py", str(run), "--episodes", "1", "--test"])
    script = load_script("confidence.py")
    script["main"]()
    head, table = re.split(r"\n\n", capsys.readouterr().out.rstrip())
    assert " test classes" in head
    assert [line.split()[0] for line in table.split("\n")[1:]] == list(script["SETTINGS"])


def test_constants_of_calibration_are_compared_and_restored(run, load_script, monkeypatch, capsys):
    before = dict(vars(calibration))
    monkeypatch.setattr(sys, "argv", ["confidence.py", str(run), "--episodes", "1"])
    load_script("confidence.py")["main"]()
    assert before == vars(calibration)
    head, *tables = re.split(r"\n\n", capsys.readouterr().out.rstrip())
    assert "40 validation classes" in head
    rows = {table.split("\n")[0]: [line.split() for line in table.split("\n")[2:]] for table in tables}
    in_use = {name: [row[0] for row in table if row[-1] == "use"] for name, table in rows.items()}
    assert in_use["THRESHOLD_FRACTION, trained head"] == [f"{calibration.THRESHOLD_FRACTION:g}"]
    assert in_use["PRIOR_STD, untrained head"] == [f"{calibration.PRIOR_STD[False]:g}"]
    assert in_use["COPIES_PER_IMAGE, trained head"] == [f"{calibration.COPIES_PER_IMAGE:g}"]
    assert all(len(values) == 1 for values in in_use.values())
    rejected = [float(row[4].rstrip("%")) for row in rows["THRESHOLD_FRACTION, trained head"]]
    assert rejected == sorted(rejected, reverse=True)  # a lower threshold rejects fewer unknown images
    assert rejected[0] > rejected[-1]
