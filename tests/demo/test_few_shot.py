"""The story that `sightline demo` tells, and that what it tells is so."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sightline
from sightline.classifier import Answer
from sightline.cli import app
from sightline.demo import few_shot
from sightline.demo.characters import Question
from sightline.models.few_shot import FewShotConfig
from sightline.tasks.few_shot.task import Recipe


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})


def answer(label, share, known_score):
    return Answer(label, share, known_score >= 0.5, {label: share, "other": 1 - share}, known_score)


@pytest.mark.usefixtures("_quick")
def test_the_story_with_a_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = call("demo", "--out", "the demo", "--model", run)
    assert told.exit_code == 0, told.stderr
    assert max(len(line) for line in told.stdout.splitlines() if "sightline" not in line and "wrote" not in line) <= 80
    assert re.search(r"other drawings of these +\d+ right +30 ", told.stdout)
    assert re.search(r"none of these +\d+ refused +34 ", told.stdout)
    for line in ("cosine transformer", "ProtoNet", "nearest neighbor", "confidence is off by", "AUROC"):
        assert line in told.stdout
    page = (tmp_path / "the demo" / "page.html").read_text()
    assert page.count("<article") == 6
    assert page.count(" stranger</span>") == 2
    commands = [shlex.split(line) for line in told.stdout.splitlines() if line.startswith("  sightline ")]
    assert [words[1] for words in commands] == ["fit", "predict", "predict"]
    for _, *words in commands:  # what is printed works as it is
        words = [found for word in words for found in (sorted(Path().glob(word)) if "*" in word else [word])]
        did = call(*words, "--device", "cpu")
        assert did.exit_code == 0, did.stderr
    assert (tmp_path / "the demo" / "ka.html").is_file()


@pytest.mark.usefixtures("_quick")
def test_the_table_is_what_compare_says(tmp_path):
    starter = Recipe.starter()
    small = replace(
        starter,
        model=FewShotConfig(backbone_channels=(4, 4, 4, 8), num_heads=2),
        training=replace(starter.training, steps=2, evaluate_every=2, device="cpu"),
        evaluation=replace(starter.evaluation, query=few_shot.QUERY, selection_episodes=3, settings=("5w1s",)),
    )
    run = sightline.train(small, [f"out={tmp_path / 'run'}"], quiet=True).folder
    told = call("demo", "--out", tmp_path / "demo", "--model", run)
    assert told.exit_code == 0, told.stderr
    compared = sightline.compare([run], baselines=["protonet", "nearest"], episodes=11, device="cpu")
    rows = ("cosine transformer", "ProtoNet", "nearest neighbor")
    for (_, found), row in zip(compared.standings, rows, strict=True):
        assert re.search(rf"{row} +{re.escape(str(found['5w1s']))}", told.stdout)


def test_what_is_shown_is_chosen_by_a_rule():
    asked = [
        ("a", answer("a", 0.9, 0.8)),
        ("a", answer("a", 0.99, 0.9)),
        ("b", answer("b", 0.7, 0.3)),
        ("other", answer("b", 0.6, 0.9)),  # mistaken: the least share on its truth
        (None, answer("a", 0.5, 0.2)),
        (None, answer("b", 0.9, 0.7)),
        (None, answer("b", 0.9, 0.1)),
    ]
    questions = [Question(Path(f"{i}.png"), truth) for i, (truth, _) in enumerate(asked)]
    shown = few_shot.chosen(questions, [one for _, one in asked])
    assert [i for _, i in shown] == [1, 2, 3, 6, 4, 5]


def test_a_model_without_a_backbone_of_its_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(few_shot.FewShotClassifier, "pretrained", lambda name: sightline.FewShotClassifier())
    told = call("demo", "--out", tmp_path, "--model", "vectors")
    assert told.exit_code == 2
    assert "model must be a few-shot model with a backbone of its own, got 'vectors'" in told.stderr
    assert not list(tmp_path.iterdir())
