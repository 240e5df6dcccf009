"""What greedy decoding, beam search and sampling have in common."""

import math

import pytest
import torch

from decoding_methods import beam_search, decoder_inputs, greedy, sample
from markov_chain import BOS, EOS, GREEDY_TRAP, A, C, MarkovChain, Tables, random_tables, transitions


@pytest.mark.parametrize("num_beams", [None, 2, 3])
def test_results_do_not_depend_on_batch_composition(num_beams):
    """Sequences of very different lengths, so that rows are dropped at many different steps."""
    encoder_output = random_tables(sources=41, vocab_size=67)
    encoder_output.tables[:, :, EOS] += torch.linspace(0, 6, 41)[:, None]

    def decode(encoder_output):
        if num_beams is None:
            return greedy(MarkovChain(), encoder_output)
        return beam_search(MarkovChain(), encoder_output, num_beams=num_beams, n_best=2)

    batched = decode(encoder_output)
    assert len({len(hypotheses[0].tokens) for hypotheses in batched}) > 5
    assert batched == [decode(Tables(table[None]))[0] for table in encoder_output.tables]


def test_finished_sources_are_dropped_from_the_batch():
    short, long = {(BOS, EOS): 0.9, (BOS, A): 0.1, (A, EOS): 1.0}, {(BOS, A): 1.0, (A, A): 1.0}
    model, encoder_output = MarkovChain(), transitions(*[short] * 99, long)
    greedy(model, encoder_output, max_tokens=50)
    assert model.rows == 100 + 49
    model = MarkovChain()
    beam_search(model, encoder_output, num_beams=2, max_tokens=50)
    assert model.rows == 100 + 2 * 100 + 2 * 48


@pytest.mark.parametrize("method", [greedy, beam_search, sample])
def test_sequences_without_eos_are_cut_off(method):
    ((best, *_),) = method(MarkovChain(), transitions({(BOS, A): 1.0, (A, A): 1.0}), max_tokens=5)
    assert best.tokens == (A,) * 5
    assert not best.finished
    assert best.normalized_score == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("method", [greedy, beam_search, sample])
def test_an_empty_batch_gives_no_hypotheses(method):
    assert method(MarkovChain(), Tables(torch.zeros(0, 7, 7))) == []


@pytest.mark.parametrize("method", [greedy, beam_search])
def test_nan_logits_still_give_one_hypothesis(method):
    results = method(MarkovChain(), Tables(torch.full((2, 7, 7), float("nan"))), max_tokens=3)
    assert [len(hypotheses) for hypotheses in results] == [1, 1]


@pytest.mark.parametrize("method", [greedy, beam_search, sample])
def test_suppressed_tokens_are_not_predicted(method):
    encoder_output = transitions({(BOS, A): 0.9, (BOS, C): 0.1, (A, EOS): 1.0, (C, EOS): 1.0})
    ((best, *_),) = method(MarkovChain(), encoder_output, suppress_tokens=(0, BOS, A))
    assert best.tokens == (C,)
    assert best.score == pytest.approx(math.log(0.1), abs=1e-4)  # not renormalized over the other tokens


@pytest.mark.parametrize("method", [greedy, beam_search, sample])
@pytest.mark.parametrize(
    ("max_tokens", "message"),
    [(0, "max_tokens must be an integer of at least 1, got 0"), (1 << 20, "max_tokens must be at most 16,384")],
)
def test_invalid_max_tokens_raises(method, max_tokens, message):
    with pytest.raises(ValueError, match=message):
        method(MarkovChain(), transitions(GREEDY_TRAP), max_tokens=max_tokens)


def test_decoder_inputs_start_with_bos_and_are_padded():
    results = greedy(MarkovChain(), transitions(GREEDY_TRAP, {(BOS, EOS): 1.0}))
    inputs = decoder_inputs([hypotheses[0] for hypotheses in results])
    assert inputs.shape == (2, 3)
    assert inputs[:, 0].tolist() == [BOS, BOS]
    assert inputs[1].tolist() == [BOS, 0, 0]
    assert decoder_inputs([]).shape == (0, 1)
