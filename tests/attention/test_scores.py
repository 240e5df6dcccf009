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
def test_scores_are_made_by_name(name, qk):
    assert make_score(name, head_dim=D, num_heads=H)(*qk).shape == (B, H, Q, K)


@pytest.mark.parametrize("name", SCORES)
def test_each_score_depends_on_its_query_and_key_only(name, qk):
    q, k = qk
    score = make_score(name, head_dim=D, num_heads=H)
    assert_close(score(q, k)[:, :, 2:3, 4:5], score(q[:, :, 2:3], k[:, :, 4:5]))


@pytest.mark.parametrize("name", [name for name in SCORES if issubclass(SCORES[name], DotProductScore)])
def test_to_dot_product_of_selected_heads(name, qk):
    q, k = qk
    score = make_score(name, head_dim=D, num_heads=H)
    part = slice(1, 3)
    (part_q, part_k, part_scale), (all_q, all_k, scale) = (
        score.to_dot_product(q[:, part], k[:, part], part),
        score.to_dot_product(q, k),
    )
    assert_close((part_q, part_k, part_scale), (all_q[:, part], all_k[:, part], scale))


@pytest.mark.parametrize("name", SCORES)
def test_first_and_second_gradients_are_exact(name):
    score = make_score(name, head_dim=3, num_heads=2).double()
    q, k = (torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 3))
    assert torch.autograd.gradcheck(lambda q, k, *_: score(q, k), (q, k, *score.parameters()))
    assert torch.autograd.gradgradcheck(lambda q, k, *_: score(q, k), (q, k, *score.parameters()))


def test_dot_score_is_scaled_by_the_root_of_head_dim(qk):
    q, k = qk
    assert_close(DotScore()(q, k), q @ k.mT / math.sqrt(D))
    assert_close(DotScore(scaled=False)(q, k), q @ k.mT)


def test_variance_of_scaled_dot_products_does_not_depend_on_head_dim():
    for head_dim in (16, 256):
        q, k = torch.randn(200_000, 1, head_dim), torch.randn(200_000, 1, head_dim)
        assert_close(DotScore(scaled=False)(q, k).var().item(), float(head_dim), rtol=0.02, atol=0)
        assert_close(DotScore()(q, k).var().item(), 1.0, rtol=0.02, atol=0)


def test_cosine_score_is_cosine_similarity_over_temperature(qk):
    q, k = qk
    cosines = torch.nn.functional.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    assert_close(CosineScore(temperature=0.2)(q, k), cosines / 0.2)


def test_cosine_score_ignores_vector_length(qk):
    q, k = qk
    score = CosineScore()
    assert_close(score(q, k), score(3 * q, k / 5))


def test_cosine_of_a_zero_vector_is_zero_with_zero_gradient(qk):
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


def test_initial_temperature_shared_or_per_head():
    assert_close(CosineScore().temperature(), torch.full((1, 1, 1), 0.05))
    assert_close(CosineScore(num_heads=H).temperature(), torch.full((H, 1, 1), 0.05))
    score = make_score("cosine", head_dim=16, num_heads=H)
    assert_close(score.temperature(), torch.full((H, 1, 1), 0.25))
    assert score.initial_temperature == 0.25
    assert_close(make_score("cosine", head_dim=10**6, num_heads=1).temperature(), torch.full((1, 1, 1), 0.01))


def test_scores_of_random_vectors_have_the_variance_of_scaled_dot_products():
    q, k = torch.randn(2, 1, 1, 1000, 64)
    cosine, dot = (make_score(name, head_dim=64, num_heads=1)(q, k).var() for name in ("cosine", "dot"))
    assert_close(cosine, dot, rtol=0.1, atol=0)


def test_weights_from_a_file_set_the_temperature_whatever_it_starts_at():
    stored = CosineScore(num_heads=H)
    score = make_score("cosine", head_dim=16, num_heads=H)
    score.load_state_dict(stored.state_dict())
    assert_close(score.temperature(), stored.temperature())


def test_each_head_has_its_temperature(qk):
    q, k = qk
    score = CosineScore(num_heads=H)
    with torch.no_grad():
        score.log_temperature_offset.copy_(torch.tensor([0.01, 0.02, 0.1]).div(0.05).log().view(H, 1, 1))
    assert_close(score.temperature().flatten(), torch.tensor([0.01, 0.02, 0.1]))
    assert_close(score(q, k)[:, 2], CosineScore(temperature=0.1)(q, k)[:, 2])


