"""The commands `add`, `remove` and `info`."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sightline
from sightline import FewShotClassifier
from sightline.cli import app
from sightline.errors import SightlineWarning


@pytest.fixture
def home(fitted, drawn, tmp_path, monkeypatch):
    """A working folder with the classifier `signs.sightline` and images of a further class."""
    monkeypatch.chdir(tmp_path)
    fitted.save("signs.sightline")
    Path("new").mkdir()
    for i, image in enumerate(list(drawn.values())[6][:3]):
        Image.fromarray(image[0].numpy()).save(f"new/{i}.png")
    return tmp_path


def call(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result


def test_add_adds_a_class_and_images_of_a_class(home, fitted):
    output = call("add", "signs.sightline", "new", "new/0.png").stdout
    assert output.startswith("6 classes, 16 examples (1 to 3 per class)\n")
    assert output.endswith("wrote signs.sightline\n")
    call("add", "signs.sightline", "new", "new")
    assert FewShotClassifier.load("signs.sightline").counts == {**fitted.counts, "new": 4}


def test_add_reports_images_that_the_classifier_has(home, fitted, drawn):
    assert call("add", "signs.sightline", "new", "new/0.png").stderr == ""
    path, label = Path("copy.png"), fitted.classes[0]
    Image.fromarray(drawn[label][1][0].numpy()).save(path)
    warned = call("add", "signs.sightline", "new", path).stderr
    assert warned == f"warning: duplicate: {label}/image 2, new/copy.png: the same image in 2 classes\n"
    classifier = FewShotClassifier.load("signs.sightline")
    with pytest.warns(SightlineWarning, match=r"^duplicate: new/0\.png, new/image 1: the same image$") as caught:
        classifier.add("new", [Image.open("new/0.png")])
    assert len(caught) == 1  # not those of before
    assert caught[0].filename == __file__
    again = call("add", "signs.sightline", "new", "new/0.png").stderr
    assert again == "warning: duplicate: new/0.png, 2 times: the same image\n"


def test_added_images_are_predicted(home):
    call("add", "signs.sightline", "new", "new/0.png", "new/1.png")
    expected = FewShotClassifier.load("signs.sightline").predict("new/2.png")
    assert expected.scores.keys() >= {"new"}
    assert call("predict", "signs.sightline", "new/2.png").stdout == f"new/2.png: {expected.summary()}\n"


def test_remove_removes_a_class(home, fitted):
    label = fitted.classes[0]
    assert call("remove", "signs.sightline", label).stdout.startswith("4 classes, 12 examples")
    assert label not in FewShotClassifier.load("signs.sightline").classes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "signs.sightline", "new", "nowhere.png"), "class 'new': an image must be a file, got 'nowhere.png'"),
        (("add", "signs.sightline", " ", "new"), "a class name must be printable text"),
        (("add", "gone.sightline", "new", "new"), "got 'gone.sightline', which does not exist"),
        (("remove", "signs.sightline", "nobody"), "a class to remove must be one of "),
        (("remove", "new", "nobody"), "got 'new', which is not a file"),
        (("info", "nowhere"), "run must be the folder of a trained model"),
    ],
)
def test_errors_leave_the_file(home, arguments, message):
    before = Path("signs.sightline").read_bytes()
    assert message in call(*arguments, status=2).stderr
    assert Path("signs.sightline").read_bytes() == before


def test_info_describes_a_classifier(home, fitted, run):
    output = call("info", "signs.sightline").stdout
    assert "None" not in output
    assert "kind               a fitted classifier" in output
    assert f"versions           sightline {sightline.__version__}, torch {torch.__version__}" in output
    assert f"bytes              {Path('signs.sightline').stat().st_size:,}" in output
    assert f"  {fitted.classes[0]}  3\n" in output
    assert f"model              {run}\n" in output
    assert "rejection          too few images to estimate the rates: one of 15 held-out images is 7%\n" in output
    assert re.search("threshold|scale|auroc", output) is None  # they are in units of logits, or not sure
    [record] = json.loads(call("info", "signs.sightline", "--format", "json").stdout)
    assert record["classes"] == fitted.counts
    assert record["calibration"]["threshold"] == fitted.calibration.threshold
    assert (record["model"], record["calibration"]["auroc"]) == (str(run), None)
    assert record == sightline.info("signs.sightline")


def test_details_have_the_auroc_of_enough_images(run, drawn):
    classifier = FewShotClassifier.pretrained(run).fit({name: drawn[name][:5] for name in list(drawn)[:4]})
    details = classifier.details()
    calibration = details["calibration"]
    assert re.fullmatch(
        r"about \d+% of known images are rejected \(.*\), \d+% of similar images of other classes accepted",
        details["rejection"],
    )
    assert (calibration["held_out_examples"], calibration["auroc"]) == (20, classifier.calibration.auroc)
    assert calibration["rejected_known"] == classifier.calibration.rejected_known


def test_info_describes_a_run(tiny_run):
    values = sightline.info(tiny_run)
    assert (values["kind"], values["training_steps"], values["is_finished"]) == (
        "a run of image_classification", 6, True
    )  # fmt: skip
    assert values["classes"] == list(sightline.load(tiny_run).classes)
    assert values["validation"].keys() >= {"accuracy", "loss"}
    [row] = csv.DictReader(io.StringIO(call("info", tiny_run, "--format", "csv").stdout))
    assert int(row["parameters"]) == values["parameters"]
    assert sightline.info("photos")["buffers"] > 100_000 > sightline.info("photos")["parameters"]  # its statistics


@pytest.mark.parametrize(("name", "task"), [("glyphs", "few_shot"), ("de-en", "translation")])
def test_info_describes_pretrained_models(name, task):
    values = sightline.info(name)
    assert values["kind"] == f"a run of {task}"
    assert values["versions"].startswith("sightline ")
    assert values["training_steps"] is None
