"""Predictions, explanations and evaluations of a trained image classifier."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import sightline
from processes import RUN_FILES, SMALL, write_images
from sightline.data.images.datasets import Splits
from sightline.data.images.loading import load as load_images
from sightline.errors import SightlineError, SightlineWarning
from sightline.metrics import wilson_interval
from sightline.tasks.image_classification import predictor as predictor_module
from sightline.tasks.image_classification.predictor import (
    ImageClassificationPredictor,
    ImagePrediction,
    has_light_corners,
)
from sightline.tasks.image_classification.task import ImageClassificationTask


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the data `images.npz` and the run `run`."""
    home = tmp_path_factory.mktemp("home")
    write_images(home / "images.npz")
    sightline.train(None, [f"data.source={home / 'images.npz'}", f"out={home / 'run'}", *SMALL], quiet=True)
    return home


@pytest.fixture(scope="module")
def predictor(home):
    return sightline.load(home / "run")


def random_images(count=5):
    random = np.random.default_rng(1)
    return [random.integers(0, 256, (8, 8), dtype=np.uint8) for _ in range(count)]


def write_class_folders(folder, classes=("0", "1", "2"), count=9, side=8):
    random = np.random.default_rng(0)
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = (random.integers(0, 120, (side, side)) + 60 * label).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_scores_are_probabilities_of_all_classes_in_descending_order(predictor):
    prediction = predictor.predict(random_images()[0])
    assert isinstance(prediction, ImagePrediction)
    assert list(prediction.scores.values()) == sorted(prediction.scores.values(), reverse=True)
    assert sum(prediction.scores.values()) == pytest.approx(1)
    assert (prediction.label, prediction.confidence) == next(iter(prediction.scores.items()))
    assert set(prediction.scores) == {"0", "1", "2"}
    assert prediction.error is None


def test_a_list_gives_the_predictions_of_its_images(predictor):
    images = random_images()
    for single, prediction in zip(map(predictor.predict, images), predictor.predict(images), strict=True):
        assert prediction.label == single.label
        assert prediction.confidence == pytest.approx(single.confidence, rel=1e-5)
    assert predictor.predict([]) == []


def test_texts_and_plain_values_of_a_prediction(predictor):
    prediction = predictor.predict(random_images()[0])
    assert str(prediction) == f"{prediction.label} ({prediction.confidence:.1%})"
    assert prediction.summary().count("%") == 3
    assert prediction.summary(1) == f"{prediction.label} {prediction.confidence:.1%}"
    assert json.loads(json.dumps(prediction.to_dict())) == {
        "label": prediction.label,
        "confidence": prediction.confidence,
        "scores": prediction.scores,
        "error": None,
    }
    hostile = replace(prediction, label="\x1b[31m", scores={"\x1b[31m": 1.0})
    assert "\x1b" not in str(hostile) + hostile.summary()


def test_a_light_background_gives_a_hint_if_the_training_data_are_dark(predictor, tmp_path):
    fashion = sightline.load("fashion")
    dark = np.zeros((28, 28), np.uint8)
    dark[:, 8:20] = 200  # also at the upper and lower border
    light = 255 - dark
    assert fashion.predict(dark).hint is None
    Image.fromarray(light).save(tmp_path / "light.png")
    message = r"light\.png: the background of the image is light.*; further ones are not reported"
    with pytest.warns(SightlineWarning, match=message) as caught:
        predictions = fashion.predict([dark, tmp_path / "light.png", light])
    assert len(caught) == 1
    assert [prediction.hint is None for prediction in predictions] == [True, False, False]
    assert "hint" not in predictions[0].to_dict()
    assert predictions[1].to_dict()["hint"].endswith("invert the image if what it shows is dark")
    assert predictor.predict(light).hint is None  # trained on other images


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 5), (1, 28, 28)])
def test_light_corners(shape):
    assert has_light_corners(torch.full(shape, 128, dtype=torch.uint8))
    assert not has_light_corners(torch.full(shape, 127, dtype=torch.uint8))


def test_csv_columns_are_the_keys_of_every_prediction(predictor):
    assert predictor.columns() == ["label", "confidence", "scores.0", "scores.1", "scores.2"]


def test_images_may_be_paths_arrays_tensors_and_pil_images(predictor, tmp_path):
    array = random_images()[0]
    Image.fromarray(array).save(tmp_path / "image.png")
    path = tmp_path / "image.png"
    images = [path, str(path), array, torch.from_numpy(array), Image.fromarray(array)]
    assert len({prediction.confidence for prediction in predictor.predict(images)}) == 1


