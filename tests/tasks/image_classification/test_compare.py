"""Comparison of image classifiers on identical images."""

import json
from math import comb

import pytest
import torch
from typer.testing import CliRunner

import sightline
from processes import SMALL, write_images
from sightline.cli import app
from sightline.errors import SightlineError
from sightline.metrics import mcnemar_p_value
from sightline.runs import compare


def train(folder, name, *changes, data="images.npz"):
    """A run in the folder, on images in it."""
    changes = [f"data.source={folder / data}", f"out={folder / name}", *SMALL, *changes]
    return sightline.train(None, changes, quiet=True).folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs on one data set."""
    folder = tmp_path_factory.mktemp("compared")
    write_images(folder / "images.npz")
    train(folder, "one", "training.steps=2")
    train(folder, "two", "training.steps=12", "model.embed_dim=16")
    return folder


def correct(run, data=None):
    predictor = sightline.load(run)
    [images], _ = predictor.evaluation_split(data)
    labels = [predictor.predict(images.read(i)).label for i in range(len(images))]
    return torch.tensor([label == images.classes[target] for label, target in zip(labels, images.labels, strict=True)])


def test_differences_are_paired(folder):
    result = compare([folder / "one", folder / "two"], device="cpu")
    first, second = correct(folder / "one"), correct(folder / "two")
    one, two = result.results
    assert (result.split, result.images) == ("validation", len(first))
    assert one.accuracy == pytest.approx(float(first.double().mean()))
    assert two.difference == pytest.approx(float(second.double().mean() - first.double().mean()))
    assert two.only_right == int((second & ~first).sum())
    assert two.only_wrong == int((first & ~second).sum())
    assert two.p_value == mcnemar_p_value(two.only_right, two.only_wrong)
    low, high = two.difference_interval
    assert low <= two.difference <= high
    evaluation = sightline.evaluate(folder / "two", device="cpu")
    assert (two.accuracy, two.interval) == (evaluation.accuracy, evaluation.interval)
    assert two.loss == pytest.approx(evaluation.loss, rel=1e-4)
    assert (one.difference, one.p_value) == (0, 1)


def test_command_prints_all_tables_and_writes_records(folder, tmp_path):
    arguments = ["compare", str(folder / "one"), str(folder / "two"), "--device", "cpu"]
    output = CliRunner().invoke(app, [*arguments, "--show", str(tmp_path / "page.html")])
    assert output.exit_code == 0, output.output
    assert output.stdout.startswith("validation set, the same 6 images for all models; it also selected and calibrated")
    assert "model.embed_dim" in output.stdout
    page = (tmp_path / "page.html").read_text()
    assert "Validation accuracy" in page
    assert page.count("<polyline") >= 4
    records = json.loads(CliRunner().invoke(app, [*arguments, "--format", "json"]).stdout)
    assert [record["name"] for record in records] == ["one", "two"]
    assert (records[0]["p_value"], records[1]["training_steps"]) == (None, 12)


def test_other_data_is_used_for_all(folder, tmp_path):
    write_images(tmp_path / "other.npz", count=5)
    result = compare([folder / "one", folder / "two"], data=str(tmp_path / "other.npz"), device="cpu")
    assert (result.split, result.images) == ("full", 15)


def test_runs_on_different_images_are_refused(folder):
    write_images(folder / "fewer.npz", count=19)
    other = train(folder, "other", "training.steps=1", data="fewer.npz")
    with pytest.raises(SightlineError, match=r"the same images to be compared, got others for other .*; pass --data"):
        compare([folder / "one", other], device="cpu")


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 5), (3, 4), (40, 21), (300, 351)])
def test_mcnemar_is_the_exact_binomial_test(first, second):
    total = first + second
    tail = sum(comb(total, k) for k in range(min(first, second) + 1))
    assert mcnemar_p_value(first, second) == pytest.approx(min(1.0, 2 * tail / 2**total))
    assert mcnemar_p_value(first, second) == mcnemar_p_value(second, first)
