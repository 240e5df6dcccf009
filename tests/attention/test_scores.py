import math
import re

import pytest
import torch
from torch.testing import assert_close

from sightline.attention import SCORES, AdditiveScore, CosineScore, DotScore, GeneralScore, attention_weights
from sightline.attention.scores import DotProductScore, make_score
from sizes import B, D, H, K, Q


@pytest.fixture
def qk():
    return torch.randn(B, H, Q, D), torch.randn(B, H, K, D)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_is_made_by_name_and_compares_each_query_with_each_key(name, qk):
    assert make_score(name, head_dim=D, num_heads=H)(*qk).shape == (B, H, Q, K)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_judges_a_pair_by_that_pair_alone(name, qk):
    q, k = qk
    score = make_score(name, head_dim=D, num_heads=H)
    assert_close(score(q, k)[:, :, 2:3, 4:5], score(q[:, :, 2:3], k[:, :, 4:5]))


@pytest.mark.parametrize("name", [name for name in SCORES if issubclass(SCORES[name], DotProductScore)])
def test_folding_some_heads_is_folding_all_and_taking_some(name, qk):
    q, k = qk
    score = make_score(name, head_dim=D, num_heads=H)
    part = slice(1, 3)
    (some_q, some_k, some_scale), (all_q, all_k, scale) = (
        score.to_dot_product(q[:, part], k[:, part], part),
        score.to_dot_product(q, k),
    )
    assert_close((some_q, some_k, some_scale), (all_q[:, part], all_k[:, part], scale))


@pytest.mark.parametrize("name", SCORES)
def test_every_score_passes_exact_gradients(name):
    score = make_score(name, head_dim=3, num_heads=2).double()
    q, k = (torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 3))
    assert torch.autograd.gradcheck(lambda q, k, *_: score(q, k), (q, k, *score.parameters()))
    assert torch.autograd.gradgradcheck(lambda q, k, *_: score(q, k), (q, k, *score.parameters()))


def test_dot_score_is_the_product_over_the_root_of_the_width(qk):
    q, k = qk
    assert_close(DotScore()(q, k), q @ k.mT / math.sqrt(D))
    assert_close(DotScore(scaled=False)(q, k), q @ k.mT)


def test_dot_products_vary_with_the_width_and_no_longer_once_scaled():
    for width in (16, 256):
        q, k = torch.randn(200_000, 1, width), torch.randn(200_000, 1, width)
        assert_close(DotScore(scaled=False)(q, k).var().item(), float(width), rtol=0.02, atol=0)
        assert_close(DotScore()(q, k).var().item(), 1.0, rtol=0.02, atol=0)


def test_cosine_score_is_the_angle_over_the_temperature(qk):
    q, k = qk
    cosines = torch.nn.functional.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    assert_close(CosineScore(temperature=0.2)(q, k), cosines / 0.2)


def test_cosine_score_ignores_vector_length(qk):
    q, k = qk
    score = CosineScore()
    assert_close(score(q, k), score(3 * q, k / 5))


def test_cosine_of_a_zero_vector_is_zero_and_passes_no_gradient(qk):
    q, k = qk
    q[0, 0, 0] = 0
    k[:, :, 3] = 0
    q.requires_grad_(), k.requires_grad_()
    scores = CosineScore()(q, k)
    scores.square().sum().backward()
    assert (scores[0, 0, 0] == 0).all()
    assert (scores[:, :, :, 3] == 0).all()
    assert (q.grad[0, 0, 0] == 0).all()
    assert (k.grad[:, :, 3] == 0).all()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


def test_temperature_starts_at_a_twentieth_shared_or_one_per_head():
    assert_close(CosineScore().temperature(), torch.full((1, 1, 1), 0.05))
    assert_close(CosineScore(num_heads=H).temperature(), torch.full((H, 1, 1), 0.05))
    assert make_score("cosine", head_dim=D, num_heads=H).temperature().shape == (H, 1, 1)


