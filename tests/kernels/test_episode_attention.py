import pytest
import torch
from torch.testing import assert_close

from sightline.kernels import episode_attention as kernel
from sightline.kernels.episode_attention import episode_attention, reference_episode_attention

B, H, D, SUPPORT = 2, 3, 5, 3


@pytest.mark.parametrize("query_size", [1, 2])
@pytest.mark.parametrize("queries", [8, 11], ids=["cached support", "all tokens"])
def test_output_and_gradients_equal_the_reference(queries, query_size):
    inputs = [torch.randn(B, H, length, D, requires_grad=True) for length in (queries, 11, 11)]
    options = {"support": SUPPORT, "query_size": query_size, "scale": 0.7}
    assert kernel.is_applicable(queries, 11, SUPPORT, query_size)
    fast, reference = episode_attention(*inputs, **options), reference_episode_attention(*inputs, **options)
    assert_close(fast, reference, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(fast)
    assert_close(*(torch.autograd.grad((y * direction).sum(), inputs) for y in (fast, reference)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("max_scores", [1, 3 * B * H * 2 * (SUPPORT + 2)])
def test_chunks_equal_the_reference(max_scores, monkeypatch):
    monkeypatch.setattr(kernel, "MAX_SCORES", max_scores)
    inputs, options = [torch.randn(B, H, 11, D) for _ in range(3)], {"support": SUPPORT, "query_size": 2, "scale": 1.0}
    with torch.no_grad():
        fast = episode_attention(*inputs, **options)
    assert_close(fast, reference_episode_attention(*inputs, **options), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("queries", "keys", "query_size", "expected"),
    [(11, 11, 1, True), (8, 11, 2, True), (11, 11, 3, False), (5, 11, 1, False), (6, 6, 1, False)],
)
def test_is_applicable_to_whole_queries_that_outnumber_the_support(queries, keys, query_size, expected):
    assert kernel.is_applicable(queries, keys, SUPPORT, query_size) == expected


def test_is_faster_for_many_keys_with_dropout_or_on_a_gpu():
    q = torch.empty(1, 1, 7, 3)
    assert not kernel.is_faster(q, kernel.MIN_CPU_KEYS - 1, 0.0)
    assert kernel.is_faster(q, kernel.MIN_CPU_KEYS, 0.0)
    assert kernel.is_faster(q, 7, 0.1)
    assert kernel.is_faster(q.to("meta"), 7, 0.0)
