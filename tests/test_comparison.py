"""Comparison of few-shot runs on identical episodes."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sightline
from processes import SMALL, write_images
from sightline import zoo
from sightline.cli import app
from sightline.errors import SightlineError
from sightline.models.baselines import BASELINES
from sightline.runs import compare
from sightline.tasks.few_shot.config import Setting
from sightline.tasks.few_shot.evaluate import episode_classes, evaluate_episodes

SIDE, PER_CLASS, EPISODES = 9, 7, 23
CHANGES = (
    "task=few_shot",
    "data.validation_fraction=0",
    "model.backbone=conv4",
    "model.backbone_channels=[6]",
    "model.num_heads=2",
    "episode.way=3",
    "episode.query=2",
    "evaluation.settings=[3w2s,2w1s]",
    "evaluation.query=3",
    "evaluation.episodes=11",
    "training.steps=1",
    "training.batch_size=2",
    "training.device=cpu",
)
CLASSES = (*(f"background/Latin/{letter}" for letter in "abcd"), *(f"evaluation/Greek/{letter}" for letter in "efghij"))


def write_classes(path, classes=CLASSES, per_class=PER_CLASS):
    """A small data set in the format of packed Omniglot: noisy copies of one pattern per class."""
    random = np.random.default_rng(0)
    labels = np.arange(len(classes)).repeat(per_class)
    patterns = random.integers(0, 2, (len(classes), SIDE * SIDE))
    ink = patterns[labels] ^ (random.random((len(labels), SIDE * SIDE)) < 0.25)
    packed = np.packbits(ink.astype(np.uint8), axis=1)
    np.savez(path, images_packed=packed, label=labels, classes=np.array(classes), shape=np.array([SIDE, SIDE]))
    return str(path)


def train(folder, name, *changes, data="letters.npz"):
    changes = [*CHANGES, f"data.source={folder / data}", f"out={folder / name}", *changes]
    return sightline.train(None, changes, quiet=True).folder


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two runs on one data set."""
    folder = tmp_path_factory.mktemp("compared")
    write_classes(folder / "letters.npz")
    train(folder, "one")
    train(folder, "two", "seed=1", "model.depth=0", "data.image_size=7")
    return folder


def test_run_compared_with_itself_has_difference_0(folder):
    result = compare([folder / "one", folder / "one"], device="cpu")
    assert (result.split, result.classes, result.episodes) == ("test", 6, 11)
    (_, first), (_, second) = result.results
    assert list(first) == ["3w2s", "2w1s"]
    for setting, paired in second.items():
        assert (paired.difference, paired.difference_margin) == (0, 0)
        assert (paired.accuracy, paired.margin) == (first[setting].accuracy, first[setting].margin)
        assert paired.margin > 0


def test_accuracies_are_those_of_evaluate(folder):
    result = compare([folder / "two", folder / "one"], device="cpu")
    for (_, by_setting), run in zip(result.results, ("two", "one"), strict=True):
        metrics = sightline.load(folder / run).evaluate().settings
        for setting, paired in by_setting.items():
            assert (paired.accuracy, paired.margin) == (metrics[setting].accuracy, metrics[setting].margin)


def test_other_data_without_a_test_split_is_used_whole(folder):
    data = write_classes(folder / "signs.npz", [f"Signs/{letter}" for letter in "klmnopq"])
    result = compare([folder / "one", folder / "two"], data=data, baselines=["nearest"], device="cpu")
    assert (result.split, result.classes) == ("full", 7)
    for run in ("one", "two"):
        evaluation = sightline.evaluate(folder / run, data, "cpu")
        assert (evaluation.split, evaluation.classes) == (result.split, result.classes)
        for setting, paired in dict(result.results)[run].items():
            metrics = evaluation.settings[setting]
            assert (paired.accuracy, paired.margin) == (metrics.accuracy, metrics.margin)


def test_settings_that_other_data_does_not_allow_are_skipped(folder, tmp_path):
    data = write_classes(tmp_path / "few.npz", [f"Signs/{letter}" for letter in "kl"], per_class=4)
    evaluation = sightline.evaluate(folder / "one", data, "cpu", episodes=5)
    assert (list(evaluation.settings), evaluation.skipped_settings) == (["2w1s"], ("3w2s",))
    assert (evaluation.query, evaluation.episodes) == (None, 5)
    assert "too few classes or images for 3w2s" in str(evaluation).splitlines()[0]
    result = compare([folder / "one"], data=data, device="cpu")
    assert (list(result.results[0][1]), result.skipped_settings) == (["2w1s"], ("3w2s",))


