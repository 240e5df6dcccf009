"""Decoding with the models of this package."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from decoding_methods import beam_search, decoder_inputs, greedy
from seq2seq_models import KINDS, TARGET_VOCAB_SIZE, has_attention, make_batch, make_model
from sightline import record_attention

BOS, EOS = 1, 2


@pytest.mark.parametrize("kind", KINDS)
def test_one_beam_equals_greedy(kind):
    model, (source, attention_mask, _) = make_model(kind), make_batch()
    encoder_output = model.encode(source, attention_mask)
    results = greedy(model.decoder, encoder_output, max_tokens=11)
    expected = beam_search(model.decoder, encoder_output, num_beams=1, max_tokens=11)
    for (a,), (b,) in zip(results, expected, strict=True):
        assert (a.tokens, a.finished) == (b.tokens, b.finished)
        assert a.score == pytest.approx(b.score, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_hypotheses_are_distinct_ranked_and_scored_by_the_model(kind):
    model, (source, attention_mask, _) = make_model(kind), make_batch()
    results = beam_search(model.decoder, model.encode(source, attention_mask), num_beams=5, n_best=4, max_tokens=11)
    for row, hypotheses in enumerate(results):
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == 4
        keys = [(hypothesis.finished, hypothesis.normalized_score) for hypothesis in hypotheses]
        assert keys == sorted(keys, reverse=True)
        inputs = source[row].expand(4, -1), attention_mask[row].expand(4, -1), decoder_inputs(hypotheses)
        with torch.no_grad():
            log_probs = model(*inputs).log_softmax(-1)
        for hypothesis, table in zip(hypotheses, log_probs, strict=True):
            tokens = [*hypothesis.tokens, EOS] if hypothesis.finished else hypothesis.tokens
            score = sum(float(table[position, token]) for position, token in enumerate(tokens))
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
            assert hypothesis.normalized_score == pytest.approx(score / len(tokens), abs=1e-4)
            assert not {0, BOS, EOS} & set(hypothesis.tokens)


@pytest.mark.parametrize("method", [greedy, beam_search])
@pytest.mark.parametrize("kind", ["transformer", "transformer cosine untied", "rnn none", "rnn general"])
def test_results_do_not_depend_on_batch_composition(method, kind):
    model, (source, attention_mask, _) = make_model(kind), make_batch()
    with torch.no_grad():  # a larger EOS vector ends some sequences early
        model.decoder._output.weight[EOS] *= 3
    batched = method(model.decoder, model.encode(source, attention_mask), max_tokens=17)
    for row, length in enumerate(attention_mask.sum(1).tolist()):
        encoder_output = model.encode(source[row : row + 1, :length], attention_mask[row : row + 1, :length])
        (single,) = method(model.decoder, encoder_output, max_tokens=17)
        assert single[0].tokens == batched[row][0].tokens
        assert single[0].score == pytest.approx(batched[row][0].score, abs=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if has_attention(kind)])
def test_attention_of_a_hypothesis_equals_that_of_the_cached_steps(kind):
    model, (source, attention_mask, _) = make_model(kind), make_batch()
    results = beam_search(model.decoder, model.encode(source, attention_mask), num_beams=3, n_best=2, max_tokens=9)
    for row, hypotheses in enumerate(results):
        inputs = source[row : row + 1], attention_mask[row : row + 1]
        for hypothesis in hypotheses:
            target = decoder_inputs([hypothesis])
            with torch.no_grad(), record_attention(model) as one_pass:
                model(*inputs, target)
            with torch.no_grad(), record_attention(model) as steps:
                state = model.decoder.start(model.encode(*inputs))
                for tokens in target.T:
                    _, state = model.decoder.step(state, tokens)
            for name in one_pass.names():
                expected = one_pass[name].weights
                weights = [step.weights for step in steps if step.name == name]
                padded = [F.pad(rows, (0, expected.shape[3] - rows.shape[3])) for rows in weights]
                assert_close(torch.cat(padded, 2), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
def test_recording_does_not_change_the_search(kind):
    model, (source, attention_mask, _) = make_model(kind), make_batch()
    encoder_output = model.encode(source, attention_mask)
    plain = beam_search(model.decoder, encoder_output, num_beams=3, n_best=3, max_tokens=9)
    with record_attention(model) as record:
        recorded = beam_search(model.decoder, encoder_output, num_beams=3, n_best=3, max_tokens=9)
    for hypotheses, expected in zip(recorded, plain, strict=True):
        assert [hypothesis.tokens for hypothesis in hypotheses] == [hypothesis.tokens for hypothesis in expected]
    kinds = {attention_map.kind for attention_map in record}
    assert kinds == ({"cross"} if kind.startswith("rnn") else {"decoder", "cross"})
    if kind == "transformer":
        assert record.maps[-1].cache_reorders > 0


def test_models_in_training_mode_are_rejected():
    model, (source, attention_mask, _) = make_model("transformer").train(), make_batch()
    with pytest.raises(ValueError, match=r"model must be in eval mode.*call model\.eval\(\) first"):
        greedy(model.decoder, model.encode(source, attention_mask))


def test_decoding_in_inference_mode_keeps_the_model_trainable():
    """Decodes past the initial size of the position table."""
    (source, attention_mask, target), options = make_batch(), {"max_tokens": 300, "suppress_tokens": (0, BOS, EOS)}
    model = make_model("transformer")
    expected = beam_search(model.decoder, model.encode(source, attention_mask), **options)
    model = make_model("transformer")
    with torch.inference_mode():
        results = beam_search(model.decoder, model.encode(source, attention_mask), **options)
    assert results[0][0].tokens == expected[0][0].tokens
    model.train()(source, attention_mask, target).sum().backward()
    assert model.decoder.embedding.weight.grad.shape[0] == TARGET_VOCAB_SIZE
