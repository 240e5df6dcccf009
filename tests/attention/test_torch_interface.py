import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline import record_attention
from sightline.attention import MultiHeadAttention
from sightline.attention.masks import Causal
from sightline.errors import SightlineError
from sizes import B, K, Q
from torch_reference import input_gradients, perturb

EMBED_DIM, NUM_HEADS, LAYERS, T = 20, 2, 3, 7
LENGTHS = torch.tensor([T, 4, 5])
IS_PADDING = torch.arange(T) >= LENGTHS[:, None]


def theirs(**options):
    attention = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, **{"batch_first": True, **options})
    perturb(attention)
    return attention


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_from_torch_and_back_gives_equal_outputs_and_gradients(bias, batch_first):
    original = theirs(bias=bias, batch_first=batch_first, dropout=0.3).eval()
    original.out_proj.weight.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(original)
    back = ours.to_torch()
    assert (ours.dropout, ours.training, ours.out_proj.weight.requires_grad) == (0.3, False, False)
    assert back.state_dict().keys() == original.state_dict().keys()
    query, key, value = (torch.randn(length, B, EMBED_DIM, requires_grad=True) for length in (Q, K, K))
    inputs = [x.transpose(0, 1) if batch_first else x for x in (query, key, value)]
    expected = original(*inputs)
    expected_gradients = input_gradients(expected[0], query, key, value)
    for attention in (ours, back):
        out, weights = attention(*inputs)
        assert_close(out, expected[0], atol=1e-6, rtol=1e-5)
        assert_close(weights, expected[1], atol=1e-6, rtol=1e-5)
        for got, wanted in zip(input_gradients(out, query, key, value), expected_gradients, strict=True):
            assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    ours.qkv.weight.data.zero_()
    assert_close(original(*inputs)[0], expected[0])  # the weights are copies


def test_masks_of_torch_are_translated():
    original = theirs()
    ours = MultiHeadAttention.from_torch(original)
    x, y = torch.randn(B, Q, EMBED_DIM), torch.randn(B, K, EMBED_DIM)
    padding = torch.tensor([[False] * K, [False] * (K - 3) + [True] * 3])
    forbidden = torch.rand(Q, K) > 0.6
    forbidden[:, 0] = False
    per_head = torch.rand(B * NUM_HEADS, Q, K) > 0.6
    per_head[:, :, 0] = False
    floats = torch.randn(Q, K).masked_fill(forbidden, float("-inf"))
    as_floats = torch.zeros(B, K).masked_fill(padding, float("-inf"))
    cases = [
        {"key_padding_mask": padding},
        {"key_padding_mask": as_floats, "attn_mask": floats},
        {"attn_mask": forbidden},
        {"attn_mask": per_head, "key_padding_mask": padding},
        {"attn_mask": floats, "average_attn_weights": False},
        {"attn_mask": forbidden, "need_weights": False},
    ]
    for options in cases:
        expected, weights = original(x, y, y, **options)
        got, got_weights = ours(x, y, y, **options)
        assert_close(got, expected, atol=1e-6, rtol=1e-5)
        assert_close(got_weights, weights, atol=1e-6, rtol=1e-5) if weights is not None else None
        assert (got_weights is None) == (weights is None)
    causal = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    options = {"attn_mask": causal, "is_causal": True, "need_weights": False}
    assert_close(ours(x, x, x, **options)[0], original(x, x, x, **options)[0], atol=1e-6, rtol=1e-5)
    assert_close(ours(x[0], x[0], x[0])[0], original(x[0], x[0], x[0])[0], atol=1e-6, rtol=1e-5)


def test_layer_without_batch_first_takes_a_module_without_it():
    """The layer does not tell the module; the sentences of a batch must not attend to each other."""
    layer = nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS, dim_feedforward=11).eval()
    layer.self_attn = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine", batch_first=layer.self_attn.batch_first)
    x = torch.randn(T, B, EMBED_DIM)
    with torch.no_grad():
        assert_close(layer(x)[:, 1], layer(x[:, 1:2])[:, 0], atol=1e-5, rtol=1e-5)