def test_temperature_never_falls_below_min_temperature():
    score = CosineScore()
    optimizer = torch.optim.Adam(score.parameters(), lr=0.1)
    lowest = math.inf
    for _ in range(200):
        optimizer.zero_grad()
        score.temperature().sum().backward()
        optimizer.step()
        lowest = min(lowest, score.temperature().item())
    minimum = torch.tensor(0.01).item()
    assert minimum <= lowest < 1.2 * minimum


def test_temperature_at_its_minimum_receives_gradient():
    score = CosineScore(temperature=0.01)
    assert score.temperature().item() == torch.tensor(0.01).item()
    (-score.temperature().sum()).backward()
    assert score.log_temperature_offset.grad.abs().item() > 0
    optimizer = torch.optim.SGD(score.parameters(), lr=10.0)
    optimizer.step()
    assert score.temperature().item() > 0.0109


def test_temperature_recovers_from_its_minimum():
    score = CosineScore()
    optimizer = torch.optim.Adam(score.parameters(), lr=0.05)
    for sign, steps in ((1, 500), (-1, 60)):
        for _ in range(steps):
            optimizer.zero_grad()
            (sign * score.temperature().sum()).backward()
            optimizer.step()
    assert score.temperature().item() > 0.05


def test_temperature_can_be_frozen():
    score = CosineScore(learnable=False)
    assert not any(parameter.requires_grad for parameter in score.parameters())


def test_gradient_of_weights_with_respect_to_cosines():
    """d p_i / d s_j = p_i (delta_ij - p_j) / temperature"""
    cosines = torch.tensor([0.9, 0.8, 0.1], dtype=torch.float64)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for temperature in (0.05, 0.1, 1.0):
        score = CosineScore(temperature=temperature).double()

        def weights(s, score=score):
            keys = torch.stack((s, (1 - s.square()).sqrt()), -1)  # unit vectors with these cosines
            return attention_weights(query, keys, score=score)[0]

        jacobian = torch.autograd.functional.jacobian(weights, cosines)
        p = weights(cosines).detach()
        assert_close(jacobian, (torch.diag(p) - torch.outer(p, p)) / temperature)


def test_second_gradients_are_finite_with_a_zero_vector():
    score = CosineScore(temperature=0.5).double()
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    q[0, 0, 1] = 0
    q.requires_grad_()
    (first,) = torch.autograd.grad(score(q, q).square().sum(), q, create_graph=True)
    for gradient in torch.autograd.grad(first.square().sum(), (q, score.log_temperature_offset)):
        assert gradient.isfinite().all()


def test_very_short_vectors_are_normalized():
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    assert_close(CosineScore()(1e-9 * q, 1e-9 * k), CosineScore()(q, k))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_do_not_overflow_in_half_precision(dtype):
    q = torch.full((1, 1, 1, 64), 40.0, dtype=dtype)  # the sum of squares, 102,400, overflows float16
    assert_close(CosineScore(temperature=1.0)(q, q).float(), torch.ones(1, 1, 1, 1), atol=1e-2, rtol=0)
    assert DotScore()(q, q).isfinite().all()
    q.requires_grad_()
    CosineScore()(q, q.detach()).sum().backward()
    assert q.grad.isfinite().all()


def test_weight_decay_pulls_temperature_to_its_initial_value():
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


def test_cosine_score_supports_torch_func():
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


def test_general_score_is_a_bilinear_form(qk):
    q, k = qk
    score = GeneralScore(D, key_dim=D, num_heads=H)
    assert_close(score(q, k), torch.einsum("bhqd,hde,bhke->bhqk", q, score.weight, k))


def test_general_and_additive_scores_accept_another_key_dim(qk):
    q, _ = qk
    k = torch.randn(B, H, K, 13)
    assert GeneralScore(D, key_dim=13)(q, k).shape == (B, H, Q, K)
    assert AdditiveScore(D, key_dim=13, hidden_dim=17)(q, k).shape == (B, H, Q, K)


def test_additive_score_is_a_two_layer_network(qk):
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
def test_invalid_input_raises(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_additive_score_with_projected_keys():
    score, projected = AdditiveScore(D, hidden_dim=5), AdditiveScore(D, hidden_dim=5, keys_projected=True)
    projected.load_state_dict({name: value for name, value in score.state_dict().items() if name != "key"})
    q, k = torch.randn(B, 1, Q, D), torch.randn(B, 1, K, D)
    assert_close(projected(q, k @ score.key), score(q, k))
    with pytest.raises(ValueError, match="k must have 5 channels, as the score was made for, got 11"):
        projected(q, k)
