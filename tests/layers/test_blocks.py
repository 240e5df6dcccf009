import copy
import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.attention import CosineScore
from sightline.attention.masks import Additive, Causal, Padding
from sightline.layers import DecoderBlock, EncoderBlock, FeedForward
from sizes import B, K, Q
from torch_twins import copy_decoder_layer, copy_encoder_layer, input_gradients, shake

WIDTH, HEADS, HIDDEN = 12, 2, 20


def assert_same(ours, theirs, *inputs):
    assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for got, expected in zip(input_gradients(ours, *inputs), input_gradients(theirs, *inputs), strict=True):
        assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("training", [True, False])
def test_encoder_block_is_torch_s_on_the_same_weights(norm, activation, training):
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    ).train(training)
    shake(theirs)
    ours = EncoderBlock(WIDTH, HEADS, HIDDEN, norm=norm, activation=activation).train(training)
    copy_encoder_layer(theirs, ours)
    x = torch.randn(B, Q, WIDTH, requires_grad=True)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    assert_same(ours(x), theirs(x), x)
    assert_same(ours(x, mask=Padding(~padded)), theirs(x, src_key_padding_mask=padded), x)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False])
def test_decoder_block_is_torch_s_on_the_same_weights(norm, training):
    theirs = nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=norm == "pre").train(
        training
    )
    shake(theirs)
    ours = DecoderBlock(WIDTH, HEADS, HIDDEN, norm=norm).train(training)
    copy_decoder_layer(theirs, ours)
    x, source = (torch.randn(B, n, WIDTH, requires_grad=True) for n in (Q, K))
    causal = nn.Transformer.generate_square_subsequent_mask(Q)
    padded = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    expected = theirs(x, source, tgt_mask=causal, memory_key_padding_mask=padded)
    assert_same(ours(x, source, mask=Causal(), cross_mask=Padding(~padded)), expected, x, source)


def test_parameter_gradients_are_torch_s():
    theirs, ours = (
        nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True),
        DecoderBlock(WIDTH, HEADS, HIDDEN),
    )
    shake(theirs)
    copy_decoder_layer(theirs, ours)
    x, source = torch.randn(B, Q, WIDTH), torch.randn(B, K, WIDTH)
    for out in (theirs(x, source), ours(x, source)):
        (out * torch.arange(out.numel()).cos().view_as(out)).sum().backward()
    gradients = copy.deepcopy(ours)
    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    copy_decoder_layer(theirs, gradients)  # torch's gradients, under our names
    for (name, got), expected in zip(ours.named_parameters(), gradients.parameters(), strict=True):
        assert_close(got.grad, expected.detach(), atol=1e-4, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_dropout_acts_on_attention_residuals_and_hidden_layer():
    x = torch.randn(1, 50, WIDTH)
    block = EncoderBlock(WIDTH, HEADS, HIDDEN, dropout=0.5)
    assert block.attention.dropout == 0.5
    trained = block.residual(x, block.norm1, torch.ones_like)
    assert (trained - block.eval().residual(x, block.norm1, torch.ones_like)).abs().max() > 0.1
    assert (block.train().mlp(x) - block.mlp(x)).abs().max() > 1e-3


def test_each_block_learns_its_own_score_and_mask_and_cross_attention_has_none():
    score, mask = CosineScore(), Additive(9)
    blocks = [DecoderBlock(WIDTH, HEADS, HIDDEN, score=score, mask=mask) for _ in range(2)]
    drifts = [b.attention.score.log_temperature_offset for b in blocks] + [
        b.cross_attention.score.log_temperature_offset for b in blocks
    ]
    assert len({id(log_temperature_offset) for log_temperature_offset in drifts}) == 4
    assert blocks[0].attention.mask is not blocks[1].attention.mask
    assert all(block.cross_attention.mask is None for block in blocks)
    blocks[0](torch.randn(1, 9, WIDTH), torch.randn(1, 3, WIDTH))


def test_biases_are_left_out_of_a_whole_block():
    block = DecoderBlock(WIDTH, HEADS, HIDDEN, bias=False)
    assert not any(isinstance(part, nn.Linear) and part.bias is not None for part in block.modules())


def test_feed_forward_is_two_maps_with_a_bend():
    feed = FeedForward(WIDTH, HIDDEN)
    x = torch.randn(B, Q, WIDTH)
    assert_close(feed(x), feed.fc2(feed.fc1(x).clamp(min=0)))
    assert FeedForward(WIDTH, HIDDEN, bias=False).fc1.bias is None


def test_options_of_attention_reach_it():
    block = EncoderBlock(WIDTH, HEADS, HIDDEN, score="cosine", bias=False, in_context_bias=True, dropout=0.1)
    assert block.attention.score.temperature().shape == (HEADS, 1, 1)
    assert block.attention.qkv.bias is None
    assert block.attention.dropout == 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: EncoderBlock(12, 2, 20, norm="poste"),
            "norm must be one of post, pre, got 'poste'; did you mean 'post'?",
        ),
        (lambda: FeedForward(12, -1), "ffn_dim must be an integer of at least 1, got -1"),
        (lambda: EncoderBlock(12, 3, 0), "ffn_dim must be an integer of at least 1, got 0"),
        (lambda: FeedForward(12, 20, dropout=1.5), "dropout must be at least 0 and below 1, got 1.5"),
        (lambda: FeedForward(12, 20, activation="relo"), "activation must be one of gelu, relu, got 'relo'"),
    ],
)
def test_bad_input_is_answered_with_the_rule_and_the_value(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