def encoders(**options):
    """A torch encoder, and a copy of it with our attention."""
    layer = nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS, 11, dropout=0.0, **{"batch_first": True, **options})
    torch_encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=options.get("batch_first", True))
    perturb(torch_encoder)
    ours = copy.deepcopy(torch_encoder)
    for layer in ours.layers:
        layer.self_attn = MultiHeadAttention.from_torch(layer.self_attn)
    return torch_encoder, ours


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_module_is_the_self_attention_of_a_torch_encoder(training, grad, batch_first):
    torch_encoder, ours = encoders(batch_first=batch_first)
    torch_encoder.train(training), ours.train(training)
    x = torch.randn(len(LENGTHS), T, EMBED_DIM) if batch_first else torch.randn(T, len(LENGTHS), EMBED_DIM)
    causal = nn.Transformer.generate_square_subsequent_mask(T)
    with torch.set_grad_enabled(grad):
        for options in (
            {},
            {"src_key_padding_mask": IS_PADDING},
            {"mask": causal},
            {"mask": causal, "is_causal": True},
        ):
            expected, got = torch_encoder(x, **options), ours(x, **options)
            if "src_key_padding_mask" in options and batch_first:
                expected, got = expected[~IS_PADDING[:, : expected.shape[1]]], got[~IS_PADDING[:, : got.shape[1]]]
            assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_fast_path_of_torch_runs_dot_attention_and_no_other(monkeypatch):
    _, ours = encoders()
    ours.eval()
    calls, fused = [], torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: calls.append(1) or fused(*args))
    x = torch.randn(len(LENGTHS), T, EMBED_DIM)
    with torch.no_grad():
        ours(x)
        assert len(calls) == LAYERS
        for layer in ours.layers:
            layer.self_attn = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine")
        ours.eval()
        out = ours(x)
        padded = ours(x, src_key_padding_mask=IS_PADDING)  # torch makes a nested tensor of it
    assert len(calls) == LAYERS
    assert_close(padded[0], out[0], atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        assert_close(padded[1, :4], ours(x[1:2, :4])[0], atol=1e-5, rtol=1e-4)


def test_cosine_attention_in_a_torch_encoder_trains_and_is_recorded():
    _, ours = encoders()
    for layer in ours.layers:
        layer.self_attn = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine", mask=Causal())
    x = torch.randn(len(LENGTHS), T, EMBED_DIM)
    with record_attention(ours) as record:
        ours(x, src_key_padding_mask=IS_PADDING).sum().backward()
    assert ours.layers[0].self_attn.score.log_temperature_offset.grad.abs().sum() > 0
    assert len(record) == LAYERS
    assert (record[0].weights[1, ..., 4:] == 0).all()
    assert (record[0].weights.triu(1) == 0).all()
    decoder = nn.TransformerDecoderLayer(EMBED_DIM, NUM_HEADS, 11, dropout=0.0, batch_first=True)
    expected = decoder(x, x[:, :3])
    decoder.self_attn = MultiHeadAttention.from_torch(decoder.self_attn)
    decoder.multihead_attn = MultiHeadAttention.from_torch(decoder.multihead_attn)
    assert_close(decoder(x, x[:, :3]), expected, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_converted_is_refused():
    with pytest.raises(SightlineError, match="neither bias_k nor add_zero_attn, got"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, kdim=3))
    with pytest.raises(SightlineError, match=r"must be an nn\.MultiheadAttention, got Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 3))
    for options in ({"score": "cosine"}, {"in_context_bias": True}, {"head_dim": 3}, {"mask": Causal()}):
        with pytest.raises(SightlineError, match="attention must have score='dot'"):
            MultiHeadAttention(EMBED_DIM, NUM_HEADS, **options).to_torch()
    with pytest.raises(SightlineError, match="must come with query, key and value, got need_weights"):
        MultiHeadAttention(EMBED_DIM, NUM_HEADS)(torch.randn(B, Q, EMBED_DIM), need_weights=False)
