import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.attention.masks import Causal, Padding
from sightline.layers import SIZES, Decoder, Encoder, Transformer
from sizes import B, K, Q
from torch_reference import copy_transformer, input_gradients, perturb

EMBED_DIM, NUM_HEADS, FFN_DIM, DEPTH = 12, 2, 20, 2


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_transformer_equals_torch_transformer(norm, training):
    theirs = nn.Transformer(
        EMBED_DIM, NUM_HEADS, DEPTH, DEPTH, FFN_DIM, 0.0, batch_first=True, norm_first=norm == "pre"
    ).train(training)
    perturb(theirs)
    ours = Transformer(EMBED_DIM, NUM_HEADS, FFN_DIM, DEPTH, norm=norm, final_norm=True).train(training)
    copy_transformer(theirs, ours)
    source, target = (torch.randn(B, n, EMBED_DIM, requires_grad=True) for n in (K, Q))
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


def test_base_has_the_size_of_the_paper():
    size = SIZES["base"]
    assert (size.embed_dim, size.ffn_dim, size.num_heads, size.depth) == (512, 2048, 8, 6)
    with torch.device("meta"):
        model = Transformer.from_size("base")
    assert len(model.encoder.layers) == len(model.decoder.layers) == 6
    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert sum(p.numel() for p in model.parameters()) == 6 * (encoder + decoder)


@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_later_target_tokens_do_not_change_outputs(score):
    model = Transformer(EMBED_DIM, NUM_HEADS, FFN_DIM, DEPTH, score=score).eval()
    source, target = torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM)
    before = model(source, target)
    for now in range(Q - 1):
        changed = target.clone()
        changed[:, now + 1 :] = torch.randn(B, Q - now - 1, EMBED_DIM)
        assert_close(model(source, changed)[:, : now + 1], before[:, : now + 1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_cached_steps_equal_one_pass(score, norm):
    model = Decoder(EMBED_DIM, NUM_HEADS, FFN_DIM, DEPTH, score=score, norm=norm).eval()
    target, source = torch.randn(B, Q, EMBED_DIM), torch.randn(B, K, EMBED_DIM)
    padding = Padding(torch.tensor([[True] * 7, [True] * 4 + [False] * 3]))
    with torch.no_grad():
        cache = model.new_cache()
        steps = [model(target[:, i : i + 1], source, cross_mask=padding, cache=cache) for i in range(Q)]
        assert_close(torch.cat(steps, 1), model(target, source, cross_mask=padding), atol=1e-5, rtol=1e-5)


def test_caches_of_all_layers_can_be_reordered():
    model = Decoder(EMBED_DIM, NUM_HEADS, FFN_DIM, DEPTH).eval()
    target, source = torch.randn(B, Q, EMBED_DIM), torch.randn(B, K, EMBED_DIM)
    indices = torch.tensor([1, 0, 1])
    with torch.no_grad():
        cache = model.new_cache()
        model(target[:, :3], source, cache=cache)
        for layer in cache:
            layer.reorder(indices)
        stepped = model(target[indices, 3:4], source[indices], cache=cache)
        assert_close(stepped, model(target[indices], source[indices])[:, 3:4], atol=1e-5, rtol=1e-5)


def test_final_norm_by_default_for_pre_norm_only():
    assert isinstance(Encoder(EMBED_DIM, NUM_HEADS, FFN_DIM, 1, norm="pre").norm, nn.LayerNorm)
    assert isinstance(Encoder(EMBED_DIM, NUM_HEADS, FFN_DIM, 1).norm, nn.Identity)
    assert isinstance(Encoder(EMBED_DIM, NUM_HEADS, FFN_DIM, 1, final_norm=True).norm, nn.LayerNorm)


def test_encoder_accepts_a_causal_mask():
    model = Encoder(EMBED_DIM, NUM_HEADS, FFN_DIM, DEPTH).eval()
    x = torch.randn(B, Q, EMBED_DIM)
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
def test_invalid_input_raises(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
