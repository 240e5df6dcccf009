"""The few-shot part of `sightline demo`."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sightline
from sightline.classifier import FewShotPrediction
from sightline.cli import app
from sightline.demo import few_shot
from sightline.demo.characters import Query
from sightline.models.few_shot import FewShotConfig
from sightline.tasks.few_shot.config import FewShotTaskConfig


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
    for name in ("cosine transformer", "ProtoNet", "nearest neighbor", "calibration error", "AUROC"):
        assert name in result.stdout
    page = (tmp_path / "the demo" / "page.html").read_text()
    names = re.findall(r'"name":"([^"]*)","prediction"', page)
    assert len(names) == 6
    assert sum("known score of unknown characters" in name for name in names) == 3
    commands = [shlex.split(line) for line in lines if line.startswith("  sightline ")]
    assert [arguments[1] for arguments in commands] == ["fit", "predict", "predict"]
    for _, *arguments in commands:
        expanded = [path for text in arguments for path in (sorted(Path().glob(text)) if "*" in text else [text])]
        result = invoke(*expanded, "--device", "cpu")
        assert result.exit_code == 0, result.stderr
    assert len(list((tmp_path / "the demo").glob("*-ka.html"))) == 1
    assert len(re.findall(r" (right|wrong) ", result_text)) == 6


@pytest.mark.usefixtures("_fast_demo")
def test_the_table_of_episodes_equals_that_of_compare(tmp_path):
    config = FewShotTaskConfig.starter()
    config = replace(
        config,
        model=FewShotConfig(backbone_channels=(4, 4, 4, 8), num_heads=2),
        training=replace(config.training, steps=2, evaluate_every=2, device="cpu"),
        evaluation=replace(config.evaluation, query=few_shot.QUERY, selection_episodes=3, settings=("5w1s",)),
    )
    run = sightline.train(config, [f"out={tmp_path / 'run'}"], quiet=True).folder
    result = invoke("demo", "--out", tmp_path / "demo", "--model", run)
    assert result.exit_code == 0, result.stderr
    comparison = sightline.compare([run], baselines=["protonet", "nearest"], episodes=11, device="cpu")
    rows = ("cosine transformer", "ProtoNet", "nearest neighbor")
    for (_, accuracies), row in zip(comparison.results, rows, strict=True):
        assert re.search(rf"{row} +{re.escape(str(accuracies['5w1s']))}", result.stdout)


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


def test_a_model_without_its_own_backbone_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(few_shot.FewShotClassifier, "pretrained", lambda name: sightline.FewShotClassifier())
    result = invoke("demo", "--out", tmp_path, "--model", "vectors")
    assert result.exit_code == 2
    assert "model must be a few-shot model with its own backbone, got 'vectors'" in result.stderr
    assert not list(tmp_path.iterdir())