def test_data_of_fewer_classes_than_any_setting_is_evaluated_on_all_of_them(folder, tmp_path):
    data = write_classes(tmp_path / "two.npz", ["Signs/k", "Signs/l"], per_class=4)
    copy = shutil.copytree(folder / "one", tmp_path / "run")
    (copy / "config.yaml").write_text((copy / "config.yaml").read_text().replace("2w1s", "5w1s"))
    output = call("evaluate", copy, "--data", data, "--device", "cpu").stdout
    assert "too few classes or images for 3w2s, 5w1s" in output.splitlines()[0]
    assert re.search(r"^2w1s +\d+\.\d\d% ", output, re.MULTILINE)
    with pytest.raises(SightlineError, match=r"5w1s: way must be at most the number of classes, 2"):
        sightline.evaluate(copy, data, "cpu", settings=["5w1s"])


def test_fewer_queries_are_used_if_other_data_has_fewer_images(folder, tmp_path):
    classes = [f"Signs/{letter}" for letter in "klm"]
    data = write_classes(tmp_path / "few.npz", classes, per_class=3)
    output = call("evaluate", folder / "one", "--data", data, "--device", "cpu").stdout
    assert output.startswith("full set, 3 classes, 11 episodes per setting, 1 query images per class\n")
    result = compare([folder / "one"], data=data, device="cpu")
    assert result.query == 1
    assert "per setting for all models, 1 query images per class; accuracy" in str(result)
    write_classes(tmp_path / "few.npz", classes, per_class=2)
    assert list(sightline.evaluate(folder / "one", data, "cpu").settings) == ["2w1s"]
    write_classes(tmp_path / "few.npz", classes, per_class=1)
    with pytest.raises(SightlineError, match=r"3w2s: each class must have at least 3 images .*--settings"):
        sightline.evaluate(folder / "one", data, "cpu")


def test_evaluate_with_other_settings_does_not_change_the_run(folder):
    card = (folder / "one/README.md").read_text()
    output = call("evaluate", folder / "one", "--settings", "2w1s,4w1s", "--episodes", "7", "--device", "cpu")
    assert output.exit_code == 0, output.stderr
    assert [line.split()[0] for line in output.stdout.splitlines()[:4]] == ["test", "setting", "2w1s", "4w1s"]
    assert "7 episodes per setting" in output.stdout
    assert (folder / "one/README.md").read_text() == card


def test_settings_of_another_task_are_refused(folder, tiny_run):
    with pytest.raises(
        SightlineError, match="--episodes must be left out for a run of image_classification, got it for"
    ):
        sightline.evaluate(tiny_run, episodes=7)


def test_own_data_by_another_path_is_own_data(folder):
    """Otherwise training classes would be evaluated on."""
    write_classes(folder / "own.npz", [f"Own/{letter}" for letter in "abcdefgh"])
    changes = ["data.validation_fraction=0.4", "evaluation.selection_setting=2w1s"]
    predictor = sightline.load(train(folder, "owner", *changes, data="own.npz"))
    for path in (None, f"{folder}/../{folder.name}/own.npz"):
        images, split = predictor.evaluation_split(path)
        assert (len(images.classes), split) == (3, "validation")


def test_pretrained_model_is_compared_on_named_data(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "one", tmp_path / "signs")
    config = tmp_path / "signs/config.yaml"
    config.write_text(config.read_text().replace(str(folder / "letters.npz"), "data/away.npz"))
    monkeypatch.setattr(zoo, "HOME", tmp_path)
    arguments = ["compare", "signs", folder / "two", "--settings", "2w1s", "--episodes", "5", "--device", "cpu"]
    output = call(*arguments)
    assert output.exit_code == 2
    assert output.stderr.startswith("error: the data of signs must exist for an evaluation, got 'data/away.npz'")
    output = call(*arguments, "--data", folder / "letters.npz")
    assert output.exit_code == 0, output.stderr
    assert output.stdout.startswith("test set, 6 classes, the same 5 episodes")
    assert [line.split()[0] for line in output.stdout.splitlines()[2:4]] == ["signs", "two"]


