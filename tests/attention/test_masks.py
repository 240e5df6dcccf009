import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline.attention import NORMALIZERS, SCORES, MultiHeadAttention, attend, attention_weights
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
    """The allowed pairs as rows of 0 and 1."""
    allowed = resolve_mask(mask, (1, 1, queries, keys), CPU).allowed
    return (torch.ones(1) if allowed is None else allowed).expand(1, 1, queries, keys)[0, 0].int().tolist()


def test_causal_allows_own_and_earlier_positions():
    assert table(Causal(), 3, 3) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_causal_aligns_queries_to_the_last_keys():
    assert table(Causal(), 2, 5) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert table(Causal(), 1, 4) == [[1, 1, 1, 1]]


def test_window_allows_positions_within_the_radius():
    assert table(Window(1), 4, 4) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert table(Window(0), 2, 2) == [[1, 0], [0, 1]]
    assert table(Window(1) & Causal(), 2, 4) == [[0, 1, 1, 0], [0, 0, 1, 1]]


def test_episode_queries_attend_to_support_and_themselves():
    assert table(Episode(2), 4, 4) == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    assert table(Episode(2), 2, 4) == [[1, 1, 1, 0], [1, 1, 0, 1]]
    two_each = [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]]
    assert table(Episode(1, query_size=2), 5, 5) == two_each


def test_padding_hides_padded_keys():
    attention_mask = torch.tensor([[True, True, False]])
    assert table(Padding(attention_mask), 2, 3) == [[1, 1, 0], [1, 1, 0]]
    assert table(Padding.from_lengths(torch.tensor([2]), 3), 1, 3) == [[1, 1, 0]]
    assert Padding.from_lengths(torch.tensor([2, 4])).attention_mask.shape == (2, 1, 1, 4)


def test_valid_lengths_are_not_copied_for_a_message(monkeypatch):
    """The copy would synchronize a GPU."""
    monkeypatch.setattr(torch.Tensor, "tolist", None, raising=False)
    assert Padding.from_lengths(torch.tensor([2, 4])).attention_mask.sum() == 6


def test_masks_combine_with_and_or_not():
    assert table(Causal() & Window(1), 3, 3) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert table(Causal() | Window(1), 3, 3) == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert table(~Causal(), 2, 2) == [[0, 1], [0, 0]]
    assert table(~Causal(), 1, 2) == [[0, 0]]


def test_allow_and_forbid_have_opposite_meanings():
    allowed = torch.tensor([[True, False], [True, True]])
    assert table(Allow(allowed), 2, 2) == [[1, 0], [1, 1]]
    assert table(forbid(allowed), 2, 2) == [[0, 1], [0, 0]]
    assert resolve_mask(Allow(allowed.expand(3, 2, 2)), (3, 5, 2, 2), CPU).allowed.shape == (3, 1, 2, 2)


def test_learned_masks_have_no_effect_at_initialization_and_receive_gradients():
    q, k = torch.randn(B, H, Q, D), torch.randn(B, H, Q, D)
    plain = attention_weights(q, k)
    for mask in (Additive(9, num_heads=H), Multiplicative(9)):
        assert_close(attention_weights(q, k, mask=mask), plain)
        attention_weights(q, k, mask=mask)[..., 0].sum().backward()
        assert mask.table.grad[:, :Q, :Q].abs().sum() > 0
        assert mask.table.grad[:, Q:, :].abs().sum() == 0


def test_factor_is_applied_before_bias_in_either_order():
    scores = torch.randn(1, 1, 3, 3)
    add, times = Additive(3), Multiplicative(3)
    with torch.no_grad():
        add.table.normal_(), times.table.normal_()
    for mask in (add & times, times & add):
        assert_close(resolve_mask(mask, (1, 1, 3, 3), CPU).apply_bias(scores), scores * times.table + add.table)