def test_each_head_is_sharpened_by_its_own_temperature(qk):
    q, k = qk
    score = CosineScore(num_heads=H)
    with torch.no_grad():
        score.log_temperature_offset.copy_(torch.tensor([0.01, 0.02, 0.1]).div(0.05).log().view(H, 1, 1))
    assert_close(score.temperature().flatten(), torch.tensor([0.01, 0.02, 0.1]))
    assert_close(score(q, k)[:, 2], CosineScore(temperature=0.1)(q, k)[:, 2])


def test_temperature_never_falls_below_its_floor_however_hard_it_is_pushed():
    score = CosineScore()
    optimizer = torch.optim.Adam(score.parameters(), lr=0.1)
    lowest = math.inf
    for _ in range(200):
        optimizer.zero_grad()
        score.temperature().sum().backward()
        optimizer.step()
        lowest = min(lowest, score.temperature().item())
    floor = torch.tensor(0.01).item()
    assert floor <= lowest < 1.2 * floor


def test_temperature_at_its_floor_receives_gradient_and_rises_at_once():
    score = CosineScore(temperature=0.01)
    assert score.temperature().item() == torch.tensor(0.01).item()
    (-score.temperature().sum()).backward()
    assert score.log_temperature_offset.grad.abs().item() > 0
    optimizer = torch.optim.SGD(score.parameters(), lr=10.0)
    optimizer.step()
    assert score.temperature().item() > 0.0109


def test_temperature_pushed_to_the_floor_for_long_comes_back_as_fast_as_it_would_from_the_floor():
    score = CosineScore()
    optimizer = torch.optim.Adam(score.parameters(), lr=0.05)
    for sign, steps in ((1, 500), (-1, 60)):
        for _ in range(steps):
            optimizer.zero_grad()
            (sign * score.temperature().sum()).backward()
            optimizer.step()
    assert score.temperature().item() > 0.05


def test_temperature_may_be_fixed():
    score = CosineScore(learnable=False)
    assert not any(parameter.requires_grad for parameter in score.parameters())


def test_the_slope_of_a_weight_in_a_cosine_is_p_times_one_minus_p_over_the_temperature():
    """d p_i / d s_j = p_i (delta_ij - p_j) / temperature, through the whole of `attention_weights`."""
    cosines = torch.tensor([0.9, 0.8, 0.1], dtype=torch.float64)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for temperature in (0.05, 0.1, 1.0):
        score = CosineScore(temperature=temperature).double()

        def weights(s, score=score):
            keys = torch.stack((s, (1 - s.square()).sqrt()), -1)  # unit vectors at these angles to the query
            return attention_weights(query, keys, score=score)[0]

        slope = torch.autograd.functional.jacobian(weights, cosines)
        p = weights(cosines).detach()
        assert_close(slope, (torch.diag(p) - torch.outer(p, p)) / temperature)


def test_gradients_of_gradients_are_finite_beside_a_zero_vector():
    score = CosineScore(temperature=0.5).double()
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    q[0, 0, 1] = 0
    q.requires_grad_()
    (first,) = torch.autograd.grad(score(q, q).square().sum(), q, create_graph=True)
    for gradient in torch.autograd.grad(first.square().sum(), (q, score.log_temperature_offset)):
        assert gradient.isfinite().all()


def test_short_vectors_are_vectors_still():
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    assert_close(CosineScore()(1e-9 * q, 1e-9 * k), CosineScore()(q, k))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lengths_are_measured_exactly_in_half_precision(dtype):
    q = torch.full((1, 1, 1, 64), 40.0, dtype=dtype)  # its square is 102,400, more than float16 can hold
    assert_close(CosineScore(temperature=1.0)(q, q).float(), torch.ones(1, 1, 1, 1), atol=1e-2, rtol=0)
    assert DotScore()(q, q).isfinite().all()
    q.requires_grad_()
    CosineScore()(q, q.detach()).sum().backward()
    assert q.grad.isfinite().all()


def test_weight_decay_draws_the_temperature_back_to_its_start():
    score = CosineScore()
    with torch.no_grad():
        score.log_temperature_offset += 0.5
    before = score.temperature().item()
    optimizer = torch.optim.AdamW(score.parameters(), lr=0.1, weight_decay=1.0)
    for _ in range(100):
        score.log_temperature_offset.grad = torch.zeros_like(score.log_temperature_offset)
        optimizer.step()
    assert_close(score.temperature(), torch.full((1, 1, 1), 0.05), atol=1e-4, rtol=0)
    assert before > 0.08


