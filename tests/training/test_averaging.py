import pytest
import torch
from torch import nn

from sightline.training.averaging import RunningMean, mean


class Counted(nn.Linear):
    """A weight, and a number that is none."""

    def __init__(self):
        super().__init__(2, 3)
        self.register_buffer("count", torch.tensor(0))


def test_the_running_mean_forgets_its_start_faster_than_its_decay_says():
    model = nn.Linear(2, 3)
    average = RunningMean(model, 0.9)
    expected = model.weight.detach().clone()
    for step in range(1, 120):
        with torch.no_grad():
            model.weight.copy_(torch.randn(3, 2))
        average.update(step)
        kept = min(0.9, step / (step + 10))
        expected = kept * expected + (1 - kept) * model.weight.detach()
    torch.testing.assert_close(average.weights["weight"], expected)


def test_numbers_that_are_no_floats_are_those_of_now():
    model = Counted()
    average = RunningMean(model, 0.9)
    model.count += 5
    average.update(1)
    assert average.weights["count"] == 5


def test_the_model_has_the_mean_only_inside():
    model = nn.Linear(2, 3)
    average = RunningMean(model, 0.5)
    with torch.no_grad():
        model.weight.add_(1)
    average.update(1)
    own = model.weight.detach().clone()

    def judge():
        with average.in_place_of(model):
            torch.testing.assert_close(model.weight.detach(), average.weights["weight"])
            assert not torch.equal(model.weight.detach(), own)
            raise RuntimeError("whatever happens inside")

    with pytest.raises(RuntimeError, match="whatever happens inside"):
        judge()
    torch.testing.assert_close(model.weight.detach(), own, rtol=0, atol=0)


def test_the_mean_of_states_keeps_their_kind():
    states = [{"a": torch.full((2,), float(i), dtype=torch.bfloat16), "n": torch.tensor(i)} for i in (1, 2, 6)]
    found = mean(states)
    assert found["a"].dtype == torch.bfloat16
    assert found["a"].tolist() == [3.0, 3.0]
    assert found["n"] == 6