def test_learned_masks_align_queries_to_the_last_keys():
    add = Additive(5)
    with torch.no_grad():
        add.table.normal_()
    assert_close(resolve_mask(add, (1, 1, 1, 4), CPU).bias[0], add.table[:, 3:4, :4])


def test_combined_masks_register_learned_parameters():
    mask = Causal() & Additive(4) & Padding(torch.ones(1, 4, dtype=torch.bool))
    assert len(list(mask.parameters())) == 1
    assert mask.to(torch.float64).left.right.table.dtype == torch.float64


# masks that a causal mask is combined with, for n tokens and a batch of 2
COMPANIONS = {
    "none": lambda n, seed: None,
    "padding": lambda n, seed: Padding(_noise(seed, 2, n) > 0),
    "window": lambda n, seed: Window(seed % n),
    "episode": lambda n, seed: Episode(1 + seed % n),
    "allow": lambda n, seed: Allow(_noise(seed, n, n) > 0),
    "bias": lambda n, seed: Bias(5 * _noise(seed, 2, 1, n, n)),
    "additive": lambda n, seed: _randomize(Additive(n), seed),
    "multiplicative": lambda n, seed: _randomize(Multiplicative(n, num_heads=2), seed),
}


def _noise(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _randomize(mask, seed):
    mask.table.data = 5 * _noise(seed, *mask.table.shape)
    return mask


def assert_causal(mask, names, score, normalizer, tokens, now, seed):
    """Tokens after `now` do not change outputs up to it; the last queries alone have the same weights."""
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
        return  # these masks have a fixed number of queries
    last = slice(tokens // 2, None)  # as with a cache: the last queries, all keys
    assert_close(attention_weights(q[:, :, last], k, mask=mask, **parts), weights[:, :, last], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("first", COMPANIONS)
@pytest.mark.parametrize("second", COMPANIONS)
def test_no_combination_with_a_causal_mask_shows_later_tokens(first, second):
    tokens, seed = 5, 3
    a, b = (COMPANIONS[name](tokens, seed + i) for i, name in enumerate((first, second)))
    mask = Causal()
    for other in (a, b):
        mask = mask if other is None else mask & other
    for score in SCORES:
        for normalizer in NORMALIZERS:
            assert_causal(mask, (first, second), score, normalizer, tokens, now=2, seed=seed)


@given(
    first=st.sampled_from(sorted(COMPANIONS)),
    second=st.sampled_from(sorted(COMPANIONS)),
    score=st.sampled_from(sorted(SCORES)),
    normalizer=st.sampled_from(sorted(NORMALIZERS)),
    tokens=st.integers(1, 6),
    data=st.data(),
)
def test_later_tokens_do_not_change_causal_outputs(first, second, score, normalizer, tokens, data):
    seed = data.draw(st.integers(0, 1000), label="seed")
    now = data.draw(st.integers(0, tokens - 1), label="now")
    mask = Causal()
    for name in (first, second):
        other = COMPANIONS[name](tokens, seed)
        if other is None:
            continue
        combinations = [mask & other, other & mask]
        if not (other.changes_scores or mask.changes_scores):
            combinations += [mask & ~other, (mask & other) | (mask & Window(1)), mask & (other | Window(2))]
        mask = data.draw(st.sampled_from(combinations))
    assert_causal(mask, (first, second), score, normalizer, tokens, now, seed)


@pytest.mark.parametrize("name", COMPANIONS)
@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_later_tokens_do_not_change_outputs_of_a_causal_encoder(name, score):
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
def test_fully_masked_rows_are_zero_with_zero_gradient(score, normalizer):
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
        (lambda: Padding(torch.ones(2, 3, dtype=torch.int64)), "tensor of shape (2, 3); convert it with .bool()"),
        (
            lambda: table(Padding.from_lengths([2]), 3, 3),
            "got (1, 1, 1, 2); Padding.from_lengths takes the number of keys",
        ),
        (lambda: Padding.from_lengths(torch.tensor([5]), 4), "lengths must be at most size=4, got 5"),
        (
            lambda: Padding.from_lengths(torch.tensor([0.5])),
            "lengths must be integers of at least 0 and of shape (B,), got [0.5]",
        ),
        (
            lambda: Bias(torch.ones(2, dtype=torch.bool)),
            "Bias must be a floating-point tensor of 2, 3 or 4 dimensions",
        ),
        (lambda: Causal() | Additive(3), "| must combine masks that only allow or forbid, got Additive; use &"),
        (lambda: ~Multiplicative(3), "~ must combine masks that only allow or forbid, got Multiplicative"),
        (lambda: Causal() & torch.ones(2, 2).bool(), "& must be given a Mask, got a torch.bool tensor of shape (2, 2)"),
        (lambda: table(Causal(), 3, 2), "Causal must have no more queries than keys, got 3 queries and 2 keys"),
        (lambda: table(Episode(4), 1, 3), "Episode must have at least its 4 support tokens as keys, got 3"),
        (lambda: table(Additive(3), 4, 4), "Additive must have at most size=3 keys"),
        (
            lambda: table(Allow(torch.ones(3, 4).bool()), 3, 5),
            "mask must broadcast to (B, H, Q, K) = (1, 1, 3, 5), got (3, 4)",
        ),
    ],
)
def test_invalid_input_raises(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_tensors_are_rejected_as_masks():
    x = torch.randn(1, 1, 3, 4)
    for tensor in (torch.ones(3, 3).bool(), torch.zeros(3, 3)):
        with pytest.raises(ValueError, match=r"mask must be given a Mask, got .*Allow \(True = may attend\)"):
            attend(x, x, x, mask=tensor)


def test_mask_classes_are_rejected_as_masks():
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=r"create an instance: Causal\(\.\.\.\)"):
        attend(x, x, x, mask=Causal)


def test_masks_that_do_not_broadcast_are_rejected():
    x = torch.randn(2, 1, 5, 4)
    with pytest.raises(
        ValueError, match=re.escape("masks must broadcast to each other, got shapes (5, 5) and (2, 1, 1, 6)")
    ):
        attend(x, x, x, mask=Causal() & Padding(torch.ones(2, 6, dtype=torch.bool)))


def test_boolean_keywords_on_masks_raise():
    with pytest.raises(ValueError, match="masks must be combined with &"):
        Causal() and Window(2)


def test_minus_infinity_in_a_bias_forbids():
    bias = torch.zeros(3, 3)
    bias[0] = bias[1, 2] = -torch.inf
    assert table(Bias(bias), 3, 3) == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_bias_accepts_a_parameter():
    bias = Bias(torch.nn.Parameter(torch.zeros(3, 3)))
    assert "bias" in bias.state_dict()


PADDED = torch.arange(Q) < torch.tensor([[Q], [2]])


def test_padding_without_empty_rows_gives_the_same_outputs():
    attention, x = MultiHeadAttention(12, H), torch.randn(B, Q, 12)
    promised = Padding(PADDED, has_no_empty_rows=True)
    assert_close(attention(x, mask=promised), attention(x, mask=Padding(PADDED)))
    assert_close(attention(x, mask=promised & Causal()), attention(x, mask=Padding(PADDED) & Causal()))


def test_padding_bias_is_cached_per_dtype():
    mask, q = Padding(PADDED, has_no_empty_rows=True), torch.randn(B, H, Q, D)
    with torch.inference_mode():
        bias = mask.as_bias(q)
    assert mask.as_bias(q) is bias
    assert not bias.is_inference()  # usable in training
    assert bias.stride()[:3] == (8, 8, 8)  # aligned, or torch's kernels copy it
    assert_close(bias.exp().bool(), PADDED[:, None, None])
    assert mask.as_bias(q.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="mask must broadcast"):
        MultiHeadAttention(12, H)(torch.randn(3, Q, 12), mask=mask)
