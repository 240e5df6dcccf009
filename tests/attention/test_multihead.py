import itertools
import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.attention import SCORES, KeyValueCache, MultiHeadAttention
from sightline.attention.masks import Additive, Allow, Bias, Causal, Padding, Window, forbid
from sizes import B, K, Q
from torch_reference import copy_attention, input_gradients, perturb

EMBED_DIM, NUM_HEADS = 12, 3


@pytest.fixture
def x():
    return torch.randn(B, Q, EMBED_DIM, requires_grad=True)


@pytest.fixture
def context():
    return torch.randn(B, K, EMBED_DIM, requires_grad=True)


def with_same_weights(bias):
    theirs = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, bias=bias, batch_first=True)
    perturb(theirs)
    ours = MultiHeadAttention(EMBED_DIM, NUM_HEADS, bias=bias)
    copy_attention(theirs, ours)
    return theirs, ours


def assert_same(ours, theirs, *inputs):
    assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    for got, expected in zip(input_gradients(ours, *inputs), input_gradients(theirs, *inputs), strict=True):
        assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_output_equals_torch_multihead_attention(bias, training, x, context):
    theirs, ours = with_same_weights(bias)
    theirs.train(training), ours.train(training)
    assert_same(ours(x), theirs(x, x, x)[0], x)
    assert_same(ours(x, context), theirs(x, context, context)[0], x, context)
    forbidden = torch.rand(Q, K) > 0.6
    forbidden[:, 0] = False
    padded = torch.tensor([[False] * K, [False] * 3 + [True] * (K - 3)])
    mask = forbid(forbidden) & Padding(~padded)
    expected = theirs(x, context, context, attn_mask=forbidden, key_padding_mask=padded)[0]
    assert_same(ours(x, context, mask=mask), expected, x, context)


def test_parameter_gradients_equal_torch_multihead_attention(x):
    theirs, ours = with_same_weights(bias=True)
    for out in (theirs(x, x, x)[0], ours(x)):
        (out * torch.arange(out.numel()).cos().view_as(out)).sum().backward()
    assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad, atol=1e-5, rtol=1e-5)
    assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad, atol=1e-5, rtol=1e-5)
    assert_close(ours.out_proj.weight.grad, theirs.out_proj.weight.grad, atol=1e-5, rtol=1e-5)
    assert_close(ours.out_proj.bias.grad, theirs.out_proj.bias.grad, atol=1e-5, rtol=1e-5)


def test_parameter_shapes_with_and_without_bias():
    with_bias, without_bias = (
        MultiHeadAttention(EMBED_DIM, NUM_HEADS),
        MultiHeadAttention(EMBED_DIM, NUM_HEADS, bias=False),
    )
    assert with_bias.qkv.weight.shape == (3 * EMBED_DIM, EMBED_DIM)
    assert sum(p.numel() for p in with_bias.parameters()) == 4 * EMBED_DIM * EMBED_DIM + 4 * EMBED_DIM
    assert sum(p.numel() for p in without_bias.parameters()) == 4 * EMBED_DIM * EMBED_DIM


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("in_context_bias", [True, False])
def test_cached_steps_equal_one_pass(score, in_context_bias, x, context):
    attention = MultiHeadAttention(
        EMBED_DIM, NUM_HEADS, score=score, in_context_bias=in_context_bias, mask=Causal()
    ).eval()
    cross = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score=score, in_context_bias=in_context_bias).eval()
    expected, cross_expected = attention(x), cross(x, context)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            cache, cross_cache = KeyValueCache(), KeyValueCache()
            steps = [attention(x[:, i : i + 1], cache=cache) for i in range(Q)]
            cross_steps = [cross(x[:, i : i + 1], context, cache=cross_cache) for i in range(Q)]
        assert_close(torch.cat(steps, 1), expected, atol=1e-5, rtol=1e-5)
        assert_close(torch.cat(cross_steps, 1), cross_expected, atol=1e-5, rtol=1e-5)
        assert (len(cache), len(cross_cache)) == (Q, K)


def test_cached_steps_of_several_tokens_pass_gradients(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Causal())
    cache = KeyValueCache()
    parts = torch.cat([attention(x[:, :2], cache=cache), attention(x[:, 2:], cache=cache)], 1)
    assert_same(parts, attention(x), x)


@pytest.mark.parametrize("with_gradients", list(itertools.product([True, False], repeat=4)))
def test_cache_can_be_filled_with_and_without_gradients(with_gradients, x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Causal()).eval()
    cache = KeyValueCache()
    for i, grad in enumerate(with_gradients):
        with torch.set_grad_enabled(grad):
            step = attention(x[:, i : i + 1], cache=cache)
        assert_close(step, attention(x[:, : i + 1])[:, i:], atol=1e-5, rtol=1e-5)


def test_cache_filled_in_inference_mode_continues_outside_it(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Causal()).eval()
    cache = KeyValueCache()
    with torch.inference_mode():
        for i in range(3):
            attention(x[:, i : i + 1], cache=cache)
    with torch.no_grad():
        assert_close(attention(x[:, 3:4], cache=cache), attention(x[:, :4])[:, 3:], atol=1e-5, rtol=1e-5)