def test_a_loaded_model_has_the_metrics_of_the_best_weights(home, predictor):
    records = [json.loads(line) for line in (home / "run/metrics.jsonl").read_text().splitlines()]
    best = [record["validation"] for record in records if record.get("best")][-1]
    evaluation = predictor.evaluate()
    assert evaluation.split == "validation"
    assert evaluation.accuracy == best["accuracy"]
    assert evaluation.interval == wilson_interval(evaluation.accuracy * evaluation.images, evaluation.images)
    scale = float(predictor.model.calibration_scale)
    predictor.model.calibration_scale.fill_(1)
    assert predictor.evaluate().loss == pytest.approx(best["loss"], rel=1e-6)
    predictor.model.calibration_scale.fill_(scale)


def test_texts_and_plain_values_of_an_evaluation(predictor):
    evaluation = predictor.evaluate()
    lines = str(evaluation).splitlines()
    assert lines[0].startswith("validation set, 6 images; it also selected and calibrated the model")
    assert lines[1].startswith(f"accuracy           {evaluation.accuracy:.2%}  (95% interval ")
    assert len(lines) == 5 + 3
    assert evaluation.summary().startswith("On the validation set (6 images; it also selected")
    assert f"): accuracy {evaluation.accuracy:.2%} " in evaluation.summary()
    assert json.loads(json.dumps(evaluation.to_dict()))["per_class"] == evaluation.per_class
    hostile = replace(evaluation, per_class={"\x1b[31m": 0.5})
    assert "\x1b" not in str(hostile)


def test_a_copy_gives_the_same_predictions(predictor, tmp_path):
    copy = predictor.save_pretrained(tmp_path / "copy")
    assert sorted(path.name for path in copy.iterdir()) == RUN_FILES
    expected = predictor.predict(random_images())
    assert ImageClassificationPredictor.from_pretrained(copy).predict(random_images()) == expected
    assert sightline.load(copy).predict(random_images()) == expected


def test_other_data_must_have_the_classes_of_the_model(predictor, tmp_path):
    assert predictor.evaluate(str(write_images(tmp_path / "more.npz", 11))).images == 33
    folder = write_class_folders(tmp_path / "animals", ("cat", "dog", "emu"), 2)
    with pytest.raises(
        SightlineError, match=r"data must have the classes of the model, \('0', '1', '2'\), got \('cat'"
    ):
        predictor.evaluate(folder)


