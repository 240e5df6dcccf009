import copy
import re

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.testing import assert_close

from sightline.attention import NORMALIZERS, Hard, Standardize, attend, attention_weights, masks, normalizers, reinforce
from sightline.attention.normalizers import make_normalizer
from sizes import B, D, H, K, Q


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("training", [True, False])
def test_masked_keys_have_zero_weight_and_zero_gradient(name, training):
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
def test_masked_keys_do_not_change_other_weights(name):
    scores = torch.randn(B, H, Q, K)
    allowed = torch.arange(K) < 4
    normalizer = make_normalizer(name).eval()
    assert_close(normalizer(scores, allowed)[..., :4], normalizer(scores[..., :4]))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_half_precision_is_supported(name):
    for dtype in (torch.float16, torch.bfloat16):
        weights = make_normalizer(name).eval()(torch.randn(B, H, Q, K, dtype=dtype), torch.rand(Q, K) > 0.3)
        assert weights.dtype == dtype
        assert weights.isfinite().all()


def test_standardize_gives_zero_mean_and_unit_deviation():
    weights = Standardize()(3 * torch.randn(B, H, Q, K) + 5)
    assert_close(weights.mean(-1), torch.zeros(B, H, Q), atol=1e-5, rtol=0)
    assert_close(weights.std(-1, correction=0), torch.ones(B, H, Q), atol=1e-5, rtol=0)


def test_standardize_of_equal_scores_is_zero_with_finite_gradient():
    scores = torch.full((1, 1, 1, 4), 2.0, requires_grad=True)
    weights = Standardize()(scores)
    weights.sum().backward()
    assert (weights == 0).all()
    assert scores.grad.isfinite().all()


def test_identity_uses_scores_as_weights():
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D)
    assert_close(attend(q, k, v, normalizer="identity"), (q @ k.mT / D**0.5) @ v)


def test_hard_attention_selects_the_best_key_in_eval_mode():
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D)
    hard = Hard().eval()
    best = (q @ k.mT).argmax(-1)
    assert_close(attend(q, k, v, normalizer=hard), v.take_along_dim(best.unsqueeze(-1), 2))
    assert_close(attend(q, k, v, normalizer="hard"), v.take_along_dim(best.unsqueeze(-1), 2))


def test_hard_attention_samples_from_the_softmax_in_training():
    scores = torch.tensor([1.0, 0.0, 2.0]).expand(40_000, 1, 1, 3)
    weights = Hard()(scores)
    assert (weights.sum(-1) == 1).all()
    assert_close(weights.mean(0).flatten(), scores[0, 0, 0].softmax(-1), atol=0.01, rtol=0)


def test_hard_attention_never_samples_masked_keys():
    weights = Hard()(torch.zeros(10_000, 1, 1, 4), torch.tensor([True, False, True, False]))
    assert (weights[..., 1::2] == 0).all()
    assert (weights[..., 0::2].mean(0) > 0.4).all()


def test_straight_through_has_the_gradient_of_the_softmax():
    scores = torch.randn(B, H, Q, K, requires_grad=True)
    weights = Hard(gradient="straight_through")(scores)
    assert_close(weights.detach().amax(-1), torch.ones(B, H, Q))
    direction = torch.randn(B, H, Q, K)
    (got,) = torch.autograd.grad((weights * direction).sum(), scores)
    (soft,) = torch.autograd.grad((scores.softmax(-1) * direction).sum(), scores)
    assert_close(got, soft)


def test_reinforce_gradient_equals_enumeration_in_expectation():
    """The expected loss is the sum of p_i L_i over the keys; samples have its gradient on average."""
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


def test_reinforce_sums_log_probs_over_forward_passes():
    hard = Hard()
    first, second = (torch.randn(B, H, Q, K, requires_grad=True) for _ in range(2))
    weights = [hard(first), hard(second)]
    losses = torch.tensor([1.5, -2.0])
    logs = sum((w * s.log_softmax(-1)).sum((1, 2, 3)) for w, s in zip(weights, (first, second), strict=True))
    (expected,) = torch.autograd.grad((losses * logs).mean(), second)
    (got,) = torch.autograd.grad(hard.reinforce_loss(losses), second)
    assert_close(got, expected)


def test_baseline_lowers_the_variance_of_the_gradient():
    loss_of_key = torch.tensor([10.0, 11.0, 12.0])
    scores = torch.zeros(3, requires_grad=True)

    def variance_of_gradients(hard, reset):
        steps = []
        for _ in range(300):
            if reset:
                hard.baseline.zero_()
            losses = (hard(scores.expand(4, 1, 1, 3)).flatten(1) * loss_of_key).sum(-1)
            steps.append(torch.autograd.grad(hard.reinforce_loss(losses), scores)[0])
        return torch.stack(steps)[100:].var(0).mean()

    hard = Hard()
    assert variance_of_gradients(hard, reset=False) < variance_of_gradients(Hard(), reset=True) / 10
    assert 10 < hard.baseline < 12


