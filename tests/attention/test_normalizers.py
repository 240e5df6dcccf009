import copy
import re

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.testing import assert_close

from sightline.attention import NORMALIZERS, Hard, Standardize, attend, attention_weights, masks, reinforce
from sightline.attention import normalizers as room
from sightline.attention.normalizers import make_normalizer
from sizes import B, D, H, K, Q


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("training", [True, False])
def test_what_may_not_be_seen_weighs_exactly_nothing_and_passes_no_gradient(name, training):
    scores = torch.randn(B, H, Q, K, requires_grad=True)
    allowed = torch.rand(B, 1, Q, K) > 0.4
    allowed[0, 0, 1] = False
    normalizer = make_normalizer(name).train(training)
    weights = normalizer(scores, allowed)
    assert (weights[~allowed.expand_as(weights)] == 0).all()
    assert weights.isfinite().all()
    if weights.requires_grad:
        weights.square().sum().backward()
        assert scores.grad.isfinite().all()
        assert (scores.grad[~allowed.expand_as(scores)] == 0).all()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_hidden_keys_change_nothing_for_the_others(name):
    scores = torch.randn(B, H, Q, K)
    allowed = torch.arange(K) < 4
    normalizer = make_normalizer(name).eval()
    assert_close(normalizer(scores, allowed)[..., :4], normalizer(scores[..., :4]))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_normalizer_serves_half_precision(name):
    for dtype in (torch.float16, torch.bfloat16):
        weights = make_normalizer(name).eval()(torch.randn(B, H, Q, K, dtype=dtype), torch.rand(Q, K) > 0.3)
        assert weights.dtype == dtype
        assert weights.isfinite().all()


def test_standardize_takes_each_row_to_mean_0_and_deviation_1():
    weights = Standardize()(3 * torch.randn(B, H, Q, K) + 5)
    assert_close(weights.mean(-1), torch.zeros(B, H, Q), atol=1e-5, rtol=0)
    assert_close(weights.std(-1, correction=0), torch.ones(B, H, Q), atol=1e-5, rtol=0)


def test_standardize_of_equal_scores_is_zero_with_finite_gradient():
    scores = torch.full((1, 1, 1, 4), 2.0, requires_grad=True)
    weights = Standardize()(scores)
    weights.sum().backward()
    assert (weights == 0).all()
    assert scores.grad.isfinite().all()


def test_identity_mixes_by_plain_similarity():
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D)
    assert_close(attend(q, k, v, normalizer="identity"), (q @ k.mT / D**0.5) @ v)


def test_hard_attention_takes_the_best_key_at_inference():
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D)
    hard = Hard().eval()
    best = (q @ k.mT).argmax(-1)
    assert_close(attend(q, k, v, normalizer=hard), v.take_along_dim(best.unsqueeze(-1), 2))
    assert_close(attend(q, k, v, normalizer="hard"), v.take_along_dim(best.unsqueeze(-1), 2))


def test_hard_attention_samples_by_the_softmax_in_training():
    scores = torch.tensor([1.0, 0.0, 2.0]).expand(40_000, 1, 1, 3)
    weights = Hard()(scores)
    assert (weights.sum(-1) == 1).all()
    assert_close(weights.mean(0).flatten(), scores[0, 0, 0].softmax(-1), atol=0.01, rtol=0)


def test_hard_attention_never_samples_what_may_not_be_seen():
    weights = Hard()(torch.zeros(10_000, 1, 1, 4), torch.tensor([True, False, True, False]))
    assert (weights[..., 1::2] == 0).all()
    assert (weights[..., 0::2].mean(0) > 0.4).all()


def test_straight_through_chooses_one_key_and_passes_the_softmax_gradient():
    scores = torch.randn(B, H, Q, K, requires_grad=True)
    weights = Hard(gradient="straight_through")(scores)
    assert_close(weights.detach().amax(-1), torch.ones(B, H, Q))
    pull = torch.randn(B, H, Q, K)
    (got,) = torch.autograd.grad((weights * pull).sum(), scores)
    (soft,) = torch.autograd.grad((scores.softmax(-1) * pull).sum(), scores)
    assert_close(got, soft)


def test_reinforce_agrees_with_full_enumeration():
    """Expected loss = sum of p_i L_i over the keys; its exact gradient is what sampling must give on average."""
    loss_of_key = torch.tensor([3.0, -1.0, 0.5, 2.0])
    scores = torch.tensor([0.3, -0.2, 0.8, 0.1], requires_grad=True)
    (exact,) = torch.autograd.grad((scores.softmax(-1) * loss_of_key).sum(), scores)
    hard = Hard()
    samples = 400_000
    errors = {}
    for baseline in (0.0, 1.0):
        hard.baseline.fill_(baseline)
        weights = hard(scores.expand(samples, 1, 1, 4))
        losses = (weights.flatten(1) * loss_of_key).sum(-1)
        (sampled,) = torch.autograd.grad(reinforce(nn.ModuleList([hard]), losses), scores)
        errors[baseline] = (sampled - exact).abs().max().item()
    assert max(errors.values()) < 0.01  # about four standard errors; the gradient itself reaches 0.5
    assert exact.abs().max() > 0.3


