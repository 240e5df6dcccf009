import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from sightline.kernels.weight_casts import cast_weights, casts_weights
from sightline.layers import DecoderBlock, EncoderBlock

B, T, S, M = 2, 3, 5, 8


class CountOperations(TorchDispatchMode):
    """Counts the calls of each operation."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def step(block, *inputs):
    """Output and gradients of a training step in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        out = block(*inputs)
    parameters = list(block.parameters())
    return out, *torch.autograd.grad(out.float().square().sum(), parameters, allow_unused=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
def test_results_equal_those_of_autocast(block_class, bias, monkeypatch):
    block = block_class(M, 2, 11, bias=bias)
    inputs = [torch.randn(B, T, M), torch.randn(B, S, M)][: 1 + (block_class is DecoderBlock)]
    state = block.state_dict().keys()
    with CountOperations() as fast:
        results = step(block, *inputs)
    assert block.state_dict().keys() == state
    assert not {"weight", "bias"} & block.mlp.fc1.__dict__.keys()
    monkeypatch.setattr("sightline.layers.blocks.casts_weights", lambda device: False)
    with CountOperations() as plain:
        expected = step(block, *inputs)
    assert_close(results, expected, rtol=0, atol=0)
    num_casts = 2 * sum(2 if bias else 1 for module in block.modules() if isinstance(module, nn.Linear))
    assert plain.names.count("_to_copy") - fast.names.count("_to_copy") == num_casts
    assert fast.names.count("_foreach_copy_") == 2


def test_only_steps_under_autocast_cast():
    device = torch.device("cpu")
    assert not casts_weights(device)
    with torch.autocast("cpu", torch.bfloat16):
        assert casts_weights(device)
        with torch.no_grad():
            assert not casts_weights(device)


def test_a_compiled_block_is_one_graph():
    block, x = EncoderBlock(M, 2, 11, score="cosine"), torch.randn(B, T, M)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    for result, expected in zip(step(compiled, x), step(block, x), strict=True):
        assert_close(result, expected, atol=2e-2, rtol=2e-2)


def fail(layers):
    with torch.autocast("cpu", torch.bfloat16), cast_weights(layers):
        assert layers[0].weight.dtype == torch.bfloat16
        assert layers[0].bias.dtype == torch.float32, "frozen"
        assert layers[1].weight.dtype == torch.float64
        raise KeyError


def test_trained_float32_parameters_are_cast_and_return_after_an_error():
    layers = [nn.Linear(M, M), nn.Linear(M, M).double()]
    layers[0].bias.requires_grad_(False)
    weight = layers[0].weight
    with pytest.raises(KeyError):
        fail(layers)
    assert layers[0].weight is weight
