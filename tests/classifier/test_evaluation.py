"""Evaluation of a fitted classifier on labeled images."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from class_folders import write_files, write_zip
from sightline import FewShotClassifier
from sightline.classifier.evaluate import _calibration_errors
from sightline.cli import app
from sightline.errors import SightlineError


def run_cli(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels[0].numpy()).save(stream, "png")
    return stream.getvalue()


def base_name(name):
    """The name without its group, which is not in a data set of one group."""
    return name.rpartition("/")[2]


@pytest.fixture(scope="module")
def home(fitted, drawn, tmp_path_factory):
    """The file of a classifier of five characters, and a test set of seven: two of them are unknown."""
    folder = tmp_path_factory.mktemp("evaluation")
    fitted.save(folder / "characters.sightline")
    files = {f"{name}/{i}.png": png(images[i]) for name, images in list(drawn.items())[:7] for i in range(3, 6)}
    write_files(folder / "testset", files)
    write_zip(folder / "testset.zip", files)
    return folder


@pytest.fixture(scope="module")
def evaluation(fitted, home):
    return fitted.evaluate(home / "testset")


def test_metrics_are_those_of_the_predictions(fitted, drawn, evaluation):
    images = [(name, image) for name, images in list(drawn.items())[:7] for image in images[3:6]]
    predictions = fitted.predict([image for _, image in images])
    pairs = [(name, prediction) for (name, _), prediction in zip(images, predictions, strict=True)]
    known = [(name, prediction) for name, prediction in pairs if name in fitted.classes]
    assert evaluation.images == len(known) == 15
    assert evaluation.accuracy == sum(name == prediction.label for name, prediction in known) / 15
    assert evaluation.interval[0] < evaluation.accuracy < evaluation.interval[1] or evaluation.accuracy == 1
    assert evaluation.rejected == sum(not prediction.known for _, prediction in known)
    assert evaluation.unknown_images == 6
    accepted = [prediction for name, prediction in pairs if name not in fitted.classes and prediction.known]
    assert evaluation.wrongly_accepted == len(accepted)
    for name, row in evaluation.confusion.items():
        assert sum(row.values()) == 3
        rejected = sum(not prediction.known for label, prediction in pairs if base_name(label) == base_name(name))
        assert row.get("", 0) == rejected
    assert list(evaluation.confusion)[:5] == list(fitted.classes)
    assert evaluation.split == "full"
    assert evaluation.support_images == 0


def test_calibration_error_is_that_of_the_confidence(fitted, drawn, evaluation):
    names = list(drawn)[:5]
    predictions = fitted.predict([image for name in names for image in drawn[name][3:6]])
    confidence = np.array([prediction.confidence for prediction in predictions])
    correct = np.array([p.label == names[i // 3] for i, p in enumerate(predictions)])
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs((confidence - correct)[bins == i].sum()) for i in range(15)]
    assert evaluation.calibration_error == pytest.approx(sum(gaps) / 15)
    low, high = evaluation.calibrated_error
    assert 0 <= low < high
    assert f"({low:.3f} to {high:.3f} if calibrated)" in str(evaluation)


def test_a_calibrated_confidence_is_in_its_range():
    random, inside = np.random.default_rng(0), 0
    for _ in range(40):
        confidences = random.uniform(0.2, 1, 200)
        error, low, high = _calibration_errors(confidences, random.random(200) < confidences)
        inside += low <= error <= high
    assert inside >= 34
    error, _, high = _calibration_errors(np.full(200, 0.9), np.arange(200) % 2 == 0)
    assert error == pytest.approx(0.4)
    assert error > high


def test_mistakes_are_sorted_by_confidence_and_have_their_images(evaluation):
    mistakes = evaluation.mistakes
    assert [mistake.confidence for mistake in mistakes] == sorted((m.confidence for m in mistakes), reverse=True)
    assert all(mistake.label != mistake.predicted for mistake in mistakes)
    assert len(mistakes) == sum(
        count for name, row in evaluation.confusion.items() for other, count in row.items()
        if other not in (name, "")
    )  # fmt: skip
    assert all(mistake.pixels.shape[1:] == mistake.pixels.shape[1:][::-1] for mistake in mistakes)


def test_the_command_prints_a_report_and_writes_a_page(home, evaluation, monkeypatch):
    monkeypatch.chdir(home)
    result = run_cli("evaluate", "characters.sightline", "--data", "testset", "--show", "page.html")
    assert result.stdout.startswith("full set, 15 images of 5 classes\naccuracy ")
    assert "95% interval" in result.stdout
    assert "wrongly accepted" in result.stdout
    assert "confusion matrix (rows: class, columns: prediction)" in result.stdout
    assert result.stdout.endswith("wrote page.html\n")
    page = Path("page.html").read_text()
    assert page.count("<img ") == len(evaluation.mistakes)
    assert page.count("<svg") == 1
    assert "<script" not in page


@pytest.mark.parametrize("format", ["json", "csv"])
def test_the_command_writes_records(home, evaluation, monkeypatch, format):
    monkeypatch.chdir(home)
    text = run_cli("evaluate", "characters.sightline", "--data", "testset.zip", "--format", format).stdout
    [record] = json.loads(text) if format == "json" else list(csv.DictReader(text.splitlines()))
    assert float(record["accuracy"]) == evaluation.accuracy
    assert record["run"] == "characters.sightline"
    if format == "json":
        assert record["confusion"] == evaluation.confusion
        assert len(record["mistakes"]) == len(evaluation.mistakes)


def test_files_that_cannot_be_read_are_left_out_and_named(fitted, home, drawn, tmp_path):
    name = base_name(next(iter(drawn)))
    images = next(iter(drawn.values()))
    files = {f"{name}/a.png": png(images[3]), f"{name}/b.png": b"x", "other/c.png": png(images[4])}
    evaluation = fitted.evaluate(write_files(tmp_path, files))
    assert (evaluation.images, evaluation.unknown_images) == (1, 1)
    assert evaluation.unreadable[0].startswith(f"{name}/b.png: ")
    assert "files that cannot be read, and are left out: 1" in str(evaluation)
    assert "b.png" in evaluation.page().html


def test_support_images_are_reported(fitted, drawn):
    evaluation = fitted.evaluate({name: images[:4] for name, images in list(drawn.items())[:2]})
    assert evaluation.support_images == 6
    assert "support images among these: 6, so expect less on new images" in str(evaluation)


def test_wrong_data_is_refused(fitted, home, tmp_path):
    with pytest.raises(SightlineError, match="must be a folder of labeled images for a fitted classifier, got none"):
        fitted.evaluate()
    with pytest.raises(SightlineError, match=r"must have images of the classes of the classifier, .*, got 'x', 'y'"):
        fitted.evaluate({"x": [np.zeros((9, 9), np.uint8)], "y": [np.zeros((9, 9), np.uint8)]})
    file = home / "characters.sightline"
    assert "got 'nowhere'" in run_cli("evaluate", file, "--data", "nowhere", status=2).stderr
    message = run_cli("evaluate", file, "--data", home / "testset", "--settings", "5w1s", status=2).stderr
    assert message == f"error: --settings must be left out for a fitted classifier, got it for {file}\n"
    message = run_cli("evaluate", file, "--data", home / "testset", "--show", "page.png", status=2).stderr
    assert "path must end in .html, got 'page.png'" in message


def test_a_classifier_of_embeddings_is_evaluated_on_embeddings():
    vectors = torch.eye(3)
    classifier = FewShotClassifier().fit({i: vectors[i : i + 1] for i in range(3)})
    evaluation = classifier.evaluate({0: vectors[:1], 1: vectors[1:2]})
    assert (evaluation.accuracy, evaluation.images, evaluation.mistakes) == (1, 2, ())
    with pytest.raises(SightlineError, match=r"data must be .label: embeddings. for a classifier of embeddings"):
        classifier.evaluate("folder")


def test_many_classes_list_the_most_confused_pairs():
    classifier = FewShotClassifier().fit({i: torch.eye(70)[i : i + 1] for i in range(70)})
    evaluation = classifier.evaluate({i: torch.eye(70)[[i, (i + 1) % 70]] for i in range(70)})
    assert evaluation.accuracy == 0.5
    assert "most confused classes\n      1  0 → 1" in str(evaluation)
    page = evaluation.page().html
    assert "The 60 classes with most mistakes of 70." in page
    assert page.count('<rect class="cell"') == 60 * 60


def test_predict_takes_folders_of_folders(home, monkeypatch):
    monkeypatch.chdir(home)
    result = run_cli("predict", "characters.sightline", "testset", "--format", "jsonl")
    inputs = [json.loads(line)["input"] for line in result.stdout.splitlines()]
    assert inputs == sorted(str(path) for path in Path("testset").rglob("*.png"))


def test_a_class_can_be_named_rejected():
    torch.manual_seed(0)
    means = {"rejected": torch.randn(16) * 5, "(rejected)": torch.randn(16) * 5}
    classifier = FewShotClassifier().fit({name: mean + torch.randn(5, 16) for name, mean in means.items()})
    evaluation = classifier.evaluate({name: list(mean + torch.randn(20, 16)) for name, mean in means.items()})
    assert evaluation.accuracy == 1
    assert evaluation.accepted_accuracy == 1
    assert evaluation.rejected == sum(row.get("", 0) for row in evaluation.confusion.values()) < 20
