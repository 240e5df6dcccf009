import itertools
import re
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.attention import SCORES, KeyValueCache, MultiHeadAttention
from sightline.attention.masks import Additive, Allow, Bias, Causal, Padding, Window, forbid
from sizes import B, K, Q
from torch_twins import copy_attention, input_gradients, shake

WIDTH, HEADS = 12, 3


@pytest.fixture
def x():
    return torch.randn(B, Q, WIDTH, requires_grad=True)


@pytest.fixture
def context():
    return torch.randn(B, K, WIDTH, requires_grad=True)


def twins(bias):
    theirs = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True)
    shake(theirs)
    ours = MultiHeadAttention(WIDTH, HEADS, bias=bias)
    copy_attention(theirs, ours)
    return theirs, ours


def assert_same(ours, theirs, *inputs):
    assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    for got, expected in zip(input_gradients(ours, *inputs), input_gradients(theirs, *inputs), strict=True):
        assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_it_is_torch_s_on_the_same_weights(bias, training, x, context):
    theirs, ours = twins(bias)
    theirs.train(training), ours.train(training)
    assert_same(ours(x), theirs(x, x, x)[0], x)
    assert_same(ours(x, context), theirs(x, context, context)[0], x, context)
    forbidden = torch.rand(Q, K) > 0.6
    forbidden[:, 0] = False
    padded = torch.tensor([[False] * K, [False] * 3 + [True] * (K - 3)])
    mask = forbid(forbidden) & Padding(~padded)
    expected = theirs(x, context, context, attn_mask=forbidden, key_padding_mask=padded)[0]
    assert_same(ours(x, context, mask=mask), expected, x, context)


def test_parameter_gradients_are_torch_s(x):
    theirs, ours = twins(bias=True)
    for out in (theirs(x, x, x)[0], ours(x)):
        (out * torch.arange(out.numel()).cos().view_as(out)).sum().backward()
    assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad, atol=1e-5, rtol=1e-5)
    assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad, atol=1e-5, rtol=1e-5)
    assert_close(ours.out_proj.weight.grad, theirs.out_proj.weight.grad, atol=1e-5, rtol=1e-5)
    assert_close(ours.out_proj.bias.grad, theirs.out_proj.bias.grad, atol=1e-5, rtol=1e-5)


def test_one_fused_projection_and_optional_biases():
    full, lean = MultiHeadAttention(WIDTH, HEADS), MultiHeadAttention(WIDTH, HEADS, bias=False)
    assert full.qkv.weight.shape == (3 * WIDTH, WIDTH)
    assert sum(p.numel() for p in full.parameters()) == 4 * WIDTH * WIDTH + 4 * WIDTH
    assert sum(p.numel() for p in lean.parameters()) == 4 * WIDTH * WIDTH


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("in_context_bias", [True, False])
def test_step_by_step_with_a_cache_gives_what_one_pass_gives(score, in_context_bias, x, context):
    attention = MultiHeadAttention(WIDTH, HEADS, score=score, in_context_bias=in_context_bias, mask=Causal()).eval()
    cross = MultiHeadAttention(WIDTH, HEADS, score=score, in_context_bias=in_context_bias).eval()
    whole, whole_cross = attention(x), cross(x, context)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            cache, cross_cache = KeyValueCache(), KeyValueCache()
            steps = [attention(x[:, i : i + 1], cache=cache) for i in range(Q)]
            cross_steps = [cross(x[:, i : i + 1], context, cache=cross_cache) for i in range(Q)]
        assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-5)
        assert_close(torch.cat(cross_steps, 1), whole_cross, atol=1e-5, rtol=1e-5)
        assert (len(cache), len(cross_cache)) == (Q, K)


def test_a_cache_takes_several_tokens_at_once_and_passes_gradients(x):
    attention = MultiHeadAttention(WIDTH, HEADS, mask=Causal())
    cache = KeyValueCache()
    parts = torch.cat([attention(x[:, :2], cache=cache), attention(x[:, 2:], cache=cache)], 1)
    assert_same(parts, attention(x), x)


