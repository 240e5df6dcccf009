import pytest
import torch
import torch.nn.functional as F

from sightline.layers.efficientnet import EfficientNetLite, convert_state_dict
from state_dicts import lite0_state


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = EfficientNetLite()
    model.load_state_dict(convert_state_dict(lite0_state()))
    return model.eval()


def test_number_of_parameters_is_that_of_the_paper(model):
    assert sum(p.numel() for p in model.parameters()) + 1280 * 1000 + 1000 == 4_652_008  # with ImageNet's classifier
    assert len(model.blocks) == 1 + 16 + 1


@pytest.mark.parametrize(
    ("name", "channels", "parameters"),
    [
        ("efficientnet_lite1", (24, 40, 80, 112, 192, 320), 5_416_680),
        ("efficientnet_lite2", (24, 48, 88, 120, 208, 352), 6_092_072),
    ],
)
def test_larger_versions_have_more_blocks_and_channels(name, channels, parameters):
    model = EfficientNetLite(name)
    assert sum(p.numel() for p in model.parameters()) + 1280 * 1000 + 1000 == parameters
    outs = [block.project[0].out_channels for block in model.blocks[1:-1]]
    counts = (1, 3, 3, 4, 4, 5, 1)
    assert outs == [c for c, count in zip((16, *channels), counts, strict=True) for _ in range(count)]
    with torch.no_grad():
        assert model.eval()(torch.rand(1, 3, 65, 65)).shape == (1, model.grid_size(65) ** 2, 1280)


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
    fused = EfficientNetLite()
    fused.load_state_dict(model.state_dict())
    fused.eval().fuse_batch_norms()
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in fused.modules())
    images = torch.randn(2, 3, 41, 41)
    with torch.no_grad():
        torch.testing.assert_close(fused(images), model(images), rtol=1e-3, atol=1e-4)


def test_invalid_input_raises():
    for name in ("_blocks.3._se_reduce.weight", "layer1.0.conv1.weight", "weight", "_blocks.x._bn1.bias"):
        with pytest.raises(ValueError, match=f"names of efficientnet_lite0, got '{name}'"):
            convert_state_dict({name: torch.zeros(1)})
    with pytest.raises(ValueError, match="name must be one of efficientnet_lite0"):
        EfficientNetLite("efficientnet_lite7")
    with pytest.raises(ValueError, match="image_size must be at least 32"):
        EfficientNetLite().grid_size(31)
