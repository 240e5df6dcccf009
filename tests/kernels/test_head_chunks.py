import pytest
import torch
from torch.testing import assert_close

from sightline.kernels import head_chunks
from sightline.kernels.head_chunks import chunked_attention, reference_attention

B, H, Q, K, D = 2, 5, 7, 11, 3
SCALES = torch.rand(H, 1, 1)
MASKS = {"none": None, "all heads": torch.rand(B, 1, Q, K) > 0.3, "per head": torch.randn(1, H, 1, K)}


def transform(q, k, heads):
    return q * SCALES[heads], k.sin(), 0.7


@pytest.mark.parametrize("mask", MASKS)
def test_output_equals_the_reference(mask, monkeypatch):
    monkeypatch.setattr(head_chunks, "MIN_QUERIES", Q)
    inputs = [torch.randn(B, H, length, D) for length in (Q, K, K)]
    options = (MASKS[mask], 0.0, False)
    sizes = []

    def traced(q, k, heads):
        sizes.append(q.shape[1])
        return transform(q, k, heads)

    with torch.no_grad():
        assert_close(chunked_attention(traced, *inputs, *options), reference_attention(transform, *inputs, *options))
    assert sizes == [2, 2, 1]


def test_heads_are_not_divided_with_gradients(monkeypatch):
    monkeypatch.setattr(head_chunks, "MIN_QUERIES", Q)
    inputs = [torch.randn(B, H, length, D, requires_grad=True) for length in (Q, K, K)]
    out = chunked_attention(transform, *inputs, None, 0.0, False)
    assert all(gradient is not None for gradient in torch.autograd.grad(out.sum(), inputs))
