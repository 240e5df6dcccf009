import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.attention.masks import Causal, Padding
from sightline.layers import SIZES, Decoder, Encoder, Transformer
from sizes import B, K, Q
from torch_twins import copy_transformer, input_gradients, shake

WIDTH, HEADS, HIDDEN, DEPTH = 12, 2, 20, 2


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_transformer_is_torch_s_on_the_same_weights(norm, training):
    theirs = nn.Transformer(WIDTH, HEADS, DEPTH, DEPTH, HIDDEN, 0.0, batch_first=True, norm_first=norm == "pre").train(
        training
    )
    shake(theirs)
    ours = Transformer(WIDTH, HEADS, HIDDEN, DEPTH, norm=norm, final_norm=True).train(training)
    copy_transformer(theirs, ours)
    source, target = (torch.randn(B, n, WIDTH, requires_grad=True) for n in (K, Q))
    padded = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    expected = theirs(
        source,
        target,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(Q),
        src_key_padding_mask=padded,
        memory_key_padding_mask=padded,
    )
    got = ours(source, target, encoder_mask=Padding(~padded), cross_mask=Padding(~padded))
    assert_close(got, expected, atol=1e-5, rtol=1e-5)
    gradients = zip(input_gradients(got, source, target), input_gradients(expected, source, target), strict=True)
    for ours_gradient, theirs_gradient in gradients:
        assert_close(ours_gradient, theirs_gradient, atol=1e-4, rtol=1e-4)


def test_base_is_the_paper_s():
    size = SIZES["base"]
    assert (size.embed_dim, size.ffn_dim, size.num_heads, size.depth) == (512, 2048, 8, 6)
    with torch.device("meta"):
        model = Transformer.from_size("base")
    assert len(model.encoder.layers) == len(model.decoder.layers) == 6
    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert sum(p.numel() for p in model.parameters()) == 6 * (encoder + decoder)


@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_the_target_never_sees_its_future(score):
    model = Transformer(WIDTH, HEADS, HIDDEN, DEPTH, score=score).eval()
    source, target = torch.randn(B, K, WIDTH), torch.randn(B, Q, WIDTH)
    before = model(source, target)
    for now in range(Q - 1):
        changed = target.clone()
        changed[:, now + 1 :] = torch.randn(B, Q - now - 1, WIDTH)
        assert_close(model(source, changed)[:, : now + 1], before[:, : now + 1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_step_by_step_decoding_gives_what_one_pass_gives(score, norm):
    model = Decoder(WIDTH, HEADS, HIDDEN, DEPTH, score=score, norm=norm).eval()
    target, source = torch.randn(B, Q, WIDTH), torch.randn(B, K, WIDTH)
    padding = Padding(torch.tensor([[True] * 7, [True] * 4 + [False] * 3]))
    with torch.no_grad():
        cache = model.new_cache()
        steps = [model(target[:, i : i + 1], source, cross_mask=padding, cache=cache) for i in range(Q)]
        assert_close(torch.cat(steps, 1), model(target, source, cross_mask=padding), atol=1e-5, rtol=1e-5)


def test_a_cache_follows_its_rows_through_every_layer():
    model = Decoder(WIDTH, HEADS, HIDDEN, DEPTH).eval()
    target, source = torch.randn(B, Q, WIDTH), torch.randn(B, K, WIDTH)
    rows = torch.tensor([1, 0, 1])
    with torch.no_grad():
        cache = model.new_cache()
        model(target[:, :3], source, cache=cache)
        for layer in cache:
            layer.reorder(rows)
        stepped = model(target[rows, 3:4], source[rows], cache=cache)
        assert_close(stepped, model(target[rows], source[rows])[:, 3:4], atol=1e-5, rtol=1e-5)


def test_pre_norm_ends_in_a_norm_and_post_norm_does_not():
    assert isinstance(Encoder(WIDTH, HEADS, HIDDEN, 1, norm="pre").norm, nn.LayerNorm)
    assert isinstance(Encoder(WIDTH, HEADS, HIDDEN, 1).norm, nn.Identity)
    assert isinstance(Encoder(WIDTH, HEADS, HIDDEN, 1, final_norm=True).norm, nn.LayerNorm)


def test_an_encoder_may_be_causal():
    model = Encoder(WIDTH, HEADS, HIDDEN, DEPTH).eval()
    x = torch.randn(B, Q, WIDTH)
    assert_close(model(x, mask=Causal())[:, :3], model(x[:, :3], mask=Causal()), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Encoder(12, 2, 20, 0), "depth must be an integer of at least 1, got 0"),
        (
            lambda: Transformer.from_size("bass"),
            "size must be one of base, small, tiny, got 'bass'; did you mean 'base'?",
        ),
        (
            lambda: Decoder(12, 2, 20, 2)(torch.zeros(1, 1, 12), torch.zeros(1, 1, 12), cache=[]),
            "cache must have one entry per layer, 2, got 0",
        ),
    ],
)
def test_bad_input_is_answered_with_the_rule_and_the_value(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