def test_cosine_works_under_torch_s_function_transforms():
    score = CosineScore(temperature=0.5)
    q, k = torch.randn(5, 1, 3, 4), torch.randn(5, 1, 6, 4)
    assert_close(torch.func.vmap(score)(q, k), score(q, k))

    def loss(log_temperature_offset, q, k):
        return (
            torch.func.functional_call(score, {"log_temperature_offset": log_temperature_offset}, (q, k)).square().sum()
        )

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(score.log_temperature_offset, q, k)
    (total,) = torch.autograd.grad(loss(score.log_temperature_offset, q, k), score.log_temperature_offset)
    assert_close(per_example.sum(0), total)


def test_general_score_turns_the_query_first(qk):
    q, k = qk
    score = GeneralScore(D, key_dim=D, num_heads=H)
    assert_close(score(q, k), torch.einsum("bhqd,hde,bhke->bhqk", q, score.weight, k))


def test_general_and_additive_scores_take_keys_of_another_width(qk):
    q, _ = qk
    k = torch.randn(B, H, K, 13)
    assert GeneralScore(D, key_dim=13)(q, k).shape == (B, H, Q, K)
    assert AdditiveScore(D, key_dim=13, hidden_dim=17)(q, k).shape == (B, H, Q, K)


def test_additive_score_is_a_small_network_on_both(qk):
    q, k = qk
    score = AdditiveScore(D, hidden_dim=13)
    with torch.no_grad():
        score.bias.uniform_()
    i, j = 1, 4
    hidden = torch.tanh(q[0, 2, i] @ score.query[0] + k[0, 2, j] @ score.key[0] + score.bias[0, 0])
    assert_close(score(q, k)[0, 2, i, j], hidden @ score.sum[0, :, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CosineScore(temperature=0), "temperature must be positive and finite, got 0"),
        (lambda: CosineScore(temperature=-0.1), "temperature must be positive and finite, got -0.1"),
        (lambda: CosineScore(temperature=math.nan), "temperature must be positive and finite, got nan"),
        (lambda: CosineScore(temperature=0.001), "temperature must be at least min_temperature=0.01, got 0.001"),
        (lambda: CosineScore(min_temperature=0), "min_temperature must be positive and finite, got 0"),
        (lambda: CosineScore(num_heads=0), "num_heads must be an integer of at least 1, got 0"),
        (lambda: GeneralScore(0), "head_dim must be an integer of at least 1, got 0"),
        (lambda: AdditiveScore(4, hidden_dim=0), "hidden_dim must be an integer of at least 1, got 0"),
        (lambda: make_score("cosin", head_dim=1, num_heads=1), "got 'cosin'; did you mean 'cosine'?"),
        (
            lambda: make_score(3, head_dim=1, num_heads=1),
            "score must be a Score or one of additive, cosine, dot, general, got",
        ),
        (
            lambda: DotScore()(torch.randn(1, 1, 2, 3), torch.randn(1, 1, 2, 4)),
            "q and k must have the same head_dim, got 3 and 4",
        ),
        (
            lambda: GeneralScore(3)(torch.randn(1, 1, 2, 4), torch.randn(1, 1, 2, 3)),
            "q must have 3 channels, as the score was made for, got 4",
        ),
        (
            lambda: CosineScore(num_heads=4)(torch.randn(1, 3, 2, 3), torch.randn(1, 3, 2, 3)),
            "q must have 4 heads, the num_heads of the score, got 3",
        ),
    ],
)
def test_bad_input_is_answered_with_the_rule_and_the_value(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_additive_keys_may_come_mapped_already():
    whole, ready = AdditiveScore(D, hidden_dim=5), AdditiveScore(D, hidden_dim=5, keys_projected=True)
    ready.load_state_dict({name: value for name, value in whole.state_dict().items() if name != "key"})
    q, k = torch.randn(B, 1, Q, D), torch.randn(B, 1, K, D)
    assert_close(ready(q, k @ whole.key), whole(q, k))
    with pytest.raises(ValueError, match="k must have 5 channels, as the score was made for, got 11"):
        ready(q, k)
