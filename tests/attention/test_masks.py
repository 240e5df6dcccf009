import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline.attention import NORMALIZERS, SCORES, attend, attention_weights
from sightline.attention.masks import (
    Additive,
    Allow,
    Bias,
    Causal,
    Episode,
    Multiplicative,
    Padding,
    Window,
    forbid,
    resolve_mask,
)
from sightline.attention.normalizers import make_normalizer
from sightline.attention.scores import make_score
from sightline.layers import Encoder
from sizes import B, D, H, K, Q

CPU = torch.device("cpu")


def table(mask, queries, keys):
    """The mask as rows of 0 and 1."""
    allowed = resolve_mask(mask, (1, 1, queries, keys), CPU).allowed
    return (torch.ones(1) if allowed is None else allowed).expand(1, 1, queries, keys)[0, 0].int().tolist()


def test_causal_lets_a_token_see_itself_and_the_past():
    assert table(Causal(), 3, 3) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_causal_with_more_keys_than_queries_takes_the_queries_for_the_last_tokens():
    assert table(Causal(), 2, 5) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert table(Causal(), 1, 4) == [[1, 1, 1, 1]]


def test_window_lets_a_token_see_its_neighbors():
    assert table(Window(1), 4, 4) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert table(Window(0), 2, 2) == [[1, 0], [0, 1]]
    assert table(Window(1) & Causal(), 2, 4) == [[0, 1, 1, 0], [0, 0, 1, 1]]


def test_episode_lets_a_query_see_the_support_and_itself():
    assert table(Episode(2), 4, 4) == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    assert table(Episode(2), 2, 4) == [[1, 1, 1, 0], [1, 1, 0, 1]]
    two_each = [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]]
    assert table(Episode(1, query_size=2), 5, 5) == two_each


def test_padding_hides_the_keys_that_are_not_real():
    real = torch.tensor([[True, True, False]])
    assert table(Padding(real), 2, 3) == [[1, 1, 0], [1, 1, 0]]
    assert table(Padding.from_lengths(torch.tensor([2]), 3), 1, 3) == [[1, 1, 0]]
    assert Padding.from_lengths(torch.tensor([2, 4])).attention_mask.shape == (2, 1, 1, 4)


def test_masks_combine_by_and_or_not():
    assert table(Causal() & Window(1), 3, 3) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert table(Causal() | Window(1), 3, 3) == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert table(~Causal(), 2, 2) == [[0, 1], [0, 0]]
    assert table(~Causal(), 1, 2) == [[0, 0]]


def test_allow_and_forbid_say_in_their_name_what_true_means():
    yes = torch.tensor([[True, False], [True, True]])
    assert table(Allow(yes), 2, 2) == [[1, 0], [1, 1]]
    assert table(forbid(yes), 2, 2) == [[0, 1], [0, 0]]
    assert resolve_mask(Allow(yes.expand(3, 2, 2)), (3, 5, 2, 2), CPU).allowed.shape == (3, 1, 2, 2)


def test_learned_masks_start_without_effect_and_learn():
    q, k = torch.randn(B, H, Q, D), torch.randn(B, H, Q, D)
    plain = attention_weights(q, k)
    for mask in (Additive(9, num_heads=H), Multiplicative(9)):
        assert_close(attention_weights(q, k, mask=mask), plain)
        attention_weights(q, k, mask=mask)[..., 0].sum().backward()
        assert mask.table.grad[:, :Q, :Q].abs().sum() > 0
        assert mask.table.grad[:, Q:, :].abs().sum() == 0


def test_learned_masks_bend_the_scores_factor_first_in_either_order():
    scores = torch.randn(1, 1, 3, 3)
    add, times = Additive(3), Multiplicative(3)
    with torch.no_grad():
        add.table.normal_(), times.table.normal_()
    for mask in (add & times, times & add):
        assert_close(resolve_mask(mask, (1, 1, 3, 3), CPU).apply_bias(scores), scores * times.table + add.table)


def test_learned_masks_follow_the_queries_to_the_end_of_the_keys():
    add = Additive(5)
    with torch.no_grad():
        add.table.normal_()
    assert_close(resolve_mask(add, (1, 1, 1, 4), CPU).bias[0], add.table[:, 3:4, :4])


def test_a_learned_mask_inside_a_combination_is_found_by_the_optimizer_and_moves_with_the_model():
    mask = Causal() & Additive(4) & Padding(torch.ones(1, 4, dtype=torch.bool))
    assert len(list(mask.parameters())) == 1
    assert mask.to(torch.float64).left.right.table.dtype == torch.float64


