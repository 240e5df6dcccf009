import pytest
import torch
from torch.testing import assert_close

from sightline.kernels import window_attention as kernel
from sightline.kernels.window_attention import reference_window_attention, window_attention

B, H, D = 2, 3, 5


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(kernel, "MIN_BLOCK", 4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "radius"), [(23, 23, 2), (23, 23, 7), (11, 29, 3), (1, 19, 2), (17, 17, 0)]
)
def test_output_and_gradients_equal_the_reference(queries, keys, radius, padded, causal):
    inputs = [torch.randn(B, H, length, D, requires_grad=True) for length in (queries, keys, keys)]
    attention_mask = torch.ones(B, keys, dtype=torch.bool)
    attention_mask[0, keys // 2 :] = False  # leaves queries without any key
    attention_mask[1, :3] = False
    options = {"radius": radius, "scale": 0.7, "causal": causal, "attention_mask": attention_mask if padded else None}
    fast, reference = window_attention(*inputs, **options), reference_window_attention(*inputs, **options)
    assert_close(fast, reference, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(fast)
    assert_close(*(torch.autograd.grad((y * direction).sum(), inputs) for y in (fast, reference)), atol=1e-5, rtol=1e-4)


def test_dropout_drops_weights_inside_the_window():
    torch.manual_seed(0)
    q, v = torch.randn(B, H, 23, D), torch.eye(23).expand(B, H, 23, 23)  # the output is the weights
    weights = window_attention(q, q, v, radius=2, scale=1.0, dropout=0.5)
    expected = reference_window_attention(q, q, v, radius=2, scale=1.0)
    assert ((weights == 0) | torch.isclose(weights, 2 * expected)).all()
    assert 0.3 < (weights > 0).sum() / (expected > 0).sum() < 0.7


def test_scores_are_computed_inside_of_blocks_only(monkeypatch):
    shapes = []

    def attention(q, k, v, *args, **kwargs):
        shapes.append((q.shape, k.shape))
        return q

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    x = torch.randn(B, H, 40, D)
    window_attention(x, x, x, radius=3, scale=1.0)
    window_attention(x, x, x, radius=3, scale=1.0, causal=True)
    assert shapes == [((B * 10, H, 4, D), (B * 10, H, 10, D)), ((B * 10, H, 4, D), (B * 10, H, 7, D))]


@pytest.mark.parametrize(
    ("queries", "keys", "radius", "expected"),
    [
        (64, 64, 2, True),
        (12, 12, 2, False),
        (64, 64, 16, False),
        (1, 64, 2, False),
        (1, 99, 2, True),
        (64, 40, 2, False),
    ],
)
def test_is_applicable_where_most_pairs_are_masked(queries, keys, radius, expected):
    assert kernel.is_applicable(queries, keys, radius) == expected
