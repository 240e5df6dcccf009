"""Comparison of translators on identical sentences."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import number_run
import sightline
from sightline.cli import app
from sightline.comparison import RESAMPLES, resample_weights
from sightline.data.text.corpora import ParallelText
from sightline.errors import SightlineError
from sightline.runs import compare
from sightline.tasks.text_data import SearchConfig
from sightline.tasks.translation import compare as comparison
from sightline.tasks.translation.evaluate import bleu

SIZES, ANIMALS = ("big", "small", "old"), ("dog", "cat", "horse", "bird")
REFERENCES = tuple(f"the {size} {animal} runs over the {size} hill" for size in SIZES for animal in ANIMALS)
PAIRS = ParallelText(REFERENCES, REFERENCES)


def damaged(every):
    """Translations in which every n-th sentence has lost its last words."""
    return [text if i % every else " ".join(text.split()[:3]) for i, text in enumerate(REFERENCES)]


class FakePredictor:
    """Translates by a table."""

    config = SimpleNamespace(search=SearchConfig())

    def __init__(self, texts, pairs=PAIRS):
        self.texts, self.pairs = texts, pairs

    def evaluation_pairs(self, data=None):
        return self.pairs, "test"


@pytest.fixture(autouse=True)
def _tables(monkeypatch):
    monkeypatch.setattr(comparison, "translations_of", lambda predictor, pairs: predictor.texts)


def test_bleu_of_the_statistics_is_that_of_sacrebleu():
    statistics = comparison.bleu_statistics(damaged(3), PAIRS)
    [score] = comparison.corpus_bleu(statistics.sum(0, keepdims=True))
    assert score == pytest.approx(bleu(damaged(3), REFERENCES, lowercase=True).score)


def test_a_worse_translator_is_significantly_worse():
    result = comparison.compare([FakePredictor(damaged(99)), FakePredictor(damaged(2))], ["good", "bad"])
    good, bad = result.results
    assert bad.difference == pytest.approx(bad.bleu_lowercase - good.bleu_lowercase)
    low, high = bad.difference_interval
    assert low < bad.difference < high < 0
    assert bad.p_value < 0.05
    assert bad.interval[0] < bad.bleu_lowercase < bad.interval[1]


def test_equal_translators_do_not_differ():
    result = comparison.compare([FakePredictor(damaged(3)), FakePredictor(damaged(3))], ["one", "two"])
    assert result.results[1].difference_interval == (0, 0)
    assert result.results[1].p_value == 1
    assert [record["p_value"] for record in result.to_records()] == [None, 1]


def test_intervals_are_those_of_a_plain_paired_bootstrap():
    """Resamples of the sentences themselves, scored by sacreBLEU."""
    weights = resample_weights(len(PAIRS))
    assert weights.sum(1).tolist() == [len(PAIRS)] * RESAMPLES
    for row in weights[:3].astype(int):
        indices = np.repeat(np.arange(len(PAIRS)), row)
        expected = bleu([damaged(2)[i] for i in indices], [REFERENCES[i] for i in indices], lowercase=True).score
        [score] = comparison.corpus_bleu(row[None] @ comparison.bleu_statistics(damaged(2), PAIRS))
        assert score == pytest.approx(expected)


def test_other_sentences_are_refused():
    other = FakePredictor(damaged(2), ParallelText(REFERENCES[::-1], REFERENCES[::-1]))
    with pytest.raises(SightlineError, match="the same sentences to be compared, got others for two than for one"):
        comparison.compare([FakePredictor(damaged(2)), other], ["one", "two"])


def test_runs_are_compared(tmp_path, monkeypatch):
    monkeypatch.undo()
    run = number_run.train(tmp_path)
    result = compare([run, run], device="cpu")
    evaluation = sightline.evaluate(run, device="cpu")
    assert (result.split, result.pairs) == (evaluation.split, evaluation.pairs)
    assert result.results[0].bleu_lowercase == evaluation.bleu_lowercase
    assert result.results[1].difference == 0
    output = CliRunner().invoke(app, ["compare", str(run), "--device", "cpu", "--format", "markdown"])
    assert output.exit_code == 0, output.output
    assert re.search(r"\| run \| \d+\.\d\d \|", output.stdout)
    assert replace(result, runs=()).report() == str(result)
