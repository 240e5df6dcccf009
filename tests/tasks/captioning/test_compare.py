"""Comparison of captioners on identical images."""

import numpy as np
import pytest
from typer.testing import CliRunner

import caption_run
from sightline.cli import app
from sightline.comparison import resample_weights
from sightline.data.captions import shapes
from sightline.decoding import Hypothesis
from sightline.errors import SightlineError
from sightline.tasks.captioning.compare import compare
from sightline.tasks.captioning.evaluate import GeneratedCaption
from sightline.tasks.captioning.metrics import CiderD

IMAGES = shapes.draw(23, seed=3)


class FakePredictor:
    """Captions by a table."""

    def __init__(self, texts, images=IMAGES):
        self.texts, self.images = texts, images

    def evaluation_images(self, data=None):
        return self.images, "test"

    def caption_images(self, images):
        return None, [GeneratedCaption(text, Hypothesis((), 0.0, 0.0, True)) for text in self.texts]


def damaged(every):
    """Captions of which every n-th has lost its last words."""
    texts = [captions[0] for captions in IMAGES.captions]
    return [text if i % every else " ".join(text.split()[:4]) for i, text in enumerate(texts)]


def test_a_worse_captioner_is_significantly_worse():
    result = compare([FakePredictor(damaged(99)), FakePredictor(damaged(2))], ["good", "bad"])
    good, bad = result.results
    assert bad.difference == pytest.approx(bad.cider - good.cider)
    low, high = bad.difference_interval
    assert low < bad.difference < high < 0
    assert bad.p_value < 0.05
    assert bad.interval[0] < bad.cider < bad.interval[1]
    assert good.cider == pytest.approx(CiderD(IMAGES.captions).corpus_score(damaged(99), IMAGES.captions))


def test_intervals_are_those_of_a_plain_paired_bootstrap():
    _, bad = compare([FakePredictor(damaged(3)), FakePredictor(damaged(2))], ["one", "two"]).results
    cider, differences = CiderD(IMAGES.captions), []
    scores = [
        [cider.score(*pair) for pair in zip(texts, IMAGES.captions, strict=True)] for texts in (damaged(3), damaged(2))
    ]
    for row in resample_weights(len(IMAGES)).astype(int):
        indices = np.repeat(np.arange(len(IMAGES)), row)
        one, two = (np.mean([score[i] for i in indices]) for score in scores)
        differences.append(two - one)
    np.testing.assert_allclose(bad.difference_interval, np.percentile(differences, (2.5, 97.5)))


def test_equal_captioners_do_not_differ():
    result = compare([FakePredictor(damaged(3)), FakePredictor(damaged(3))], ["one", "two"])
    assert result.results[1].difference_interval == (0, 0)
    assert result.results[1].p_value == 1
    assert [record["p_value"] for record in result.to_records()] == [None, 1]


def test_other_images_are_refused():
    other = FakePredictor(damaged(2), shapes.draw(23, seed=4))
    with pytest.raises(SightlineError, match="the same images to be compared, got others for two than for one"):
        compare([FakePredictor(damaged(2)), other], ["one", "two"])


def test_runs_are_compared(tmp_path, monkeypatch):
    run = caption_run.train(tmp_path / "run")
    monkeypatch.setattr("sightline.tasks.captioning.config.load_captions", lambda *_, **__: caption_run.scenes())
    output = CliRunner().invoke(app, ["compare", str(run), str(run), "--device", "cpu"])
    assert output.exit_code == 0, output.output
    assert "the same 11 images for all models" in output.stdout
    assert "+0.000 to +0.000" in output.stdout
