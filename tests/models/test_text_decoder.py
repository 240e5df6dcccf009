"""Text decoders over encoders of other kinds than text, and the details of each decoder."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from decoding_methods import beam_search, decoder_inputs, greedy
from seq2seq_models import B, T, make_batch, make_model
from sightline import record_attention
from sightline.models.encoders import EncoderOutput
from sightline.models.text_decoder import RecurrentTextDecoder, TransformerTextDecoder

REGIONS, FEATURES, VOCAB_SIZE = 49, 10, 17
TRANSFORMER = {"embed_dim": 12, "num_heads": 3, "ffn_dim": 19, "depth": 2}
RECURRENT = {"embed_dim": 12, "hidden_size": 10}


class RegionEncoder(nn.Module):
    """An image encoder: random images (B, 3, 14, 14) to 7 x 7 regions, without a mask and without tokens."""

    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, 2, 2)

    def forward(self, images):
        return EncoderOutput(self.proj(images).flatten(2).mT)


def make_decoder(kind, encoder_dim=FEATURES):
    torch.manual_seed(0)
    if kind == "transformer":
        return TransformerTextDecoder(VOCAB_SIZE, **TRANSFORMER, encoder_dim=encoder_dim).eval()
    return RecurrentTextDecoder(VOCAB_SIZE, **RECURRENT, encoder_dim=encoder_dim, attention=kind).eval()


@pytest.mark.parametrize("kind", ["transformer", "none", "general", "additive"])
@pytest.mark.parametrize("encoder_dim", [10, 12, 23])
def test_text_is_decoded_from_image_regions(kind, encoder_dim):
    decoder, encoder = make_decoder(kind, encoder_dim), RegionEncoder(encoder_dim)
    with torch.no_grad():
        output = encoder(torch.rand(B, 3, 14, 14))
    assert output.states.shape == (B, REGIONS, encoder_dim)
    best = [hypotheses[0] for hypotheses in greedy(decoder, output, max_tokens=11)]
    beams = beam_search(decoder, output, num_beams=3, n_best=2, max_tokens=11)
    assert [len(hypotheses) for hypotheses in beams] == [2] * B
    for i, hypotheses in enumerate(beams):
        alone = EncoderOutput(output.states[i : i + 1])
        assert greedy(decoder, alone, max_tokens=11)[0][0].tokens == best[i].tokens
        target = decoder_inputs(hypotheses)
        with torch.no_grad():
            logits = decoder(EncoderOutput(output.states[[i, i]]), target).log_softmax(-1)
        for row, hypothesis in enumerate(hypotheses):
            tokens = [*hypothesis.tokens, 2] if hypothesis.finished else hypothesis.tokens
            score = sum(float(logits[row, position, token]) for position, token in enumerate(tokens))
            assert hypothesis.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("kind", ["transformer", "none", "general"])
def test_one_training_step_over_image_regions(kind):
    model = nn.ModuleDict({"encoder": RegionEncoder(FEATURES), "decoder": make_decoder(kind)}).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    images, tokens = torch.rand(B, 3, 14, 14), make_batch()[2]
    target, labels = tokens[:, :-1], tokens[:, 1:].clone()
    labels[1, 2:] = -100

    def loss():
        return model["decoder"].loss(model["encoder"](images), target, labels, label_smoothing=0.1)

    before = loss()
    before.backward()
    assert not {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    optimizer.step()
    assert loss() < before
    assert_close(loss(), model.eval()["decoder"].loss(model["encoder"](images), target, labels, label_smoothing=0.1))


def test_cross_attention_over_regions_is_recorded():
    decoder, output = make_decoder("transformer"), EncoderOutput(torch.randn(B, REGIONS, FEATURES))
    with torch.no_grad(), record_attention(decoder) as record:
        decoder(output, make_batch()[2])
    assert [attention_map.weights.shape for attention_map in record.of("cross")] == [(B, 3, T, REGIONS)] * 2


@torch.no_grad()
def test_masked_regions_are_ignored():
    mask = torch.arange(REGIONS) < torch.tensor([[REGIONS], [5], [1]])
    states, target = torch.randn(B, REGIONS, FEATURES), make_batch()[2]
    for kind in ("transformer", "none", "general"):
        decoder = make_decoder(kind)
        logits = decoder(EncoderOutput(states, mask), target)
        assert_close(decoder(EncoderOutput(states.masked_fill(~mask.unsqueeze(-1), 9), mask), target), logits)
        alone = decoder(EncoderOutput(states[1:2, :5]), target[1:2])
        assert_close(alone, logits[1:2], atol=1e-5, rtol=1e-5)


def test_packed_output_unpacks_to_the_states():
    states, mask = torch.randn(B, 7, FEATURES), make_batch()[1]
    for output in (EncoderOutput(states, mask), EncoderOutput(states)):
        packed = output.packed()
        num_positions = int(mask.sum()) if output.attention_mask is not None else B * 7
        assert packed.states.shape == (1, num_positions, FEATURES)
        unpacked = packed.packing.unpack(packed.states)
        assert_close(unpacked, states if output.attention_mask is None else states * mask.unsqueeze(-1))
        assert packed.packed() is packed


@torch.no_grad()
def test_keys_of_the_source_are_projected_once(monkeypatch):
    model, (source, attention_mask, target) = make_model("transformer"), make_batch()
    attention = type(model.decoder.stack.layers[0].cross_attention)
    shapes, project = [], attention._project_context
    monkeypatch.setattr(
        attention, "_project_context", lambda self, x, *args: shapes.append(x.shape) or project(self, x, *args)
    )
    state = model.decoder.start(model.encode(source, attention_mask))
    for tokens in target.T:
        _, state = model.decoder.step(state, tokens)
    assert len(shapes) == len(model.decoder.stack.layers)


@torch.no_grad()
def test_a_batch_without_padding_has_no_mask():
    model, (source, attention_mask, target) = make_model("transformer"), make_batch()
    full = torch.ones_like(attention_mask)
    state = model.decoder.start(model.encode(source, full))
    assert state.encoder_output.mask is None
    logits = model.decoder.step(state, target[:, 0])[0]
    assert_close(logits, model(source, full, target)[:, 0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_recurrent_attention_matches_its_formula():
    """General score, softmax over tokens, context vector, W_concat, tanh, output embedding."""
    model, (source, attention_mask, target) = make_model("rnn general"), make_batch()
    output, decoder = model.encode(source, attention_mask), model.decoder
    states, _ = decoder.stack(decoder.embed(target), decoder.start(output).hidden)
    scores = states @ decoder.attention.score.weight[0] @ output.states.mT
    weights = scores.masked_fill(~attention_mask.unsqueeze(1), float("-inf")).softmax(-1)
    features = torch.cat((states, weights @ output.states), -1)
    expected = torch.tanh(decoder.concat(features)) @ decoder.embedding.weight.T
    assert_close(model(source, attention_mask, target), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_without_attention_the_decoder_uses_the_pooled_vector_only():
    model, (source, attention_mask, target) = make_model("rnn none"), make_batch()
    output, decoder = model.encode(source, attention_mask), model.decoder
    other_states = EncoderOutput(torch.randn_like(output.states), output.attention_mask, output.pooled)
    assert_close(decoder(other_states, target), decoder(output, target), atol=0, rtol=0)
    other_pooled = EncoderOutput(output.states, output.attention_mask, output.pooled + 0.1)
    assert ((decoder(other_pooled, target) - decoder(output, target)).abs() > 0).any(-1).all()


@torch.no_grad()
def test_additive_keys_are_projected_once():
    model, (source, attention_mask, target) = make_model("rnn additive"), make_batch()
    calls = []
    model.decoder.attention.key.register_forward_hook(lambda *_: calls.append(1))
    state = model.decoder.start(model.encode(source, attention_mask))
    for tokens in target.T:
        _, state = model.decoder.step(state, tokens)
    assert len(calls) == 1
    assert model.decoder.attention.score.key is None


def test_a_whole_target_is_one_call_of_the_recurrence():
    model, (source, attention_mask, target) = make_model("rnn general"), make_batch()
    shapes = []
    model.decoder.stack.register_forward_hook(lambda _, args, output: shapes.append(output[0].shape))
    model(source, attention_mask, target)
    assert shapes == [(B, T, 14)]


@torch.inference_mode()
def test_steps_run_the_modules_only_for_recordings_and_hooks(monkeypatch):
    decoder, source, tokens = (
        make_decoder("transformer", None),
        EncoderOutput(torch.randn(2, 5, 12)),
        torch.tensor([1, 4]),
    )
    expected = decoder(source, tokens.unsqueeze(1).expand(-1, 3))
    forward, runs = decoder.stack.forward, []
    monkeypatch.setattr(decoder.stack, "forward", lambda *args, **options: runs.append(1) or forward(*args, **options))
    state = decoder.start(source)
    first, state = decoder.step(state, tokens)
    assert not runs
    with record_attention(decoder) as record:
        second, state = decoder.step(state, tokens)
    assert len(runs) == 1
    assert len(record.maps) == 4
    third, _ = decoder.step(state, tokens)
    assert len(runs) == 1
    assert_close(torch.stack((first, second, third), 1), expected)
    decoder.stack.layers[0].mlp.fc1.register_forward_hook(lambda *_: runs.append(1))
    decoder.step(decoder.start(source), tokens)
    assert len(runs) == 3
