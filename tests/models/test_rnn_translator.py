import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from sightline.layers import RNN, RecurrentEncoder
from sightline.models.rnn_translator import RNNTranslatorConfig
from translators import B, S, T, batch, make


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_reading_both_ways_is_torch_s_packed_reading(cell):
    """Against the plain twin: torch's bidirectional layers over packed sentences."""
    inputs, width, depth = 5, 6, 2
    ours = RecurrentEncoder(inputs, width, cell=cell, depth=depth)
    theirs = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](inputs, width // 2, depth, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for layer in range(depth):
            for way, part in (("", ours.forwards[layer]), ("_reverse", ours.backwards[layer])):
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(theirs, f"{name}_l{layer}{way}").copy_(getattr(part.cells, f"{name}_l0"))
    x, real = torch.randn(B, S, inputs), batch()[1]
    states, last = ours(x, real)
    packed, hidden = theirs(pack_padded_sequence(x, real.sum(1), batch_first=True))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    assert_close(states * real.unsqueeze(-1), expected, atol=1e-6, rtol=1e-5)
    hidden = hidden[0] if cell == "lstm" else hidden
    assert_close(last, torch.cat((hidden[-2], hidden[-1]), -1), atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_attention_is_what_the_formulas_say():
    """General score, softmax over real words, context, W_concat and tanh, words."""
    model, (source, real, target) = make("rnn general"), batch()
    memory = model.encode(source, real)
    states, _ = model.decoder(model.words.read_target(target), model.start(memory).hidden)
    scores = states @ model.attention.score.turn[0] @ memory.states.mT
    weights = scores.masked_fill(~real.unsqueeze(1), float("-inf")).softmax(-1)
    seen = torch.cat((states, weights @ memory.states), -1)
    concat = model.concat[0]
    expected = torch.tanh(seen @ concat.weight.T + concat.bias) @ model.words.target_table.T
    assert_close(model(source, real, target), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_one_context_vector_is_all_that_is_known_of_the_source():
    model, (source, real, target) = make("rnn none"), batch()
    memory = model.encode(source, real)
    blind = type(memory)(torch.randn_like(memory.states), torch.randn_like(memory.keys), memory.context, ~real)
    assert_close(model.decode(blind, target), model.decode(memory, target), atol=0, rtol=0)
    other = type(memory)(memory.states, memory.keys, memory.context + 0.1, real)
    assert ((model.decode(other, target) - model.decode(memory, target)).abs() > 0).any(-1).all()  # at every step


@torch.no_grad()
def test_additive_keys_are_mapped_once(monkeypatch):
    model, (source, real, target) = make("rnn additive"), batch()
    calls = []
    model.attention.key.register_forward_hook(lambda *_: calls.append(1))
    state = model.start(model.encode(source, real))
    for tokens in target.T:
        _, state = model.step(state, tokens)
    assert len(calls) == 1
    assert model.attention.score.key is None


def test_a_whole_target_is_one_call_of_the_recurrence():
    model, (source, real, target) = make("rnn general"), batch()
    calls = []
    model.decoder.register_forward_hook(lambda _, args, out: calls.append(out[0].shape))
    model(source, real, target)
    assert calls == [(B, T, 14)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "rnn"}, "cell must be one of gru, lstm, got 'rnn'"),
        ({"attention": "generel"}, "got 'generel'; did you mean 'general'?"),
        ({"hard": True}, "hard must be false where attention is none, got True; choose an attention"),
        ({"width": 15}, "width must be even where the encoder is bidirectional, got 15"),
    ],
)
def test_impossible_models_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RNNTranslatorConfig(**options)
    assert RNNTranslatorConfig(width=15, bidirectional=False).width == 15


@pytest.mark.parametrize(
    ("make_layer", "message"),
    [
        (lambda: RNN(3, 5, cell="gur"), "cell must be one of gru, lstm, got 'gur'; did you mean 'gru'?"),
        (lambda: RNN(3, 5, depth=0), "depth must be an integer of at least 1, got 0"),
        (lambda: RecurrentEncoder(3, 5), "width must be even where the encoder is bidirectional, got 5"),
    ],
)
def test_impossible_layers_are_refused(make_layer, message):
    with pytest.raises(ValueError, match=message):
        make_layer()
