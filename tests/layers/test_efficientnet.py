import pytest
import torch
import torch.nn.functional as F

from sightline.layers.efficientnet import EfficientNetLite0, convert_state_dict
from state_dicts import lite0_state


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = EfficientNetLite0()
    model.load_state_dict(convert_state_dict(lite0_state()))
    return model.eval()


def test_number_of_parameters_is_that_of_the_paper(model):
    assert sum(p.numel() for p in model.parameters()) + 1280 * 1000 + 1000 == 4_652_008  # with ImageNet's classifier
    assert len(model.blocks) == 1 + 16 + 1


@pytest.mark.parametrize(("image_size", "grid_size"), [(32, 1), (33, 2), (64, 2), (71, 3), (224, 7)])
def test_grid_size_rounds_up(model, image_size, grid_size):
    assert model.grid_size(image_size) == grid_size
    with torch.no_grad():
        assert model(torch.rand(1, 3, image_size, image_size)).shape == (1, grid_size**2, 1280)


@pytest.mark.parametrize("side", [37, 48])
def test_output_equals_a_functional_reference(model, side):
    """The same network written with functions, by the original names and with TensorFlow's padding."""
    state, images = lite0_state(), torch.randn(2, 3, side, side)

    def step(x, convolution, norm, *, stride=1, relu=True, groups=1):
        weight = state[f"{convolution}.weight"]
        size, side = weight.shape[-1], x.shape[-1]
        padding = max((-(-side // stride) - 1) * stride + size - side, 0)
        x = F.conv2d(F.pad(x, [padding // 2, padding - padding // 2] * 2), weight, stride=stride, groups=groups)
        parameters = [state[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        x = F.batch_norm(x, *parameters, eps=1e-3)
        return F.relu6(x) if relu else x

    x = step(images, "_conv_stem", "_bn0", stride=2)
    for number in range(16):
        block, y = f"_blocks.{number}", x
        if number:
            y = step(y, f"{block}._expand_conv", f"{block}._bn0")
        stride = 2 if number in (1, 3, 5, 11) else 1
        y = step(y, f"{block}._depthwise_conv", f"{block}._bn1", stride=stride, groups=y.shape[1])
        y = step(y, f"{block}._project_conv", f"{block}._bn2", relu=False)
        x = x + y if x.shape == y.shape else y
    x = step(x, "_conv_head", "_bn1")
    with torch.no_grad():
        output = model(images)
    assert output.std() > 0.1  # not degenerate
    torch.testing.assert_close(output, x.flatten(2).mT, rtol=1e-4, atol=1e-4)


def test_fused_batch_norms_do_not_change_outputs(model):
    fused = EfficientNetLite0()
    fused.load_state_dict(model.state_dict())
    fused.eval().fuse_batch_norms()
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in fused.modules())
    images = torch.randn(2, 3, 41, 41)
    with torch.no_grad():
        torch.testing.assert_close(fused(images), model(images), rtol=1e-3, atol=1e-4)


def test_invalid_input_raises():
    for name in ("_blocks.3._se_reduce.weight", "layer1.0.conv1.weight", "weight", "_blocks.x._bn1.bias"):
        with pytest.raises(ValueError, match=f"names of EfficientNet-Lite0, got '{name}'"):
            convert_state_dict({name: torch.zeros(1)})
    with pytest.raises(ValueError, match="image_size must be at least 32"):
        EfficientNetLite0().grid_size(31)
