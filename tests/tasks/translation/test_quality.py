"""The estimated quality of translations: calibrated, low for nonsense, stored with the run."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import sightline
from number_run import write_corpus
from sightline.cli import app
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
    [translation] = explained.predictions
    others = [(other.text, None) for other in translation.alternatives]
    assert others
    rated = {"Expected quality": [(translation.text, translation.quality)], "Other translations": others}
    assert translation.ratings() == rated
    assert '"title":"Other translations"' in explained.page.html
    assert f"{translation.score:.4g}" not in explained.page.html  # a raw score says nothing about quality


def test_a_run_without_an_estimate_shows_none(translator, monkeypatch):
    monkeypatch.setattr(translator, "quality", None)
    [translation] = translator.predict(["Guten Abend"])
    assert (translation.quality, translation.summary()) == (None, translation.text)


@pytest.fixture(scope="module")
def number_run(tmp_path_factory):
    """The starter config, smaller, on short number words: it translates most of them right."""
    home = tmp_path_factory.mktemp("numbers")
    corpus = write_corpus(home / "corpus", train=170, validation=53, test=11, max_chars=20)
    model = [f"model.transformer.{change}" for change in ("ffn_dim=64", "encoder_layers=1", "decoder_layers=1")]
    training = [f"training.{change}" for change in ("steps=200", "batch_size=256", "warmup_steps=40", "device=cpu")]
    changes = ["task=translation", f"data.source={corpus}", f"out={home / 'run'}", "training.evaluate_every=200"]
    return sightline.train(None, [*changes, *model, *training], quiet=True).folder


def predict(*arguments, status=0):
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def test_nonsense_for_the_number_model_is_not_shown_as_certain(number_run, tmp_path):
    page = tmp_path / "page.html"
    known, nonsense, _ = predict(number_run, "dreihundertelf", "hallo welt", "--show", page).output.splitlines()
    assert known.startswith("dreihundertelf: three hundred eleven  (quality 9")
    assert "(unlike the training text: hallo, welt)" in nonsense
    assert "tokens unknown)" in nonsense
    shown = page.read_text("utf-8")
    known, nonsense = json.loads(predict(number_run, "dreihundertelf", "hallo welt", "--format", "json").stdout)
    assert nonsense["score"] > -0.3  # the decoder is sure of its words
    assert nonsense["quality"] < 0.5 < 0.9 < known["quality"]
    assert nonsense["unfamiliar_words"] == ["hallo", "welt"]
    for record in (known, nonsense):
        assert f"quality {record['quality']:.0%}" in shown


def test_beams_is_the_number_of_hypotheses_that_are_kept(number_run, tmp_path):
    found = {}
    for beams in (1, 3, 7):
        [found[beams]] = json.loads(predict(number_run, "zwölf", "--beams", beams, "--format", "json").stdout)
        assert len(found[beams]["alternatives"]) == beams - 1
    greedy = sightline.load(number_run).predict("zwölf", num_beams=1)
    assert (found[1]["text"], found[1]["score"]) == (greedy.text, pytest.approx(greedy.score, abs=1e-5))
    predict(number_run, "zwölf", "--beams", 3, "--format", "jsonl", "--out", tmp_path / "out.jsonl")
    written = json.loads((tmp_path / "out.jsonl").read_text())
    assert written["text"] == found[3]["text"]
    assert len(written["alternatives"]) == 2


def test_wrong_numbers_of_beams_are_one_line(number_run):
    assert (
        "top_k (--top) must be at most num_beams (--beams), 2, got 3"
        in predict(number_run, "elf", "--beams", 2, "--top", 3, status=2).stderr
    )
    assert "num_beams must be at most 100, got 101" in predict(number_run, "elf", "--beams", 101, status=2).stderr
    assert "--beams" in predict(number_run, "elf", "--beams", 0, status=2).stderr