def test_difference_is_paired(folder):
    runs, options = [folder / "one", folder / "two"], {"settings": ["2w1s"], "episodes": EPISODES, "device": "cpu"}
    result = compare(runs, baselines=["protonet"], **options)
    assert [name for name, _ in result.results] == ["one", "protonet", "two"]
    accuracies = []
    for run in runs:
        predictor = sightline.load(run)
        images, _ = predictor.evaluation_split()
        setting, head = Setting.parse("2w1s"), predictor.model.head
        results = evaluate_episodes(
            head, predictor.embed(images.pixels), episode_classes(images), setting, query=3, episodes=EPISODES
        )
        accuracies.append(torch.cat(results.accuracies))
    difference, paired = accuracies[1] - accuracies[0], result.results[2][1]["2w1s"]
    assert paired.difference == pytest.approx(float(difference.mean()), abs=1e-12)
    assert paired.difference_margin == pytest.approx(1.96 * float(difference.std()) / EPISODES**0.5, rel=1e-9)
    assert paired.accuracy == pytest.approx(float(accuracies[1].mean()), abs=1e-12)


def test_worse_classifier_has_a_negative_difference(folder, monkeypatch):
    def inverted(support, labels, query, *, way):
        return -BASELINES["protonet"](support, labels, query, way=way)

    monkeypatch.setitem(BASELINES, "inverted", inverted)
    options = {"settings": ["3w2s"], "episodes": EPISODES, "device": "cpu"}
    paired = compare([folder / "one"], baselines=["inverted"], **options).results[1][1]["3w2s"]
    assert paired.difference + paired.difference_margin < 0


def test_comparison_as_text_markdown_and_records(folder):
    result = compare([folder / "one", folder / "two"], baselines=["nearest"], episodes=EPISODES, device="cpu")
    lines = str(result).splitlines()
    assert lines[0].startswith("test set, 6 classes, the same 23 episodes per setting for all models;")
    assert lines[1].split() == ["3w2s", "difference", "2w1s", "difference"]
    assert re.fullmatch(r"two( +\d+\.\d\d% ± \d+\.\d\d%  [+-]\d+\.\d\d ± \d+\.\d\d){2}", lines[-1])
    rows = result.markdown().splitlines()
    assert rows[2:4] == ["|  | 3w2s | difference | 2w1s | difference |", "| --- | --- | --- | --- | --- |"]
    assert [row.split(" | ")[0] for row in rows[4:]] == ["| one", "| nearest", "| two"]
    assert {row.count("|") for row in rows[2:]} == {6}
    records = result.to_records()
    assert [(record["name"], record["setting"]) for record in records] == [
        (name, setting) for name in ("one", "nearest", "two") for setting in ("3w2s", "2w1s")
    ]
    assert (records[0]["difference"], records[0]["difference_interval"]) == (None, None)
    low, high = records[-1]["difference_interval"]
    assert (low + high) / 2 == pytest.approx(records[-1]["difference"])
    assert json.loads(json.dumps(result.to_dict()))["results"] == records


def test_report_has_times_sizes_and_differences_of_the_configs(folder):
    result = compare([folder / "one", folder / "two"], baselines=["nearest"], episodes=2, device="cpu")
    results, sizes, differences = result.report().split("\n\n")
    assert results == str(result)
    assert sizes.splitlines()[0] == "times and sizes"
    assert [line.split()[0] for line in sizes.splitlines()[2:]] == ["one", "two"]
    keys = [line.split()[0] for line in differences.splitlines()[2:]]
    assert {"seed", "data.image_size", "model.depth"} <= set(keys)
    first, second = result.runs
    many = {f"key{i}": i for i in range(30)}
    different = replace(result, runs=(first, replace(second, config=second.config | many)))
    *_, differences = different.report().split("\n\n")
    title, *lines = differences.splitlines()
    assert title == f"differences of the configs, 12 of {len(keys) + 30} keys; a page (`show`) has all"
    assert len(lines) == 1 + 12
    assert all(key in different.report(markdown=True) and key in different.page().html for key in many)
    assert "out" not in keys
    assert result.report(markdown=True).startswith(result.markdown())
    [one, *_] = result.run_records()
    parameters = sum(parameter.numel() for parameter in sightline.load(folder / "one").model.parameters())
    assert (one["parameters"], one["training_steps"]) == (parameters, 1)
    assert one["training_seconds"] > 0
    assert one["evaluation_seconds"] > 0
    [baseline] = {record["parameters"] for record in result.run_records() if record["name"] == "nearest"}
    assert baseline is None


