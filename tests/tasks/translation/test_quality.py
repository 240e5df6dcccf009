"""The estimated quality of translations: calibrated, low for nonsense, stored with the run."""

import json

import numpy as np
import pytest

import sightline
from sightline.data.text.corpora import ParallelText
from sightline.errors import SightlineError
from sightline.tasks.translation import quality
from sightline.tasks.translation.quality import NgramTable, Quality, corrupted, fit_quality


def test_words_unlike_the_training_text_are_found():
    table = NgramTable.of(["siebenundvierzig", "dreihundert und zwei"])
    assert table.familiarity("Siebenhundert") > 0.7
    assert table.familiarity("hallo welt") == 0
    assert table.unfamiliar_words("hallo dreihundert, 42!") == ("hallo", "42!")
    assert table.familiarity("?!") == 1


def test_estimate_is_calibrated_and_low_for_unfamiliar_sources():
    random = np.random.default_rng(0)
    scores, is_corrupted = -random.exponential(0.5, 2000), np.arange(2000) >= 1000
    familiarity = np.where(is_corrupted, 0.4, 1.0)
    truth = np.where(is_corrupted, 0.1, 1 / (1 + np.exp(-(1.5 + 2 * scores))))
    chrf = np.clip(truth + random.normal(0, 0.05, 2000), 0, 1)
    model = fit_quality(scores, familiarity, chrf, is_corrupted)
    assert model.sentences == 1000
    assert model.calibration_error < 0.02
    assert model.correlation > 0.9
    estimates = model(scores, familiarity)
    assert np.abs(estimates[:1000] - truth[:1000]).mean() < 0.02
    assert abs(estimates[1000:].mean() - 0.1) < 0.02


def test_corrupted_sources_have_other_words():
    pairs = ParallelText(("eins zwei drei vier", "acht"), ("one two three four", "eight"))
    first, second = corrupted(pairs, seed=0)
    assert sum(a == b for a, b in zip(first.split(), pairs.source[0].split(), strict=True)) == 2
    assert second != "acht"
    assert corrupted(pairs, seed=0) == [first, second]


def test_estimate_survives_its_file_and_damaged_files_are_refused():
    values = {"intercept": 1.0, "score_weight": 2.0, "unfamiliarity_weight": -3.0}
    model = quality.QualityModel(**values, sentences=77, calibration_error=0.1, correlation=0.5)
    stored = Quality(NgramTable.of(["abcdef"]), model).to_bytes()
    loaded = Quality.from_json(json.loads(stored), "quality.json")
    assert loaded.model == model
    assert loaded.estimate("abcdef", -0.5) == pytest.approx(0.5)
    assert loaded.estimate("xyz", -0.5) == pytest.approx(1 / (1 + np.exp(3)))
    for key, value in (("ngrams", "AAAA"), ("ngrams", "eJwDAAAAAAE="), ("intercept", "x"), ("other", 1)):
        with pytest.raises(SightlineError, match=r"quality\.json must be the quality estimate of a run"):
            Quality.from_json(json.loads(stored) | {key: value}, "quality.json")


@pytest.fixture(scope="module")
def translator():
    return sightline.load("de-en")


def test_nonsense_has_low_quality_and_is_marked(translator):
    good, bad = translator.predict(["Kannst du mir bitte helfen?", "xqzt brk wlmpf"])
    assert good.quality > 0.6 > 0.2 > bad.quality
    assert good.unfamiliar_words == ()
    assert bad.unfamiliar_words == ("xqzt", "brk", "wlmpf")
    assert good.summary() == f"can you help me?  (quality {good.quality:.0%})"
    assert bad.summary().endswith("(unlike the training text: xqzt, brk, wlmpf)")
    assert bad.to_dict()["quality"] == bad.quality


def test_the_page_shows_the_quality(translator, tmp_path):
    explained = translator.explain(["Guten Abend"])
    assert f"quality {explained.predictions[0].quality:.0%}" in explained.page.save(tmp_path / "page.html").read_text()


def test_a_run_without_an_estimate_shows_none(translator, monkeypatch):
    monkeypatch.setattr(translator, "quality", None)
    [translation] = translator.predict(["Guten Abend"])
    assert (translation.quality, translation.summary()) == (None, translation.text)
