import pytest
import torch
from torch import nn

from sightline.training.averaging import ExponentialMovingAverage, average_states


def test_ema_has_a_smaller_decay_in_the_first_steps():
    model = nn.Linear(2, 3)
    average = ExponentialMovingAverage(model, 0.9)
    expected = model.weight.detach().clone()
    for step in range(1, 120):
        with torch.no_grad():
            model.weight.copy_(torch.randn(3, 2))
        average.update(step)
        decay = min(0.9, step / (step + 10))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.weights["weight"], expected)


def test_ema_copies_integer_buffers():
    model = nn.Linear(2, 3)
    model.register_buffer("count", torch.tensor(0))
    average = ExponentialMovingAverage(model, 0.9)
    model.count += 5
    average.update(1)
    assert average.weights["count"] == 5


def test_ema_is_applied_inside_the_block_only():
    model = nn.Linear(2, 3)
    average = ExponentialMovingAverage(model, 0.5)
    with torch.no_grad():
        model.weight.add_(1)
    average.update(1)
    before = model.weight.detach().clone()

    def fail_inside():
        with average.applied_to(model):
            torch.testing.assert_close(model.weight.detach(), average.weights["weight"])
            assert not torch.equal(model.weight.detach(), before)
            raise RuntimeError("failure inside the block")

    with pytest.raises(RuntimeError, match="failure inside the block"):
        fail_inside()
    torch.testing.assert_close(model.weight.detach(), before, rtol=0, atol=0)


def test_average_of_states_keeps_dtypes_and_last_integers():
    states = [{"a": torch.full((2,), float(i), dtype=torch.bfloat16), "n": torch.tensor(i)} for i in (1, 2, 6)]
    average = average_states(states)
    assert average["a"].dtype == torch.bfloat16
    assert average["a"].tolist() == [3.0, 3.0]
    assert average["n"] == 6
