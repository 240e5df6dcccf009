"""Pseudo-perplexity of masked language models: which lines and tokens it is of, and paired comparisons."""

import json
import math
import re

import pytest
import torch

from sightline.config import for_data
from sightline.data.text.corpora import MonolingualText, TextSplits
from sightline.data.text.tokenizers import train_tokenizer
from sightline.errors import SightlineError
from sightline.models.masked_lm import MaskedLM, MaskedLMConfig
from sightline.tasks.masked_lm.compare import compare
from sightline.tasks.masked_lm.config import MaskedLMTaskConfig, SentenceData
from sightline.tasks.masked_lm.evaluate import evaluate, score_lines
from sightline.tasks.masked_lm.predictor import MaskedLMPredictor
from sightline.tasks.text_data import EncoderTokenizerConfig

SHORT = ("A dog runs through the water.", "Two dogs run on the beach.", "A man sits on the sofa.")
LONG = " ".join(["Two men run through the water on the beach."] * 3)


@pytest.fixture(scope="module")
def make_predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def make(max_tokens=16, kind="word", seed=0):
        torch.manual_seed(seed)
        tokenizer_config = EncoderTokenizerConfig(kind=kind, vocab_size=400)
        model = MaskedLMConfig(embed_dim=8, ffn_dim=11, num_heads=2, depth=1, max_positions=max_tokens)
        config = MaskedLMTaskConfig(data=SentenceData(max_tokens=max_tokens), tokenizer=tokenizer_config, model=model)
        tokenizer = train_tokenizer(tokenizer_config, [*SHORT, LONG])
        model = MaskedLM(for_data(model, vocab_size=len(tokenizer)))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        return MaskedLMPredictor(folder / f"{kind}-{max_tokens}", config, tokenizer, model)

    return make


def test_lines_that_are_cut_are_not_scored_and_the_report_says_so(make_predictor):
    predictor = make_predictor()
    texts = [MonolingualText(SHORT), MonolingualText((*SHORT, LONG))]
    steps = []
    alone, both = (evaluate(predictor, text, "test", lambda *step: steps.append(step)) for text in texts)
    assert steps == [(1, 1)] * 4  # masked tokens, then single masks, of each text
    assert (alone.scored_lines, alone.long_lines, both.scored_lines, both.long_lines) == (3, 0, 3, 1)
    assert both.pseudo_perplexity == pytest.approx(alone.pseudo_perplexity, rel=1e-4)
    assert both.word_pseudo_perplexity == pytest.approx(alone.word_pseudo_perplexity, rel=1e-4)
    assert "(3 of 4 lines; 1 is longer than data.max_tokens)" in str(both)
    assert "(3 lines)" in str(alone)


def test_without_a_line_that_fits_there_is_no_pseudo_perplexity(make_predictor):
    evaluation = evaluate(make_predictor(), MonolingualText((LONG, LONG)), "validation")
    assert evaluation.pseudo_perplexity is evaluation.word_pseudo_perplexity is None
    assert "pseudo-perplexity  none  (0 of 2 lines; 2 are longer than data.max_tokens)" in str(evaluation)
    assert "it also selected the model, so" in str(evaluation)
    assert json.loads(json.dumps(evaluation.to_dict()))["pseudo_perplexity"] is None
    assert evaluation.masked_tokens > 0


def test_unknown_tokens_are_counted_and_not_scored(make_predictor):
    predictor = make_predictor()
    text = MonolingualText((SHORT[0], "A zebra runs through the water."))
    evaluation = evaluate(predictor, text, "test")
    assert (evaluation.unknown_tokens, evaluation.known_lines) == (1, 1)
    scores = score_lines(predictor, text, [0, 1])
    assert scores.known_tokens.tolist() == [7, 6]
    assert evaluation.pseudo_perplexity == pytest.approx(math.exp(-float(scores.log_likelihoods.sum()) / 13))
    [first] = score_lines(predictor, text, [0]).log_likelihoods.tolist()
    assert evaluation.word_pseudo_perplexity == pytest.approx(math.exp(-first / 6))
    assert "1 unknown tokens are not scored" in str(evaluation)
    with torch.no_grad():  # the sum leaves out the unknown token, whatever its probability
        predictor.model.head.bias[3] -= 1000.0
    assert torch.isfinite(score_lines(predictor, text, [1]).log_likelihoods).all()
    assert float(score_lines(predictor, text, [1]).log_likelihoods) > -1000


def test_comparisons_are_of_the_lines_that_fit_all_models(make_predictor):
    small, large = make_predictor(16), make_predictor(40, "bpe", seed=1)
    lines = (*SHORT, LONG, "Two men sit on the sofa.", "Two men run.")  # sit is unknown to the small one
    data = TextSplits(MonolingualText(lines))
    comparison = compare([large, small], ["large", "small"], data=data)
    assert (comparison.lines, comparison.scored_lines) == (6, 4)
    first, second = comparison.results
    joint = MonolingualText((*SHORT, lines[5]))
    for predictor, result in ((large, first), (small, second)):
        expected = evaluate(predictor, joint, "full")
        assert result.word_pseudo_perplexity == pytest.approx(expected.word_pseudo_perplexity, rel=1e-4)
        assert result.pseudo_perplexity == pytest.approx(expected.pseudo_perplexity, rel=1e-4)
        assert (result.accuracy, result.interval) == (expected.accuracy, expected.interval)
    assert second.difference == pytest.approx(second.word_pseudo_perplexity - first.word_pseudo_perplexity)
    low, high = second.difference_interval
    assert low <= second.difference <= high
    assert "scored are the first 4 that no model cuts" in comparison.title()
    with pytest.raises(SightlineError, match=r"data must have lines that no model cuts .*got none in 2 lines"):
        compare([large, small], ["large", "small"], data=TextSplits(MonolingualText((LONG, LONG + " A."))))


def test_logits_are_computed_at_masks_only(make_predictor):
    predictor = make_predictor()
    texts = ["A dog [MASK] through the [MASK].", "Two [MASK] sit."]
    prepared = [predictor.prepare(text) for text in texts]
    logits = predictor.logits(prepared)
    assert logits.shape == (2, 2, len(predictor.tokenizer))
    with torch.no_grad():
        ids = torch.tensor([prepared[1]])
        expected = predictor.model(ids, torch.ones_like(ids, dtype=torch.bool))[0, 2, 5:]
    assert torch.allclose(logits[1, 0, 5:], expected, atol=1e-5)
    filled = predictor.predict(texts, top_k=1)
    assert [[mask.position for mask in text.masks] for text in filled] == [[3, 6], [2]]
    best = predictor.tokenizer.tokens([5 + int(expected.argmax())])
    assert [filled[1].masks[0].words[0][0]] == best


@pytest.mark.parametrize("spelling", ["[mask]", "<mask>", "[ MASK ]", "___"])
def test_another_spelling_of_the_mask_is_named(make_predictor, spelling):
    with pytest.raises(
        SightlineError, match=r"at least one \[MASK\], got .*; put it in place of " + re.escape(spelling)
    ):
        make_predictor().predict(f"A dog {spelling}.")
