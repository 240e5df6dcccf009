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
from torch_reference import copy_decoder_layer, copy_encoder_layer, input_gradients, perturb

EMBED_DIM, NUM_HEADS, FFN_DIM = 12, 2, 20


def assert_same(ours, theirs, *inputs):
    assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for got, expected in zip(input_gradients(ours, *inputs), input_gradients(theirs, *inputs), strict=True):
        assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("training", [True, False])
def test_encoder_block_equals_torch_encoder_layer(norm, activation, training):
    theirs = nn.TransformerEncoderLayer(
        EMBED_DIM, NUM_HEADS, FFN_DIM, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    ).train(training)
    perturb(theirs)
    ours = EncoderBlock(EMBED_DIM, NUM_HEADS, FFN_DIM, norm=norm, activation=activation).train(training)
    copy_encoder_layer(theirs, ours)
    x = torch.randn(B, Q, EMBED_DIM, requires_grad=True)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    assert_same(ours(x), theirs(x), x)
    assert_same(ours(x, mask=Padding(~padded)), theirs(x, src_key_padding_mask=padded), x)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False])
def test_decoder_block_equals_torch_decoder_layer(norm, training):
    theirs = nn.TransformerDecoderLayer(
        EMBED_DIM, NUM_HEADS, FFN_DIM, 0.0, batch_first=True, norm_first=norm == "pre"
    ).train(training)
    perturb(theirs)
    ours = DecoderBlock(EMBED_DIM, NUM_HEADS, FFN_DIM, norm=norm).train(training)
    copy_decoder_layer(theirs, ours)
    x, source = (torch.randn(B, n, EMBED_DIM, requires_grad=True) for n in (Q, K))
    causal = nn.Transformer.generate_square_subsequent_mask(Q)
    padded = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    expected = theirs(x, source, tgt_mask=causal, memory_key_padding_mask=padded)
    assert_same(ours(x, source, mask=Causal(), cross_mask=Padding(~padded)), expected, x, source)


def test_parameter_gradients_equal_torch_decoder_layer():
    theirs, ours = (
        nn.TransformerDecoderLayer(EMBED_DIM, NUM_HEADS, FFN_DIM, 0.0, batch_first=True),
        DecoderBlock(EMBED_DIM, NUM_HEADS, FFN_DIM),
    )
    perturb(theirs)
    copy_decoder_layer(theirs, ours)
    x, source = torch.randn(B, Q, EMBED_DIM), torch.randn(B, K, EMBED_DIM)
    for out in (theirs(x, source), ours(x, source)):
        (out * torch.arange(out.numel()).cos().view_as(out)).sum().backward()
    gradients = copy.deepcopy(ours)
    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    copy_decoder_layer(theirs, gradients)  # gradients of torch under the names of this package
    for (name, got), expected in zip(ours.named_parameters(), gradients.parameters(), strict=True):
        assert_close(got.grad, expected.detach(), atol=1e-4, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_dropout_applies_to_weights_residuals_and_hidden_layer():
    x = torch.randn(1, 50, EMBED_DIM)
    block = EncoderBlock(EMBED_DIM, NUM_HEADS, FFN_DIM, dropout=0.5)
    assert block.attention.dropout == 0.5
    trained = block.residual(x, block.norm1, torch.ones_like)
    assert (trained - block.eval().residual(x, block.norm1, torch.ones_like)).abs().max() > 0.1
    assert (block.train().mlp(x) - block.mlp(x)).abs().max() > 1e-3


def test_score_and_mask_instances_are_copied_and_cross_attention_has_no_mask():
    score, mask = CosineScore(), Additive(9)
    blocks = [DecoderBlock(EMBED_DIM, NUM_HEADS, FFN_DIM, score=score, mask=mask) for _ in range(2)]
    offsets = [b.attention.score.log_temperature_offset for b in blocks] + [
        b.cross_attention.score.log_temperature_offset for b in blocks
    ]
    assert len({id(offset) for offset in offsets}) == 4
    assert blocks[0].attention.mask is not blocks[1].attention.mask
    assert all(block.cross_attention.mask is None for block in blocks)
    blocks[0](torch.randn(1, 9, EMBED_DIM), torch.randn(1, 3, EMBED_DIM))


def test_bias_false_removes_all_linear_biases():
    block = DecoderBlock(EMBED_DIM, NUM_HEADS, FFN_DIM, bias=False)
    assert not any(isinstance(module, nn.Linear) and module.bias is not None for module in block.modules())


def test_feed_forward_is_two_linear_layers_with_an_activation():
    mlp = FeedForward(EMBED_DIM, FFN_DIM)
    x = torch.randn(B, Q, EMBED_DIM)
    assert_close(mlp(x), mlp.fc2(mlp.fc1(x).clamp(min=0)))
    assert FeedForward(EMBED_DIM, FFN_DIM, bias=False).fc1.bias is None


def test_attention_options_are_passed_on():
    block = EncoderBlock(EMBED_DIM, NUM_HEADS, FFN_DIM, score="cosine", bias=False, in_context_bias=True, dropout=0.1)
    assert block.attention.score.temperature().shape == (NUM_HEADS, 1, 1)
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
def test_invalid_input_raises(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
