"""The few-shot part of `sightline demo`."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.classifier import FewShotPrediction
from sightline.cli import app
from sightline.demo import few_shot
from sightline.demo.characters import Query


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


@pytest.mark.usefixtures("_fast_demo")
def test_the_demo_prints_tables_and_working_commands(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("demo", "--out", "the demo", "--model", run)
    assert result.exit_code == 0, result.stderr
    result_text, lines = result.stdout, result.stdout.splitlines()
    assert max(len(line) for line in lines if "sightline" not in line and "wrote" not in line) <= 80
    assert re.search(r"new drawings of these +\d+ correct +30 ", result.stdout)
    assert re.search(r"other characters +\d+ predicted unknown +34 ", result.stdout)
    assert re.search(r"\d+ by nearest pixels +30 ", result.stdout)
    assert "expected: accuracy " in result.stdout
    assert re.search(r"Xqzt brk wlmpf\. .* \d+% +Xqzt, brk, wlmpf\.", result.stdout)
    assert (tmp_path / "the demo" / "translation.html").is_file()
    page = (tmp_path / "the demo" / "page.html").read_text()
    names = re.findall(r'"name":"([^"]*)","prediction"', page)
    assert len(names) == 6
    assert sum("known score of unknown characters" in name for name in names) == 3
    commands = [shlex.split(line) for line in lines if line.startswith("  sightline ")]
    assert [arguments[1] for arguments in commands] == ["fit", "predict", "predict", "predict"]
    for _, *arguments in commands:
        expanded = [path for text in arguments for path in (sorted(Path().glob(text)) if "*" in text else [text])]
        result = invoke(*expanded, "--device", "cpu")
        assert result.exit_code == 0, result.stderr
    assert len(list((tmp_path / "the demo").glob("*-ka.html"))) == 1
    assert len(re.findall(r" (right|wrong) ", result_text)) == 6


def test_cases_are_selected_by_score_and_known_score():
    def predict(label, score, known_score):
        return FewShotPrediction(label, score, known_score >= 0.5, {label: score, "other": 1 - score}, known_score)

    pairs = [
        ("a", predict("a", 0.9, 0.8)),
        ("a", predict("a", 0.99, 0.9)),
        ("b", predict("b", 0.7, 0.3)),
        ("other", predict("b", 0.6, 0.9)),  # wrong: the lowest score of the true class
        (None, predict("a", 0.5, 0.2)),
        (None, predict("b", 0.9, 0.7)),
        (None, predict("b", 0.9, 0.1)),
    ]
    queries = [Query(Path(f"{i}.png"), label) for i, (label, _) in enumerate(pairs)]
    cases = few_shot.select_cases(queries, [prediction for _, prediction in pairs])
    assert [queries.index(query) for _, query, _ in cases] == [1, 2, 3, 6, 4, 5]