def test_reinforce_sums_over_the_choices_of_an_example():
    hard = Hard()
    first, second = (torch.randn(B, H, Q, K, requires_grad=True) for _ in range(2))
    chosen = [hard(first), hard(second)]
    losses = torch.tensor([1.5, -2.0])
    logs = sum((w * s.log_softmax(-1)).sum((1, 2, 3)) for w, s in zip(chosen, (first, second), strict=True))
    (expected,) = torch.autograd.grad((losses * logs).mean(), second)
    (got,) = torch.autograd.grad(hard.reinforce_loss(losses), second)
    assert_close(got, expected)


def test_the_baseline_is_a_running_mean_that_lowers_the_variance():
    loss_of_key = torch.tensor([10.0, 11.0, 12.0])
    scores = torch.zeros(3, requires_grad=True)

    def spread_of_steps(hard, forget):
        steps = []
        for _ in range(300):
            if forget:
                hard.baseline.zero_()
            losses = (hard(scores.expand(4, 1, 1, 3)).flatten(1) * loss_of_key).sum(-1)
            steps.append(torch.autograd.grad(hard.reinforce_loss(losses), scores)[0])
        return torch.stack(steps)[100:].var(0).mean()

    hard = Hard()
    assert spread_of_steps(hard, forget=False) < spread_of_steps(Hard(), forget=True) / 10
    assert 10 < hard.baseline < 12


def test_a_row_that_sees_nothing_adds_nothing_to_reinforce():
    hard = Hard()
    scores = torch.randn(1, 1, 2, 3, requires_grad=True)
    hard(scores, torch.tensor([[True, True, True], [False, False, False]]))
    (got,) = torch.autograd.grad(hard.reinforce_loss(torch.tensor([2.0])), scores)
    assert got.isfinite().all()
    assert (got[0, 0, 1] == 0).all()


def test_evaluation_leaves_nothing_pending():
    hard = Hard().eval()
    hard(torch.randn(B, H, Q, K, requires_grad=True))
    hard.train()
    with torch.no_grad():
        hard(torch.randn(B, H, Q, K, requires_grad=True))
    assert hard.log_probs == []


def test_padding_weighs_exactly_0():
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    weights = attention_weights(torch.randn(B, H, Q, D), torch.randn(B, H, K, D), mask=masks.Padding(real))
    assert (weights[1, :, :, 4:] == 0).all()
    assert_close(weights.sum(-1), torch.ones(B, H, Q))


def test_half_precision_is_summed_exactly():
    scores = 300 * torch.randn(1, 1, 2, 64)
    for name in ("softmax", "standardize"):
        half = make_normalizer(name)(scores.half()).float()
        assert_close(half, make_normalizer(name)(scores.half().float()), atol=2e-3, rtol=2e-3)
    flat = torch.zeros(1, 1, 1, 5000, dtype=torch.bfloat16)
    assert_close(make_normalizer("softmax")(flat).float().sum(), torch.tensor(1.0), atol=1e-2, rtol=0)


def test_reinforce_in_half_precision_survives_an_unlikely_choice():
    hard = Hard()
    scores = torch.tensor([0.0, -30.0], dtype=torch.float16, requires_grad=True)
    for _ in range(4):
        hard(scores.expand(64, 1, 1, 2))
    (got,) = torch.autograd.grad(hard.reinforce_loss(torch.ones(64)), scores)
    assert got.isfinite().all()


def test_a_wrong_loss_costs_nothing_and_parts_that_did_not_run_are_passed_over():
    ran, idle = Hard(), Hard()
    model = nn.ModuleList([ran, idle])
    ran(torch.randn(B, H, Q, K, requires_grad=True))
    with pytest.raises(ValueError, match="losses must have shape"):
        reinforce(model, torch.zeros(3))
    assert reinforce(model, torch.ones(B)).isfinite()


def test_activation_checkpointing_leaves_nothing_pending():
    hard = Hard()
    scores = torch.randn(B, H, Q, K, requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(hard, scores, use_reentrant=False)
    (out.sum() + hard.reinforce_loss(torch.ones(B))).backward()
    assert hard.log_probs == []


def test_a_copy_has_nothing_pending():
    hard = Hard()
    hard(torch.randn(B, H, Q, K, requires_grad=True))
    assert copy.deepcopy(hard).log_probs == []
    assert len(hard.log_probs) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_normalizer("softmx"), "got 'softmx'; did you mean 'softmax'?"),
        (lambda: Hard(gradient="reinforced"), "gradient must be one of reinforce, straight_through, got 'reinforced'"),
        (lambda: Hard(momentum=1), "momentum must be at least 0 and below 1, got 1"),
        (lambda: Hard().reinforce_loss(torch.zeros(2)), "reinforce must follow a forward pass in training mode"),
        (lambda: reinforce(nn.Linear(1, 1), torch.zeros(2)), "reinforce must be given a model with hard attention"),
    ],
)
def test_bad_input_is_answered_with_the_rule_and_the_value(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_losses_of_the_wrong_shape_are_refused():
    hard = Hard()
    hard(torch.randn(B, H, Q, K, requires_grad=True))
    with pytest.raises(ValueError, match=re.escape("losses must have shape (2,), got (3,)")):
        hard.reinforce_loss(torch.zeros(3))


def test_choices_that_never_learn_are_refused_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr(room, "MAX_PENDING", 3)
    hard = Hard()
    scores = torch.randn(B, H, Q, K, requires_grad=True)
    for _ in range(3):
        hard(scores)
    with pytest.raises(
        ValueError,
        match=r"hard attention must be followed by reinforce within 3 forward passes.*reinforce\(model, losses\)",
    ):
        hard(scores)