@pytest.mark.parametrize("with_gradients", list(itertools.product([True, False], repeat=4)))
def test_a_cache_may_be_filled_with_and_without_gradients(with_gradients, x):
    attention = MultiHeadAttention(WIDTH, HEADS, mask=Causal()).eval()
    cache = KeyValueCache()
    for i, gradients in enumerate(with_gradients):
        with torch.set_grad_enabled(gradients):
            step = attention(x[:, i : i + 1], cache=cache)
        assert_close(step, attention(x[:, : i + 1])[:, i:], atol=1e-5, rtol=1e-5)


def test_a_cache_filled_in_inference_mode_goes_on_outside_it(x):
    attention = MultiHeadAttention(WIDTH, HEADS, mask=Causal()).eval()
    cache = KeyValueCache()
    with torch.inference_mode():
        for i in range(3):
            attention(x[:, i : i + 1], cache=cache)
    with torch.no_grad():
        assert_close(attention(x[:, 3:4], cache=cache), attention(x[:, :4])[:, 3:], atol=1e-5, rtol=1e-5)


def test_cached_steps_with_frozen_projections_can_be_trained_through(x):
    attention = MultiHeadAttention(WIDTH, HEADS, score="cosine", mask=Causal())
    attention.qkv.requires_grad_(False)
    x = x.detach()
    cache = KeyValueCache()
    steps = torch.cat([attention(x[:, i : i + 1], cache=cache) for i in range(Q)], 1)
    (stepped,) = torch.autograd.grad(steps.square().sum(), attention.score.log_temperature_offset)
    (whole,) = torch.autograd.grad(attention(x).square().sum(), attention.score.log_temperature_offset)
    assert_close(stepped, whole, atol=1e-4, rtol=1e-4)