# Masks that a causal mask may be combined with, each for N tokens and a batch of B.
COMPANIONS = {
    "none": lambda n, seed: None,
    "padding": lambda n, seed: Padding(_noise(seed, 2, n) > 0),
    "window": lambda n, seed: Window(seed % n),
    "episode": lambda n, seed: Episode(1 + seed % n),
    "allow": lambda n, seed: Allow(_noise(seed, n, n) > 0),
    "bias": lambda n, seed: Bias(5 * _noise(seed, 2, 1, n, n)),
    "additive": lambda n, seed: _learned(Additive(n), seed),
    "multiplicative": lambda n, seed: _learned(Multiplicative(n, num_heads=2), seed),
}


def _noise(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _learned(mask, seed):
    mask.table.data = 5 * _noise(seed, *mask.table.shape)
    return mask


def assert_future_is_hidden(mask, names, score, normalizer, tokens, now, seed):
    """Change everything after `now`; nothing up to it may move, in the function, with fewer queries, and in a model."""
    parts = {"score": make_score(score, head_dim=3, num_heads=2), "normalizer": make_normalizer(normalizer).eval()}
    q, k, v = (_noise(seed + i, 2, 2, tokens, 3) for i in range(3))
    later = slice(now + 1, None)
    before = attend(q, k, v, mask=mask, **parts)
    changed = [x.clone() for x in (q, k, v)]
    for x in changed:
        x[:, :, later] = 100 * _noise(seed + 7, 2, 2, tokens - now - 1, 3)
    after = attend(*changed, mask=mask, **parts)
    assert_close(before[:, :, : now + 1], after[:, :, : now + 1], atol=1e-6, rtol=1e-5)
    weights = attention_weights(q, k, mask=mask, **parts)
    assert (weights.triu(1) == 0).all()
    if {"allow", "bias"} & set(names):
        return  # a table of one's own is for as many queries as it has rows
    some = slice(tokens // 2, None)  # as with a cache: the last queries, all keys
    assert_close(attention_weights(q[:, :, some], k, mask=mask, **parts), weights[:, :, some], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("first", COMPANIONS)
@pytest.mark.parametrize("second", COMPANIONS)
def test_no_combination_of_masks_shows_the_future(first, second):
    tokens, seed = 5, 3
    a, b = (COMPANIONS[name](tokens, seed + i) for i, name in enumerate((first, second)))
    mask = Causal()
    for other in (a, b):
        mask = mask if other is None else mask & other
    for score in SCORES:
        for normalizer in NORMALIZERS:
            assert_future_is_hidden(mask, (first, second), score, normalizer, tokens, now=2, seed=seed)


@given(
    first=st.sampled_from(sorted(COMPANIONS)),
    second=st.sampled_from(sorted(COMPANIONS)),
    score=st.sampled_from(sorted(SCORES)),
    normalizer=st.sampled_from(sorted(NORMALIZERS)),
    tokens=st.integers(1, 6),
    data=st.data(),
)
def test_no_change_to_the_future_moves_a_causal_output(first, second, score, normalizer, tokens, data):
    seed = data.draw(st.integers(0, 1000), label="seed")
    now = data.draw(st.integers(0, tokens - 1), label="now")
    mask = Causal()
    for name in (first, second):
        other = COMPANIONS[name](tokens, seed)
        if other is None:
            continue
        ways = [mask & other, other & mask]
        if not (other.changes_scores or mask.changes_scores):
            ways += [mask & ~other, (mask & other) | (mask & Window(1)), mask & (other | Window(2))]
        mask = data.draw(st.sampled_from(ways))
    assert_future_is_hidden(mask, (first, second), score, normalizer, tokens, now, seed)


@pytest.mark.parametrize("name", COMPANIONS)
@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_a_causal_model_s_output_is_unmoved_by_any_change_to_the_future(name, score):
    other = COMPANIONS[name](5, 1)
    mask = Causal() if other is None else Causal() & other
    model = Encoder(12, 2, 24, 2, score=score, in_context_bias=True).eval()
    x = torch.randn(2, 5, 12)
    before = model(x, mask=mask)
    for now in range(4):
        changed = x.clone()
        changed[:, now + 1 :] = 10 * torch.randn(2, 4 - now, 12)
        assert_close(model(changed, mask=mask)[:, : now + 1], before[:, : now + 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_row_that_may_look_at_nothing_gives_zeros_and_zero_gradient(score, normalizer):
    q, k, v = (torch.randn(B, H, n, D, requires_grad=True) for n in (Q, K, K))
    allowed = torch.rand(B, Q, K) > 0.5
    allowed[:, 2], allowed[:, 3, 0] = False, True
    parts = {"score": make_score(score, head_dim=D, num_heads=H), "normalizer": make_normalizer(normalizer)}
    for mask in (Allow(allowed), Allow(allowed) & Bias(torch.randn(Q, K)), Allow(allowed) & Multiplicative(K)):
        out = attend(q, k, v, mask=mask, **parts)
        assert (out[:, :, 2] == 0).all()
        gradients = torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True)
        for gradient in gradients:
            assert gradient is None or gradient.isfinite().all()
        if gradients[0] is not None:
            assert (gradients[0][:, :, 2] == 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(-1), "radius must be an integer of at least 0, got -1"),
        (lambda: Window(1.5), "radius must be an integer of at least 0, got 1.5"),
        (lambda: Episode(0), "support must be an integer of at least 1, got 0"),
        (lambda: Additive(0), "size must be an integer of at least 1, got 0"),
        (
            lambda: Allow(torch.ones(2, 2)),
            "Allow must be given a bool tensor of 2 or 3 or 4 dimensions, got a torch.float32",
        ),
        (
            lambda: Padding(torch.zeros(2, 3)),
            "Padding must be given a bool tensor of 2 dimensions, got a torch.float32",
        ),
        (lambda: Padding(torch.ones(3, dtype=torch.bool)), "got a torch.bool tensor of shape (3,)"),
        (lambda: Padding.from_lengths(torch.tensor([5]), 4), "lengths must be at most size=4, got 5"),
        (
            lambda: Padding.from_lengths(torch.tensor([0.5])),
            "lengths must be integers of at least 0 and of shape (B,), got [0.5]",
        ),
        (
            lambda: Bias(torch.ones(2, dtype=torch.bool)),
            "Bias must be given a floating-point tensor of 2, 3 or 4 dimensions",
        ),
        (lambda: Causal() | Additive(3), "| must combine masks that only allow or forbid, got Additive; use &"),
        (lambda: ~Multiplicative(3), "~ must combine masks that only allow or forbid, got Multiplicative"),
        (lambda: Causal() & torch.ones(2, 2).bool(), "& must be given a Mask, got a torch.bool tensor of shape (2, 2)"),
        (lambda: table(Causal(), 3, 2), "Causal must have at least as many keys as queries, got 3 queries and 2 keys"),
        (lambda: table(Episode(4), 1, 3), "Episode must have at least its 4 support tokens as keys, got 3"),
        (lambda: table(Additive(3), 4, 4), "Additive must be used with at most size=3 keys"),
        (
            lambda: table(Allow(torch.ones(3, 4).bool()), 3, 5),
            "mask must broadcast to (batch 1, heads 1, queries 3, keys 5), got (3, 4)",
        ),
    ],
)
def test_bad_input_is_answered_with_the_rule_and_the_value(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_bare_tensor_is_no_mask_and_the_error_says_how_to_make_one():
    x = torch.randn(1, 1, 3, 4)
    for bare in (torch.ones(3, 3).bool(), torch.zeros(3, 3)):
        with pytest.raises(ValueError, match=r"mask must be given a Mask, got .*Allow \(True = may attend\)"):
            attend(x, x, x, mask=bare)


def test_a_mask_that_was_not_made_is_answered_with_how_to_make_it():
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=r"create an instance: Causal\(\.\.\.\)"):
        attend(x, x, x, mask=Causal)


def test_masks_of_sizes_that_do_not_fit_one_another_are_refused():
    x = torch.randn(2, 1, 5, 4)
    with pytest.raises(
        ValueError, match=re.escape("masks must broadcast to each other, got shapes (5, 5) and (2, 1, 1, 6)")
    ):
        attend(x, x, x, mask=Causal() & Padding(torch.ones(2, 6, dtype=torch.bool)))


def test_and_or_not_in_words_would_drop_a_mask_and_are_refused():
    with pytest.raises(ValueError, match="masks must be combined with &"):
        Causal() and Window(2)


def test_minus_infinity_in_a_bias_means_may_not_look():
    bias = torch.zeros(3, 3)
    bias[0] = bias[1, 2] = -torch.inf
    assert table(Bias(bias), 3, 3) == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_a_bias_may_be_learned():
    bias = Bias(torch.nn.Parameter(torch.zeros(3, 3)))
    assert "bias" in bias.state_dict()