def test_fully_masked_rows_add_nothing_to_reinforce():
    hard = Hard()
    scores = torch.randn(1, 1, 2, 3, requires_grad=True)
    hard(scores, torch.tensor([[True, True, True], [False, False, False]]))
    (got,) = torch.autograd.grad(hard.reinforce_loss(torch.tensor([2.0])), scores)
    assert got.isfinite().all()
    assert (got[0, 0, 1] == 0).all()


def test_evaluation_stores_no_log_probs():
    hard = Hard().eval()
    hard(torch.randn(B, H, Q, K, requires_grad=True))
    hard.train()
    with torch.no_grad():
        hard(torch.randn(B, H, Q, K, requires_grad=True))
    assert hard.log_probs == []


def test_padding_has_zero_weight():
    attention_mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    weights = attention_weights(torch.randn(B, H, Q, D), torch.randn(B, H, K, D), mask=masks.Padding(attention_mask))
    assert (weights[1, :, :, 4:] == 0).all()
    assert_close(weights.sum(-1), torch.ones(B, H, Q))


def test_half_precision_is_summed_in_float32():
    scores = 300 * torch.randn(1, 1, 2, 64)
    for name in ("softmax", "standardize"):
        half = make_normalizer(name)(scores.half()).float()
        assert_close(half, make_normalizer(name)(scores.half().float()), atol=2e-3, rtol=2e-3)
    flat = torch.zeros(1, 1, 1, 5000, dtype=torch.bfloat16)
    assert_close(make_normalizer("softmax")(flat).float().sum(), torch.tensor(1.0), atol=1e-2, rtol=0)


def test_reinforce_in_half_precision_is_finite_for_improbable_choices():
    hard = Hard()
    scores = torch.tensor([0.0, -30.0], dtype=torch.float16, requires_grad=True)
    for _ in range(4):
        hard(scores.expand(64, 1, 1, 2))
    (got,) = torch.autograd.grad(hard.reinforce_loss(torch.ones(64)), scores)
    assert got.isfinite().all()


def test_reinforce_can_be_repeated_after_an_error_and_skips_unused_modules():
    used, unused = Hard(), Hard()
    model = nn.ModuleList([used, unused])
    used(torch.randn(B, H, Q, K, requires_grad=True))
    with pytest.raises(ValueError, match="losses must have shape"):
        reinforce(model, torch.zeros(3))
    assert reinforce(model, torch.ones(B)).isfinite()


def test_activation_checkpointing_stores_log_probs_once():
    hard = Hard()
    scores = torch.randn(B, H, Q, K, requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(hard, scores, use_reentrant=False)
    (out.sum() + hard.reinforce_loss(torch.ones(B))).backward()
    assert hard.log_probs == []


def test_copies_have_no_stored_log_probs():
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
def test_invalid_input_raises(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_losses_of_the_wrong_shape_are_rejected():
    hard = Hard()
    hard(torch.randn(B, H, Q, K, requires_grad=True))
    with pytest.raises(ValueError, match=re.escape("losses must have shape (2,), got (3,)")):
        hard.reinforce_loss(torch.zeros(3))


def test_too_many_forward_passes_without_reinforce_raise(monkeypatch):
    monkeypatch.setattr(normalizers, "MAX_PENDING", 3)
    hard = Hard()
    scores = torch.randn(B, H, Q, K, requires_grad=True)
    for _ in range(3):
        hard(scores)
    with pytest.raises(
        ValueError,
        match=r"hard attention must be followed by reinforce within 3 forward passes.*reinforce\(model, losses\)",
    ):
        hard(scores)


def test_a_share_of_the_examples_has_soft_weights_in_training():
    """Their gradient is that of the softmax, and they are not part of REINFORCE."""
    torch.manual_seed(0)
    scores = torch.randn(200, 1, 2, 4, requires_grad=True)
    hard, losses = Hard(soft_share=0.25), torch.arange(200.0)
    weights, probs = hard(scores), scores.softmax(-1)
    is_soft = (weights == probs).flatten(1).all(1)
    assert 0.15 < is_soft.float().mean() < 0.35
    assert ((weights[~is_soft] == 0) | (weights[~is_soft] == 1)).all()
    (direct,) = torch.autograd.grad(weights.square().sum(), scores, retain_graph=True)
    (sampled,) = torch.autograd.grad(hard.reinforce_loss(losses), scores)
    assert direct[is_soft].any(-1).all()
    assert not direct[~is_soft].any()
    assert not sampled[is_soft].any()
    assert sampled[~is_soft][1:].any(-1).all()
    assert not ((hard.eval()(scores) > 0) & (hard(scores) < 1)).any()
