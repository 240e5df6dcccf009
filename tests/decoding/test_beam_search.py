import itertools
import math

import pytest
import torch

from decoding_methods import beam_search
from markov_chain import BOS, EOS, GREEDY_TRAP, A, C, MarkovChain, random_tables, transitions
from sightline.decoding.beam_search import repeating_tokens


def test_beam_search_finds_a_better_sequence_than_greedy():
    (best,) = beam_search(MarkovChain(), transitions(GREEDY_TRAP), num_beams=2)
    assert best[0].tokens == (C, 5)
    assert best[0].score == pytest.approx(math.log(0.4), abs=1e-5)


@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize(("length_penalty", "ngram_size"), [(0.0, 0), (0.6, 0), (1.0, 0), (1.0, 1), (1.0, 2)])
def test_wide_beam_search_equals_exhaustive_search(early_stopping, length_penalty, ngram_size):
    vocab_size, max_tokens = 7, 4
    encoder_output = random_tables(vocab_size=vocab_size)
    tokens = [token for token in range(vocab_size) if token not in (0, BOS, EOS)]
    options = {"length_penalty": length_penalty, "max_tokens": max_tokens, "early_stopping": early_stopping}
    options["no_repeat_ngram_size"] = ngram_size
    results = beam_search(MarkovChain(), encoder_output, num_beams=400, n_best=3, **options)
    for log_probs, hypotheses in zip(encoder_output.tables.log_softmax(-1), results, strict=True):
        scored = []
        for length in range(max_tokens):
            for sequence in itertools.product(tokens, repeat=length):
                ngrams = [sequence[i : i + ngram_size] for i in range(length - ngram_size + 1)]
                if ngram_size and len({*ngrams}) < len(ngrams):
                    continue
                path = itertools.pairwise([BOS, *sequence, EOS])
                score = sum(float(log_probs[token, next_token]) for token, next_token in path)
                scored.append((score / (length + 1) ** length_penalty, sequence))
        scores, sequences = zip(*sorted(scored, reverse=True)[:3], strict=True)
        assert tuple(hypothesis.tokens for hypothesis in hypotheses) == sequences
        assert [hypothesis.normalized_score for hypothesis in hypotheses] == pytest.approx(scores, abs=1e-4)


def test_length_penalty_favors_longer_sequences():
    encoder_output = transitions({(BOS, EOS): 0.3, (BOS, A): 0.7, (A, C): 0.6, (A, 5): 0.4, (C, EOS): 0.6, (C, 6): 0.4})
    assert beam_search(MarkovChain(), encoder_output, num_beams=3, length_penalty=0.0)[0][0].tokens == ()
    assert beam_search(MarkovChain(), encoder_output, num_beams=3, length_penalty=1.0)[0][0].tokens == (A, C)


def test_search_without_early_stopping_finds_a_better_sequence():
    """Two hypotheses are finished after two steps; the best one needs another step."""
    encoder_output = transitions(
        {(BOS, EOS): 0.3, (BOS, A): 0.7, (A, EOS): 0.3, (A, C): 0.7, (C, 5): 1.0, (5, EOS): 1.0}
    )
    early = beam_search(MarkovChain(), encoder_output, num_beams=2, early_stopping=True)[0][0]
    late = beam_search(MarkovChain(), encoder_output, num_beams=2, early_stopping=False, max_tokens=9)[0][0]
    assert len(early.tokens) < len(late.tokens)
    assert late.tokens == (A, C, 5)
    assert late.normalized_score > early.normalized_score


def test_finished_hypotheses_come_before_unfinished_ones():
    encoder_output = transitions({(BOS, A): 0.9, (BOS, C): 0.1, (A, A): 1.0, (C, EOS): 1.0})
    (hypotheses,) = beam_search(MarkovChain(), encoder_output, num_beams=2, n_best=2, max_tokens=6)
    assert [hypothesis.tokens for hypothesis in hypotheses] == [(C,), (A,) * 6]
    assert hypotheses[1].normalized_score > hypotheses[0].normalized_score


def test_more_beams_than_tokens():
    (hypotheses,) = beam_search(MarkovChain(), random_tables(1), num_beams=50, n_best=50, max_tokens=2)
    assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses) == 1 + 4 + 16
    assert all(math.isfinite(hypothesis.score) for hypothesis in hypotheses)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams must be an integer of at least 1, got 0"),
        ({"num_beams": 1 << 20}, "num_beams must be at most 1,024"),
        ({"num_beams": 2, "n_best": 3}, "n_best must be at most num_beams=2, got 3; raise num_beams"),
        ({"length_penalty": -1.0}, "length_penalty must be at least 0 and finite, got -1.0"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(MarkovChain(), transitions(GREEDY_TRAP), **options)


def test_no_sequence_of_tokens_is_repeated():
    rows, banned = repeating_tokens(torch.tensor([[3, 5, 7, 3, 5], [3, 5, 7, 5, 3], [4, 4, 4, 4, 4]]), 3)
    assert list(zip(rows.tolist(), banned.tolist(), strict=True)) == [(0, 7), (2, 4), (2, 4), (2, 4)]
    rows, banned = repeating_tokens(torch.tensor([[3, 5, 3]]), 1)
    assert {*banned.tolist()} == {3, 5}
    assert all(len(x) == 0 for x in repeating_tokens(torch.tensor([[3, 3, 3]]), 4))