def test_cached_steps_pass_gradients_to_the_score(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine", mask=Causal())
    attention.qkv.requires_grad_(False)
    x = x.detach()
    cache = KeyValueCache()
    steps = torch.cat([attention(x[:, i : i + 1], cache=cache) for i in range(Q)], 1)
    (stepped,) = torch.autograd.grad(steps.square().sum(), attention.score.log_temperature_offset)
    (expected,) = torch.autograd.grad(attention(x).square().sum(), attention.score.log_temperature_offset)
    assert_close(stepped, expected, atol=1e-4, rtol=1e-4)


def test_cache_can_be_reordered(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Causal()).eval()
    indices = torch.tensor([1, 1, 0])
    with torch.no_grad():
        cache = KeyValueCache()
        for i in range(3):
            attention(x[:, i : i + 1], cache=cache)
        cache.reorder(indices)
        assert_close(attention(x[indices, 3:4], cache=cache), attention(x[indices])[:, 3:4], atol=1e-6, rtol=1e-5)


def test_cached_context_equals_context(x, context):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS).eval()
    with torch.no_grad():
        assert_close(attention(x, context, cache=attention.cache_context(context)), attention(x, context))
    with pytest.raises(ValueError, match="context must have shape"):
        attention.cache_context(context[..., :-1])


def test_left_and_right_padding_do_not_change_outputs_at_tokens(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Causal()).eval()
    noise = torch.randn(B, 2, EMBED_DIM)
    tokens, padding = torch.ones(B, Q, dtype=torch.bool), torch.zeros(B, 2, dtype=torch.bool)
    right = attention(torch.cat([x, noise], 1), mask=Padding(torch.cat([tokens, padding], 1)))[:, :Q]
    left = attention(torch.cat([noise, x], 1), mask=Padding(torch.cat([padding, tokens], 1)))[:, 2:]
    assert_close(right, attention(x), atol=1e-6, rtol=1e-5)
    assert_close(left, attention(x), atol=1e-6, rtol=1e-5)


def test_in_context_bias_is_a_linear_function_of_each_key_token(x, context):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, in_context_bias=True)
    plain = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    plain.load_state_dict({k: v for k, v in attention.state_dict().items() if not k.startswith("key_bias")})
    b = attention.key_bias(context).mT.unsqueeze(-2)  # (B, H, 1, K)
    assert_close(attention(x, context), plain(x, context, mask=Bias(b)), atol=1e-6, rtol=1e-5)
    assert (attention(x, context) - plain(x, context)).abs().max() > 1e-3


def test_constructor_mask_combines_with_call_mask(x):
    masked = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Causal())
    plain = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    plain.load_state_dict(masked.state_dict())
    assert_close(masked(x, mask=Window(1)), plain(x, mask=Causal() & Window(1)))


def test_learned_mask_is_in_the_state_dict(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Additive(Q, num_heads=NUM_HEADS))
    attention(x).sum().backward()
    assert "mask.table" in attention.state_dict()
    assert attention.mask.table.grad.abs().sum() > 0


def test_dropout_is_active_in_training_only(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, dropout=0.5)
    assert (attention(x) - attention(x)).abs().max() > 1e-3
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_autocast_casts_float32_and_not_float64(x, context):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    plain = attention(x, context)
    with torch.autocast("cpu", torch.bfloat16):
        half = attention(x, context)
        exact = MultiHeadAttention(EMBED_DIM, NUM_HEADS).double()(x.double(), context.double())
    assert (half.dtype, exact.dtype) == (torch.bfloat16, torch.float64)
    assert_close(half.float(), plain, atol=0.05, rtol=0.05)
    half.sum().backward()
    assert attention.qkv.weight.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_without_graph_breaks(x):
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine", mask=Causal())
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), attention(x), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_attention_takes_masks_of_other_lengths():
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine")
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    for tokens in (5, 6, 8):
        x, mask = torch.randn(2, tokens, EMBED_DIM), Causal() & Padding.from_lengths([tokens, 3])
        assert_close(compiled(x, mask=mask), attention(x, mask=mask), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: MultiHeadAttention(12, 5), "num_heads must divide embed_dim=12, got 5"),
        (lambda a: MultiHeadAttention(0, 1), "embed_dim must be an integer of at least 1, got 0"),
        (lambda a: MultiHeadAttention(12, 3, dropout=-0.1), "dropout must be at least 0 and below 1, got -0.1"),
        (lambda a: MultiHeadAttention(12, 3, score="cos"), "got 'cos'; did you mean 'cosine'?"),
        (lambda a: a(torch.randn(2, 5, 11)), "x must have shape (batch, tokens, 12), got (2, 5, 11)"),
        (lambda a: a(torch.randn(5, 12)), "x must have shape (batch, tokens, 12), got (5, 12)"),
        (
            lambda a: a(torch.randn(2, 5, 12), torch.randn(2, 5, 7)),
            "context must have shape (batch, tokens, 12), got (2, 5, 7)",
        ),
        (
            lambda a: a(torch.randn(2, 5, 12), torch.randn(3, 5, 12)),
            "context must have the batch size of x, 2, got 3",
        ),
        (lambda a: MultiHeadAttention(12.0, 3), "embed_dim must be an integer of at least 1, got 12.0"),
        (lambda a: MultiHeadAttention(12, 3, mask=torch.ones(5, 5)), "mask must be given a Mask, got a torch.float32"),
        (
            lambda a: a(torch.randn(2, 5, 12), mask=Allow(torch.ones(5, 6, dtype=torch.bool))),
            "mask must broadcast to (B, H, Q, K) = (2, 3, 5, 5), got (5, 6)",
        ),
    ],
)
def test_invalid_input_raises(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(MultiHeadAttention(EMBED_DIM, NUM_HEADS))


def test_cache_of_another_batch_size_is_rejected(x):
    attention, cache = MultiHeadAttention(EMBED_DIM, NUM_HEADS), KeyValueCache()
    attention(x, cache=cache)
    message = "cache must be used with the batch size and heads it was filled with, (2, 6), got (1, 6)"
    with pytest.raises(ValueError, match=re.escape(message)):
        attention(x[:1], cache=cache)