def test_command_writes_a_page(folder, tmp_path):
    arguments = ["compare", folder / "one", folder / "two", "--settings", "2w1s", "--episodes", 2, "--device", "cpu"]
    output = call(*arguments, "--show", tmp_path / "page.html")
    assert output.exit_code == 0, output.stderr
    assert output.stdout.endswith(f"wrote {tmp_path / 'page.html'}\n")
    page = (tmp_path / "page.html").read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page)[:3] == ["Results", "Times and sizes", "Differences of the configs"]
    assert call(*arguments, "--show", "page.png").stderr == "error: path must end in .html, got 'page.png'\n"


def test_runs_of_equal_names_are_named_by_their_paths(folder):
    train(folder, "other/one")
    result = compare([folder / "one", folder / "other/one"], settings=["2w1s"], episodes=2, device="cpu")
    assert [name for name, _ in result.results] == [str(folder / "one"), str(folder / "other/one")]


@pytest.fixture(scope="module")
def incomparable(folder):
    """Runs that cannot be compared with the first."""
    write_classes(folder / "renamed.npz", (*CLASSES[:-1], "evaluation/Greek/x"))
    write_classes(folder / "fewer.npz", CLASSES[:-1])
    write_classes(folder / "longer.npz", per_class=PER_CLASS + 1)
    write_images(folder / "images.npz")
    for name in ("renamed", "fewer", "longer"):
        train(folder, name, data=f"{name}.npz")
    changes = [f"data.source={folder / 'images.npz'}", f"out={folder / 'images'}", *SMALL, "training.steps=1"]
    sightline.train(None, changes, quiet=True)
    return folder


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "runs must name at least one run, got none"),
        (["one", "renamed"], {}, "the same evaluation classes .* got 'Greek/j' in those of one but not of renamed"),
        (["fewer", "one"], {}, "the same evaluation classes .* got 'Greek/j' in those of one but not of fewer"),
        (["one", "longer"], {}, "with the same images, got others for longer than for one"),
        (["one", "images"], {}, r"must be few_shot, got '\S+images' of task image_classification"),
        (["images"], {"episodes": 3}, "--episodes must be left out for runs of image_classification, got it for"),
        (["images"], {"baselines": ["svm"]}, "--with must be left out for runs of image_classification, got it for"),
        (["one.sightline"], {}, r"must be folders of runs, got '\S+one.sightline'; for a fitted classifier"),
        (["one"], {"baselines": ["protonets"]}, "baseline must be one of .* did you mean 'protonet'"),
        (["one"], {"settings": ["5x1"]}, "a setting must read like 5w1s"),
        (["one"], {"settings": ["7w1s"]}, "way must be at most the number of classes, 6, got 7"),
        (["one"], {"settings": ["2w5s"]}, "each class must have at least 8 images"),
        (["one"], {"episodes": 0}, "episodes must be an integer of at least 1, got 0"),
        (["one"], {"episodes": 10**7}, "episodes must be at most 1,000,000"),
    ],
)
def test_invalid_comparisons_are_refused(incomparable, names, options, message):
    with pytest.raises(SightlineError, match=message):
        compare([incomparable / name for name in names], **options)


def test_command_prints_and_writes_the_table(folder, tmp_path):
    arguments = ["compare", folder / "one", folder / "two", "--with", "protonet, svm", "--settings", "2w1s"]
    arguments += ["--episodes", 5, "--device", "cpu"]
    output = call(*arguments)
    assert output.exit_code == 0, output.stderr
    assert [line.split()[0] for line in output.stdout.splitlines()[2:6]] == ["one", "protonet", "svm", "two"]
    output = call(*arguments, "--format", "markdown", "--out", tmp_path / "new/table.md")
    assert output.exit_code == 0, output.stderr
    assert "| svm | " in (tmp_path / "new/table.md").read_text()
    records = [json.loads(line) for line in call(*arguments, "--format", "jsonl").stdout.splitlines()]
    assert [record["name"] for record in records] == ["one", "protonet", "svm", "two"]
    output = call("compare", folder / "one", "--with", "svn", "--out", tmp_path / "no.md")
    assert output.exit_code == 2
    assert output.stderr.startswith("error: baseline must be one of ")
    assert not (tmp_path / "no.md").exists()
