import pytest
import torch
from torch.testing import assert_close

import sightline.kernels.normalize
from sightline.kernels.normalize import normalize, normalize_pair, reference_normalize, reference_normalize_pair

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


@pytest.fixture(params=["saved", "computed again"])
def normalized_vectors(request, monkeypatch):
    if request.param == "computed again":
        monkeypatch.setattr(sightline.kernels.normalize, "MAX_SAVED_ELEMENTS", 0)


@pytest.mark.usefixtures("normalized_vectors")
@pytest.mark.parametrize("num_offsets", [1, H])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_pair_equals_the_reference(num_offsets, dtype, tolerance):
    q, k = torch.randn(B, T, 2 * H, D, dtype=dtype).transpose(1, 2).chunk(2, 1)  # as a projection leaves them
    k = k[:, :, :3].clone()
    k[1, 0, 2] = 0
    q[0, 0, 1] = 0
    inputs = [x.requires_grad_() for x in (q.detach(), k, torch.randn(num_offsets, 1, 1, dtype=dtype))]
    pairs = [function(*inputs, -0.3, 0.7) for function in (normalize_pair, reference_normalize_pair)]
    assert_close(*pairs, atol=tolerance, rtol=tolerance)
    directions = [torch.randn_like(x) for x in pairs[0]]
    gradients = [torch.autograd.grad(pair, inputs, directions) for pair in pairs]
    assert_close(*gradients, atol=tolerance, rtol=tolerance)
    with torch.no_grad():
        assert_close(normalize_pair(*inputs, -0.3, 0.7), pairs[1], atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("normalized_vectors")
def test_gradients_of_a_pair():
    q, k = (torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 3))
    offset = torch.zeros(2, 1, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: normalize_pair(*x, 0.4, 0.7), (q, k, offset))
    assert torch.autograd.gradgradcheck(lambda *x: normalize_pair(*x, 0.4, 0.7), (q, k, offset))
    assert torch.autograd.gradgradcheck(lambda x: normalize_pair(x, x, offset.detach(), 0.4, 0.7), (q,))
    (expanded,) = torch.autograd.grad(sum(x.sum() for x in normalize_pair(q, k, offset, 0.4, 0.7)), q)
    (reference,) = torch.autograd.grad(sum(x.sum() for x in reference_normalize_pair(q, k, offset, 0.4, 0.7)), q)
    assert_close(expanded, reference)


def test_offset_has_gradient_one_where_the_temperature_is_lowest():
    q, k, offset = torch.randn(1, 1, 2, 3), torch.randn(1, 1, 2, 3), torch.zeros(1, requires_grad=True)
    queries, _ = normalize_pair(q, k, offset, 0.0, 1.0)
    (gradient,) = torch.autograd.grad(queries, offset, queries.detach())
    assert_close(gradient, torch.tensor([-2.0]))
    queries, _ = reference_normalize_pair(q, k, offset, 0.0, 1.0)
    assert_close(torch.autograd.grad(queries, offset, queries.detach())[0], gradient)


@pytest.mark.parametrize("scale", [1e18, 1e24])
@pytest.mark.parametrize("function", [normalize_pair, reference_normalize_pair])
def test_pair_of_huge_vectors(function, scale):
    q, k = (x.requires_grad_() for x in (scale * torch.randn(B, H, T, D), 1e-9 * torch.randn(B, H, T, D)))
    pair = function(q, k, torch.zeros(1), 0.0, 1.0)
    exact = reference_normalize_pair(q.double(), k.double(), torch.zeros(1).double(), 0.0, 1.0)
    assert_close([x.double() for x in pair], list(exact), atol=1e-6, rtol=1e-6)
    directions = [torch.randn(B, H, T, D) for _ in range(2)]
    gradients = torch.autograd.grad(pair, (q, k), directions)
    expected = torch.autograd.grad(exact, (q, k), [x.double() for x in directions])
    for x, y in zip(gradients, expected, strict=True):
        assert (x - y).norm() <= 1e-5 * y.norm()


def test_vectors_in_bfloat16_of_any_length_are_normalized():
    for scale in (1e-9, 1.0, 1e24):
        x = (scale * torch.randn(5, 7)).bfloat16()
        assert_close(normalize(x, torch.ones(1)).float().norm(dim=-1), torch.ones(5), atol=0.01, rtol=0)


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_second_gradients_if_some_inputs_are_constant(needed):
    shapes = ((1, 2, 3, 5), (1, 2, 4, 5), (2, 1, 1))
    constants = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    inputs = tuple(x.clone().requires_grad_() for i, x in enumerate(constants) if i in needed)

    def function(*given):
        given = iter(given)
        values = [next(given) if i in needed else x for i, x in enumerate(constants)]
        return [x for x in normalize_pair(*values, 0.4, 0.7) if x.requires_grad]

    assert torch.autograd.gradgradcheck(lambda *given: sum(x.sin().sum() for x in function(*given)), inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.func.jvp
def test_transforms_of_torch_func():
    x, divisors = torch.randn(3, 5), torch.rand(7, 1) + 1
    assert_close(
        torch.func.vmap(lambda divisor: normalize(x, divisor))(divisors),
        torch.stack([normalize(x, d) for d in divisors]),
    )
    direction = torch.randn(3, 5)
    _, forward = torch.func.jvp(lambda x: normalize(x, torch.ones(1)), (x,), (direction,))
    with torch.autograd.forward_ad.dual_level():
        dual = normalize(torch.autograd.forward_ad.make_dual(x, direction), torch.ones(1))
        assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, forward)
    jacobian = torch.autograd.functional.jacobian(lambda x: normalize(x, torch.ones(1)), x)
    assert_close(forward, torch.einsum("abcd,cd->ab", jacobian, direction))
