"""A few-shot run: evaluation, figures, and the errors of an unfitted model."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import sightline
from few_shot_data import make_images, make_splits
from sightline import zoo
from sightline.errors import SightlineError
from sightline.tasks.few_shot.task import FewShotTask


def save_npz(path, images):
    np.savez(path, images=images.pixels[:, 0].numpy(), labels=images.labels.numpy())
    return str(path)


def test_run_is_evaluated_on_test_classes(run):
    evaluation = sightline.evaluate(run, device="cpu")
    assert (evaluation.split, evaluation.classes) == ("test", 40)
    assert set(evaluation.settings) == {"3w1s", "5w2s"}
    stored = json.loads((run / "evaluation.json").read_text())
    assert stored["settings"]["3w1s"]["accuracy"] == evaluation.settings["3w1s"].accuracy
    assert stored["report"] == str(evaluation)
    assert evaluation.summary() in (run / "README.md").read_text()
    assert str(evaluation).splitlines()[2].startswith("3w1s")
    assert sightline.evaluate(run, device="cpu") == evaluation


def test_settings_and_episodes_of_one_evaluation(run):
    calls = []
    predictor = sightline.load(run)
    evaluation = predictor.evaluate(
        settings=["2w1s"], episodes=7, progress=lambda done, total: calls.append((done, total))
    )
    assert (list(evaluation.settings), evaluation.episodes) == (["2w1s"], 7)
    assert calls[-1] == (7, 7)
    for options, message in (
        ({"settings": ["5x1"]}, "a setting must read like 5w1s"),
        ({"episodes": 0}, "episodes must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(SightlineError, match=message):
            predictor.evaluate(**options)


def test_loaded_data_can_be_evaluated_on(run):
    predictor = sightline.load(run)
    splits = make_splits(
        **{name: make_images(n, side=28, prefix=name) for name, n in (("train", 11), ("validation", 7), ("test", 8))}
    )
    assert (predictor.evaluate(splits).split, predictor.evaluate(splits).classes) == ("test", 8)
    splits = make_splits(train=make_images(11, side=28), validation=None, test=None)
    assert (predictor.evaluate(splits).split, predictor.evaluate(splits).classes) == ("full", 11)


def test_loaded_training_data_is_evaluated_on_validation_classes(run):
    predictor = sightline.load(run)
    data = FewShotTask.load_data(predictor.config)
    without_test = replace(data, test=None)
    evaluation = predictor.evaluate(without_test, settings=["3w1s"], episodes=5)
    assert (evaluation.split, evaluation.classes) == ("validation", len(data.validation.classes))


def test_run_with_extra_sources_is_evaluated_on_unseen_classes_of_each(tmp_path):
    source = save_npz(tmp_path / "main.npz", make_images(12, side=28))
    extra = save_npz(tmp_path / "other.npz", make_images(9, side=20, prefix="o"))
    classes = {"train": [str(i) for i in range(5)], "test": [str(i) for i in range(5, 9)]}
    (tmp_path / "split.json").write_text(json.dumps(classes))
    values = {
        "task": "few_shot",
        "out": str(tmp_path / "run"),
        "data": {
            "source": source,
            "validation_fraction": 0.3,
            "extra_sources": [{"source": extra, "split": str(tmp_path / "split.json"), "fraction": 0.5}],
        },
        "episode": {"way": 3, "shot": 1, "query": 2},
        "evaluation": {
            "settings": ["3w1s"],
            "query": 2,
            "episodes": 5,
            "selection_setting": "3w1s",
            "selection_episodes": 5,
        },
        "model": {"backbone_channels": [4, 4, 4, 8], "num_heads": 2},
        "training": {"steps": 2, "batch_size": 4, "device": "cpu"},
    }
    folder = sightline.train(values, quiet=True).folder
    assert f"Data: `{source}`, `{extra}`." in (folder / "README.md").read_text()
    assert sightline.train(folder, ["training.keep_checkpoints=2"], resume=True, quiet=True).steps == 2
    with pytest.raises(SightlineError, match=r"data\.extra_sources"):
        sightline.train(values | {"data": values["data"] | {"extra_sources": []}}, resume=True, quiet=True)
    assert sightline.evaluate(folder, device="cpu").split == "validation"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "other.npz").hardlink_to(extra)
    for path in (extra, str(tmp_path / "linked")):  # by another path of the same file
        evaluation = sightline.evaluate(folder, path, device="cpu")
        assert (evaluation.split, evaluation.classes) == ("test", 4)
    (tmp_path / "split.json").write_text(json.dumps({"train": classes["train"]}))
    with pytest.raises(SightlineError, match=r"data must have test classes, because .* was trained on it, got none in"):
        sightline.evaluate(folder, extra, device="cpu")


def test_temperatures_and_entropies_are_logged_and_drawn(run, tmp_path):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [record["validation"] for record in records if "validation" in record]
    assert len(validation) == 2
    for head in (1, 2):
        assert validation[0][f"temperature/block 1 head {head}"] == pytest.approx(0.05, rel=0.1)
        assert 0 < validation[0][f"entropy/block 1 head {head}"] < 4
    figures = sightline.load(run).show(out=tmp_path / "figures")
    assert [path.name for path in figures.files] == ["training.png", "attention.png"]
    assert not figures.skipped


def test_unfitted_model_refuses_predictions(run):
    predictor = sightline.load(run)
    calls = (
        lambda: predictor.predict("image.png"),
        lambda: predictor.predict(["image.png", "image.png"]),  # raised once, not a result per image
        lambda: list(predictor.stream(["image.png"])),
        lambda: predictor.explain(["image.png"]),
        predictor.check_ready,
        lambda: predictor.parse_inputs(["image.png"]),
    )
    for call in calls:
        with pytest.raises(SightlineError, match=f"sightline fit FOLDER --model {run}"):
            call()


def test_pretrained_model_is_evaluated_on_named_data(run, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "HOME", tmp_path)
    shutil.copytree(run, tmp_path / "signs", ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl"))
    path = tmp_path / "signs" / "config.yaml"
    path.write_text(path.read_text().replace("source: glyphs", "source: data/away.npz"))
    with pytest.raises(SightlineError, match=r"sightline fit FOLDER --model signs"):
        sightline.load("signs").predict("image.png")
    with pytest.raises(SightlineError, match=r"got 'data/away.npz', which does not; .* with --data PATH"):
        sightline.evaluate("signs", device="cpu")
    assert sightline.evaluate("signs", "glyphs", device="cpu").split == "test"
    figures = sightline.load("signs").show(out=tmp_path / "out")
    assert set(figures.skipped) == {"training", "attention"}
    assert all(reason.startswith("signs has no metrics.jsonl") for reason in figures.skipped.values())


def test_portable_model_has_no_training_weights(run):
    predictor = sightline.load(run)
    config, state = predictor.portable()
    assert predictor.config.model.num_classes > 0
    assert (config.out, config.model.num_classes, config.data.weights) == (None, 0, None)
    assert not any(name.startswith("classifier.") for name in state)
    assert set(predictor.model.state_dict()) - set(state) == {"classifier.weight", "classifier.bias"}


def test_run_is_calibrated_on_validation_classes(run):
    assert float(sightline.load(run).model.head.calibration_scale) != 1
