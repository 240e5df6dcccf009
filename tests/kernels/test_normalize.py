import pytest
import torch
from torch.testing import assert_close

from sightline.kernels.normalize import normalize, reference_normalize

B, H, T, D = 2, 3, 5, 7


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
)
def test_output_and_gradients_equal_the_reference(dtype, tolerance):
    x = torch.randn(B, H, T, D, dtype=dtype)
    x[0, 0, 1] = 0
    x.requires_grad_()
    divisor = (torch.rand(H, 1, 1) + 0.5).to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    direction = torch.randn(B, H, T, D, dtype=dtype)
    fast, reference = normalize(x, divisor), reference_normalize(x, divisor)
    assert fast.dtype == dtype
    assert_close(fast, reference, atol=tolerance, rtol=tolerance)
    gradients = [torch.autograd.grad((y * direction).sum(), (x, divisor)) for y in (fast, reference)]
    assert_close(*gradients, atol=10 * tolerance, rtol=10 * tolerance)
    with torch.no_grad():
        assert_close(normalize(x, divisor), reference, atol=tolerance, rtol=tolerance)


def test_length_is_the_inverse_of_the_divisor_and_zero_vectors_stay_zero():
    x = torch.randn(T, D)
    x[2] = 0
    lengths = normalize(x, torch.tensor(0.25)).norm(dim=-1)
    assert_close(lengths, torch.tensor([4.0, 4.0, 0.0, 4.0, 4.0]))