def test_a_cache_follows_its_rows_when_beams_are_reordered(x):
    attention = MultiHeadAttention(WIDTH, HEADS, mask=Causal()).eval()
    rows = torch.tensor([1, 1, 0])
    with torch.no_grad():
        cache = KeyValueCache()
        for i in range(3):
            attention(x[:, i : i + 1], cache=cache)
        cache.reorder(rows)
        assert_close(attention(x[rows, 3:4], cache=cache), attention(x[rows])[:, 3:4], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_cache_follows_its_rows_at_every_step_of_a_search(mode):
    generator = torch.Generator().manual_seed(0)
    cache, rows, written = KeyValueCache(), torch.arange(11), []
    counts = [11, 11, 11, 7, 7, 7, 13, 13, 13, 5, 5, 5, 5]
    with mode():
        for count, after in pairwise(counts):
            written = [part[rows] for part in written]
            written.append(torch.randn(count, 2, HEADS, 4, generator=generator))
            parts = cache.extend([written[-1][:, i].unsqueeze(2) for i in range(2)])
            expected = torch.stack(written, 3)
            for i in range(2):
                assert_close(parts[i], expected[:, i], atol=0, rtol=0)
            rows = torch.randint(count, (after,), generator=generator)
            cache.reorder(rows)
            for i in range(2):
                assert_close(cache.tensors[i], expected[rows][:, i], atol=0, rtol=0)


def test_rows_change_places_without_new_memory():
    cache, homes = KeyValueCache(), set()
    with torch.no_grad():
        for _ in range(64):
            cache.extend([torch.randn(5, HEADS, 1, 4), torch.randn(5, HEADS, 1, 4)])
            cache.reorder(torch.randint(5, (5,)))
            homes.add(cache.tensors[0].data_ptr())
    assert len(homes) <= 16  # two rooms for each doubling


def test_a_context_is_remembered_before_the_first_look(x, context):
    attention = MultiHeadAttention(WIDTH, HEADS).eval()
    with torch.no_grad():
        assert_close(attention(x, context, cache=attention.cache_context(context)), attention(x, context))
    with pytest.raises(ValueError, match="context must have shape"):
        attention.cache_context(context[..., :-1])


def test_a_cached_step_copies_one_token_and_not_all(x):
    cache = KeyValueCache()
    token = [torch.randn(B, HEADS, 1, 4), torch.randn(B, HEADS, 1, 4)]
    with torch.no_grad():
        homes = [cache.extend([part.clone() for part in token])[0].data_ptr() for _ in range(64)]
    assert len(set(homes)) <= 8  # memory moves only when its room doubles


def test_padding_to_the_right_and_to_the_left_changes_nothing_for_real_tokens(x):
    attention = MultiHeadAttention(WIDTH, HEADS, mask=Causal()).eval()
    junk = torch.randn(B, 2, WIDTH)
    real, pad = torch.ones(B, Q, dtype=torch.bool), torch.zeros(B, 2, dtype=torch.bool)
    right = attention(torch.cat([x, junk], 1), mask=Padding(torch.cat([real, pad], 1)))[:, :Q]
    left = attention(torch.cat([junk, x], 1), mask=Padding(torch.cat([pad, real], 1)))[:, 2:]
    assert_close(right, attention(x), atol=1e-6, rtol=1e-5)
    assert_close(left, attention(x), atol=1e-6, rtol=1e-5)


def test_in_context_bias_adds_a_number_made_from_each_key(x, context):
    attention = MultiHeadAttention(WIDTH, HEADS, in_context_bias=True)
    plain = MultiHeadAttention(WIDTH, HEADS)
    plain.load_state_dict({k: v for k, v in attention.state_dict().items() if not k.startswith("key_bias")})
    b = attention.key_bias(context).mT.unsqueeze(-2)  # (B, H, 1, K)
    assert_close(attention(x, context), plain(x, context, mask=Bias(b)), atol=1e-6, rtol=1e-5)
    assert (attention(x, context) - plain(x, context)).abs().max() > 1e-3


def test_its_own_mask_holds_beside_the_one_of_a_call(x):
    both = MultiHeadAttention(WIDTH, HEADS, mask=Causal())
    one = MultiHeadAttention(WIDTH, HEADS)
    one.load_state_dict(both.state_dict())
    assert_close(both(x, mask=Window(1)), one(x, mask=Causal() & Window(1)))


def test_a_learned_mask_is_part_of_the_module(x):
    attention = MultiHeadAttention(WIDTH, HEADS, mask=Additive(Q, num_heads=HEADS))
    attention(x).sum().backward()
    assert "mask.table" in attention.state_dict()
    assert attention.mask.table.grad.abs().sum() > 0


def test_dropout_acts_in_training_only(x):
    attention = MultiHeadAttention(WIDTH, HEADS, dropout=0.5)
    assert (attention(x) - attention(x)).abs().max() > 1e-3
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_autocast_lowers_what_it_always_lowers_and_leaves_float64_alone(x, context):
    attention = MultiHeadAttention(WIDTH, HEADS)
    plain = attention(x, context)
    with torch.autocast("cpu", torch.bfloat16):
        lowered = attention(x, context)
        exact = MultiHeadAttention(WIDTH, HEADS).double()(x.double(), context.double())
    assert (lowered.dtype, exact.dtype) == (torch.bfloat16, torch.float64)
    assert_close(lowered.float(), plain, atol=0.05, rtol=0.05)
    lowered.sum().backward()
    assert attention.qkv.weight.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own doing
def test_it_compiles_whole(x):
    attention = MultiHeadAttention(WIDTH, HEADS, score="cosine", mask=Causal())
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), attention(x), atol=1e-5, rtol=1e-5)


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
            "mask must broadcast to (batch 2, heads 3, queries 5, keys 5), got (5, 6)",
        ),
    ],
)
def test_bad_input_is_answered_with_the_rule_and_the_value(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(MultiHeadAttention(WIDTH, HEADS))


def test_a_cache_of_another_batch_is_refused(x):
    attention, cache = MultiHeadAttention(WIDTH, HEADS), KeyValueCache()
    attention(x, cache=cache)
    told = "cache must be used with the batch size and heads it was filled with, (2, 6), got (1, 6)"
    with pytest.raises(ValueError, match=re.escape(told)):
        attention(x[:1], cache=cache)
