"""Metrics of translations, without a trained model."""

import json

import pytest
import torch
from sacrebleu import BLEU, CHRF

from sightline.data.text.corpora import ParallelText
from sightline.errors import SightlineError
from sightline.tasks.translation import evaluate as evaluate_module
from sightline.tasks.translation.evaluate import bleu, compare_precision, score_translations
from sightline.tasks.translation.task import TranslationTask

SOURCES = ("a b", "a b c d e f", "a " * 60)
REFERENCES = ("The cat sat there.", "A dog ran to the park.", "x y z w")
TRANSLATIONS = ["the cat sat there .", "A dog ran to a park.", "x y z w"]


def evaluation(**changes):
    options = {"num_beams": 3, "length_penalty": 0.5, **changes}
    return score_translations("test", ParallelText(SOURCES, REFERENCES), TRANSLATIONS, **options)


def test_metrics_are_those_of_sacrebleu():
    result = evaluation()
    assert result.bleu == BLEU().corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert result.bleu_lowercase == BLEU(lowercase=True).corpus_score(TRANSLATIONS, [REFERENCES]).score > result.bleu
    assert result.chrf == CHRF().corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert "tok:13a" in result.signature


def test_groups_are_by_source_words():
    result = evaluation()
    groups = [(group["min_words"], group["max_words"], group["pairs"]) for group in result.by_length]
    assert groups == [(1, 5, 1), (6, 10, 1), (51, None, 1)]
    assert result.by_length[-1]["bleu"] == pytest.approx(100)
    assert str(result).splitlines()[-1].split() == ["51+", "100.0", "1", "pairs"]
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["by_length"] == result.by_length


def test_a_cased_model_reports_cased_bleu_first():
    result = evaluation(num_beams=1)
    lines = str(result).splitlines()
    assert lines[0] == "test set, 3 pairs, greedy"
    assert lines[1].startswith(f"BLEU               {result.bleu:.1f}  (nrefs:1|")
    assert f"BLEU {result.bleu:.1f} cased, {result.bleu_lowercase:.1f} lower-cased (13a)" in result.summary()
    assert "lower case" not in str(result) + result.summary()


def test_a_lowercase_model_reports_lowercase_bleu_first():
    result = evaluation(lowercase=True)
    title, lowercase, cased, chrf = str(result).splitlines()[:4]
    assert title == "test set, 3 pairs, 3 beams"
    assert lowercase.startswith("BLEU, lower-cased  ")
    assert cased.startswith(f"BLEU               {result.bleu:.1f}  (cased; the model writes lower case)  (nrefs:1|")
    assert chrf == f"chrF               {result.chrf:.1f}  (cased; the model writes lower case)"
    assert "; the model writes lower case. `" in result.summary()


def test_bleu_from_summed_counts_is_the_corpus_bleu():
    candidates, references = ["a b c d e", "f g h i", "a b c"], ["a b c d f", "f g h i", "a b d c"]
    parts = [bleu(candidates[i::2], references[i::2]) for i in range(2)]
    counts = [torch.tensor([*part.counts, *part.totals, part.sys_len, part.ref_len]).double() for part in parts]
    sums = {"loss": torch.tensor(3.0), "tokens": torch.tensor(2.0), "bleu": sum(counts)}
    expected = BLEU().corpus_score(candidates, [references]).score
    assert TranslationTask.metrics(None, sums)["bleu"] == pytest.approx(expected)


@pytest.mark.parametrize(("after", "is_close"), [(40.4, True), (40.6, False), (39.0, False), (float("nan"), False)])
def test_half_precision_may_change_bleu_a_little(monkeypatch, after, is_close):
    class Predictor:
        def __init__(self, value):
            self.value = value

        def evaluation_pairs(self, data):
            assert data == "corpus"
            return ParallelText(SOURCES * 100, REFERENCES * 100), "test"

    def evaluate(predictor, pairs, split, progress):
        assert (len(pairs), split) == (200, "test")
        return type("Result", (), {"bleu_lowercase": predictor.value})

    monkeypatch.setattr(evaluate_module, "evaluate", evaluate)
    if is_close:
        sentence = compare_precision(Predictor(40.0), Predictor(after), "corpus")
        assert sentence == "lower-cased BLEU 40.00 before and 40.40 after, over the first 200 sentences of the test set"
    else:
        with pytest.raises(SightlineError, match="BLEU in half precision must differ by at most"):
            compare_precision(Predictor(40.0), Predictor(after), "corpus")
