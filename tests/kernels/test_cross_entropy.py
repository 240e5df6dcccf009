import pytest
import torch
from torch.testing import assert_close

from sightline.kernels.cross_entropy import CHUNK_SIZE, linear_cross_entropy, reference_linear_cross_entropy

B, T, M, V = 3, 2 * CHUNK_SIZE // 3 + 11, 7, 23  # the last chunk is incomplete


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_chunked_loss_and_gradients_equal_the_reference(label_smoothing):
    x, weight = torch.randn(B, T, M, requires_grad=True), torch.randn(V, M, requires_grad=True)
    labels = torch.randint(V, (B, T))
    labels[1, 3:] = -100
    expected = reference_linear_cross_entropy(x, weight, labels, label_smoothing=label_smoothing)
    loss = linear_cross_entropy(x, weight, labels, label_smoothing=label_smoothing)
    assert_close(loss, expected)
    gradients, expected_gradients = (torch.autograd.grad(3 * value, (x, weight)) for value in (loss, expected))
    assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        assert_close(linear_cross_entropy(x, weight, labels, label_smoothing=label_smoothing), expected)


def test_loss_without_labels_is_zero():
    x, weight = torch.randn(B, T, M, requires_grad=True), torch.randn(V, M)
    loss = linear_cross_entropy(x, weight, torch.full((B, T), -100))
    loss.backward()
    assert loss == 0
    assert not x.grad.any()


def test_loss_is_computed_in_full_precision_under_autocast():
    x, weight, labels = torch.randn(B, T, M, requires_grad=True), torch.randn(V, M), torch.randint(V, (B, T))
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(x.bfloat16(), weight, labels)
    assert loss.dtype == torch.float32
    loss.backward()
    assert_close(loss, linear_cross_entropy(x, weight, labels), atol=1, rtol=1e-2)


def test_loss_and_gradients_with_a_bias_equal_the_reference():
    tensors = [torch.randn(*shape, requires_grad=True) for shape in ((B, T, M), (V, M), (V,))]
    x, weight, bias = tensors
    labels = torch.randint(V, (B, T))
    losses = [loss(x, weight, labels, bias=bias) for loss in (linear_cross_entropy, reference_linear_cross_entropy)]
    assert_close(*losses)
    gradients, expected = (torch.autograd.grad(loss, tensors) for loss in losses)
    assert_close(gradients, expected, atol=1e-5, rtol=1e-4)
