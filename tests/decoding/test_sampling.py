import math

import pytest
import torch
from torch.testing import assert_close

from decoding_methods import greedy, sample
from markov_chain import BOS, EOS, GREEDY_TRAP, A, C, MarkovChain, random_tables, transitions
from sightline.decoding.sampling import candidates


def test_greedy_takes_the_most_probable_token_until_eos():
    (hypothesis,), (empty,) = greedy(MarkovChain(), transitions(GREEDY_TRAP, {(BOS, EOS): 1.0}))
    assert hypothesis.tokens[0] == A
    assert hypothesis.score == pytest.approx(math.log(0.3), abs=1e-5)
    assert hypothesis.normalized_score == pytest.approx(math.log(0.3) / 3, abs=1e-5)
    assert hypothesis.finished
    assert empty.tokens == ()
    assert empty.score == pytest.approx(0, abs=1e-5)


def test_top_k_and_top_p_exclude_improbable_tokens():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    probs, ids = candidates(logits, top_k=2)
    assert ids.tolist() == [[1, 3]]
    assert_close(probs, torch.tensor([[4 / 7, 3 / 7]]))
    probs, ids = candidates(logits, top_p=0.69)
    assert ids.tolist() == [[1, 3, 2, 0]]
    assert_close(probs, torch.tensor([[0.4, 0.3, 0.0, 0.0]]))
    assert (candidates(logits, top_p=0.71)[0] > 0).sum() == 3
    assert (candidates(logits, top_p=1e-9)[0] > 0).sum() == 1
    assert (candidates(logits, top_k=9, top_p=1.0)[0] > 0).sum() == 4


def test_samples_follow_the_probabilities_of_the_model():
    endings = {(token, EOS): 1.0 for token in (A, C, 5)}
    encoder_output = transitions({(BOS, A): 0.6, (BOS, C): 0.3, (BOS, 5): 0.1, **endings})

    def frequencies(**options):
        generator = torch.Generator().manual_seed(0)
        (hypotheses,) = sample(MarkovChain(), encoder_output, num_samples=1000, generator=generator, **options)
        return [sum(hypothesis.tokens == (token,) for hypothesis in hypotheses) / 1000 for token in (A, C, 5)]

    assert frequencies() == pytest.approx([0.6, 0.3, 0.1], abs=0.04)
    assert frequencies(temperature=0.5) == pytest.approx([0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46], abs=0.04)
    assert frequencies(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0], abs=0.04)
    assert frequencies(top_p=0.5) == [1, 0, 0]
    assert frequencies() == frequencies()


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300])
def test_sampling_at_low_temperature_equals_greedy(temperature):
    encoder_output = transitions({(BOS, A): 0.6, (BOS, C): 0.4, (A, EOS): 1.0, (C, EOS): 1.0})
    for suppressed, expected in (((0, BOS), (A,)), ((0, BOS, A), (C,))):
        options = {"num_samples": 50, "temperature": temperature, "suppress_tokens": suppressed}
        (hypotheses,) = sample(MarkovChain(), encoder_output, **options)
        assert {hypothesis.tokens for hypothesis in hypotheses} == {expected}


def test_samples_are_ranked():
    results = sample(MarkovChain(), random_tables(3), num_samples=7, max_tokens=9)
    assert [len(hypotheses) for hypotheses in results] == [7, 7, 7]
    for hypotheses in results:
        keys = [(hypothesis.finished, hypothesis.normalized_score) for hypothesis in hypotheses]
        assert keys == sorted(keys, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0 and finite, got 0.0; use greedy instead of 0"),
        ({"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        sample(MarkovChain(), transitions(GREEDY_TRAP), **options)
