import pytest
import torch
from torch.testing import assert_close

from sightline.kernels.dropout import Dropout, fast_dropout, reference_dropout


@pytest.mark.parametrize("dropout", [fast_dropout, reference_dropout])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_fraction_of_zeros_and_mean(dropout, p):
    x = torch.ones(101, 997, requires_grad=True)
    y = dropout(x, p)
    y.sum().backward()
    assert (y == 0).float().mean() == pytest.approx(p, abs=0.01)
    assert y.unique().tolist() == pytest.approx([0, 1 / (1 - p)], rel=1e-3)
    assert_close(x.grad, y)


def test_dropout_depends_on_the_seed_and_is_off_in_eval_mode():
    x, dropout = torch.randn(5, 7), Dropout(0.5)
    torch.manual_seed(3)
    first = dropout(x)
    assert not torch.equal(dropout(x), first)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert dropout.eval()(x) is x


def test_edge_cases():
    x = torch.randn(5, 7)
    assert not Dropout(1.0)(x).any()
    assert Dropout(0.3)(torch.zeros(0, 3)).shape == (0, 3)
    assert Dropout(0.3)(x.bfloat16()).dtype == torch.bfloat16