def test_other_data_is_evaluated_on_its_test_set_or_whole(home, predictor, tmp_path):
    with np.load(write_images(tmp_path / "more.npz", 11)) as file:
        x, y = file["images"], file["labels"]
    whole = predictor.evaluate(tmp_path / "more.npz")
    assert (whole.images, whole.split) == (33, "full")
    np.savez(tmp_path / "validation.npz", x_train=x[:20], y_train=y[:20], x_val=x[20:], y_val=y[20:])
    both = predictor.evaluate(tmp_path / "validation.npz")
    assert (both.images, both.accuracy, both.split) == (33, whole.accuracy, "full")
    np.savez(tmp_path / "test.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    test = predictor.evaluate(tmp_path / "test.npz")
    assert (test.images, test.split) == (13, "test")
    assert predictor.evaluate(load_images(tmp_path / "test.npz")) == test


def test_data_without_a_held_out_set_is_refused(home, predictor):
    config = replace(predictor.config, data=replace(predictor.config.data, validation_fraction=0.0))
    model = ImageClassificationPredictor(home / "run", config, predictor.classes, predictor.model)
    with pytest.raises(SightlineError, match=r"data must have a test or validation set, got neither in '.*images.npz'"):
        model.evaluate()


@pytest.mark.parametrize("spelling", ["photos", "photos/", "./photos", "link", "absolute", "more/../photos"])
def test_any_path_of_the_training_data_is_evaluated_on_the_held_out_images(tmp_path, monkeypatch, spelling):
    monkeypatch.chdir(tmp_path)
    write_class_folders(tmp_path / "photos")
    (tmp_path / "more").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    changes = ["data.source=photos/", "data.validation_fraction=0.2", "out=run", *SMALL, "training.steps=1"]
    sightline.train(None, changes, quiet=True)
    data = str(tmp_path / "photos") if spelling == "absolute" else spelling
    evaluation = sightline.evaluate("run", data, "cpu")
    assert (evaluation.images, evaluation.split) == (6, "validation")
    assert evaluation == sightline.evaluate("run", device="cpu")
    shutil.copytree("photos", "copy")
    monkeypatch.chdir(tmp_path / "more")
    for copy in ("../copy", "../photos"):
        assert sightline.evaluate("../run", copy, "cpu") == evaluation
    next((tmp_path / "copy").glob("*/*.png")).unlink()
    assert sightline.evaluate("../run", "../copy", "cpu").split == "full"


def test_loaded_training_data_is_evaluated_on_its_held_out_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_class_folders(tmp_path / "photos")
    changes = ["data.source=photos", "data.validation_fraction=0.2", "out=run", *SMALL, "training.steps=1"]
    sightline.train(None, changes, quiet=True)
    predictor = sightline.load("run")
    data = ImageClassificationTask.load_data(predictor.config)
    assert predictor.evaluate(data) == predictor.evaluate()
    assert predictor.evaluate(Splits(data.validation)).split == "full"


def test_unknown_options_are_refused(predictor):
    for call in (predictor.predict, predictor.evaluate):
        with pytest.raises(TypeError, match="unexpected keyword argument 'tpo_k'"):
            call(random_images(1), tpo_k=3)


def test_only_the_evaluated_images_of_a_folder_are_read(predictor, tmp_path):
    write_class_folders(tmp_path / "images" / "train", count=3)
    write_class_folders(tmp_path / "images" / "test", count=2)
    for path in (tmp_path / "images" / "train").glob("*/2.png"):
        path.write_bytes(path.read_bytes()[:60])
    calls = []
    evaluation = predictor.evaluate(tmp_path / "images", progress=lambda *progress: calls.append(progress))
    assert (evaluation.images, evaluation.split) == (6, "test")
    assert calls == [(6, 6)]


def test_explain_and_show_read_each_image_once(predictor, tmp_path, monkeypatch):
    with pytest.raises(SightlineError, match="inputs must be 1 to 64 to be shown on one page, got 65"):
        predictor.explain(random_images(65))
    reads = []
    read_image = predictor_module.read_image
    monkeypatch.setattr(
        predictor_module, "read_image", lambda image, **form: reads.append(image) or read_image(image, **form)
    )
    explanations = predictor.explain(random_images())
    assert len(reads) == 5
    predictor.show(random_images(2), tmp_path / "figures")
    assert len(reads) == 7
    for prediction, other in zip(explanations.predictions, predictor.predict(random_images()), strict=True):
        assert prediction.label == other.label
        assert prediction.confidence == pytest.approx(other.confidence, rel=1e-5)


def test_a_page_has_one_example_per_usable_image(predictor, tmp_path):
    Image.fromarray(random_images()[0]).save(tmp_path / "good.png")
    paths = [tmp_path / "missing.png", tmp_path / "good.png"]
    explanations = predictor.explain(paths)
    failed, good = explanations.predictions
    assert "missing.png" in failed.error
    html = explanations.page.save(tmp_path / "page.html").read_text()
    assert f"good.png: {good}" in html
    assert "missing.png</b>: an image must be a file" in html  # listed
    assert predictor.explain(paths[:1]).page is None
    explanations = predictor.explain(paths[1:2])
    assert f"<title>Attention for the prediction {explanations.predictions[0]}" in explanations.page.html


def test_one_bad_image_costs_no_forward_pass(predictor, tmp_path):
    images = [*random_images(), tmp_path / "missing.png"] * 30
    passes = []
    hook = predictor.model.register_forward_hook(lambda *_: passes.append(1))
    predictions = predictor.predict(images)
    hook.remove()
    assert len(passes) == math.ceil(len(images) / predictor.batch_size)
    assert [prediction.error is None for prediction in predictions] == [True, True, True, True, True, False] * 30


def test_memory_of_a_model_does_not_grow_with_its_image_size(home, tmp_path):
    """Without positions the weights do not depend on the image size; a mask of all tokens would take petabytes."""
    changes = [f"data.source={home / 'images.npz'}", f"out={tmp_path / 'run'}", *SMALL, "training.steps=1"]
    sightline.train(None, [*changes, "model.positions=none", "model.pool=mean"], quiet=True)
    path = tmp_path / "run/config.yaml"
    path.write_text(path.read_text().replace("\n  image_size: 8\n", "\n  image_size: 400000\n"))
    predictor = sightline.load(tmp_path / "run")
    with pytest.raises(SightlineError, match="size must be at most"):
        predictor.predict(random_images()[0])
