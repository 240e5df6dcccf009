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


def test_it_has_the_size_of_the_paper(model):
    assert sum(p.numel() for p in model.parameters()) + 1280 * 1000 + 1000 == 4_652_008  # with ImageNet's classifier
    assert len(model.blocks) == 1 + 16 + 1


@pytest.mark.parametrize(("size", "side"), [(32, 1), (33, 2), (64, 2), (71, 3), (224, 7)])
def test_a_rest_of_pixels_has_a_place_too(model, size, side):
    assert model.grid_size(size) == side
    with torch.no_grad():
        assert model(torch.rand(1, 3, size, size)).shape == (1, side * side, 1280)


def test_it_is_what_its_parts_say_in_the_package_s_naming(model):
    """The same sums written out from the package's names, with TensorFlow's padding."""
    state, images = lite0_state(), torch.randn(2, 3, 37, 37)

    def step(x, convolution, norm, *, stride=1, bends=True, groups=1):
        weight = state[f"{convolution}.weight"]
        size, side = weight.shape[-1], x.shape[-1]
        rest = max((-(-side // stride) - 1) * stride + size - side, 0)
        x = F.conv2d(F.pad(x, [rest // 2, rest - rest // 2] * 2), weight, stride=stride, groups=groups)
        of = [state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        x = F.batch_norm(x, *of, eps=1e-3)
        return F.relu6(x) if bends else x

    x = step(images, "_conv_stem", "_bn0", stride=2)
    for number in range(16):
        at, y = f"_blocks.{number}", x
        if number:
            y = step(y, f"{at}._expand_conv", f"{at}._bn0")
        stride = 2 if number in (1, 3, 5, 11) else 1
        y = step(y, f"{at}._depthwise_conv", f"{at}._bn1", stride=stride, groups=y.shape[1])
        y = step(y, f"{at}._project_conv", f"{at}._bn2", bends=False)
        x = x + y if x.shape == y.shape else y
    x = step(x, "_conv_head", "_bn1")
    with torch.no_grad():
        places = model(images)
    assert places.std() > 0.1  # it says something
    torch.testing.assert_close(places, x.flatten(2).mT, rtol=1e-4, atol=1e-4)


def test_folded_norms_change_nothing(model):
    folded = EfficientNetLite0()
    folded.load_state_dict(model.state_dict())
    folded.eval().fuse_batch_norms()
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in folded.modules())
    images = torch.randn(2, 3, 41, 41)
    with torch.no_grad():
        torch.testing.assert_close(folded(images), model(images), rtol=1e-3, atol=1e-4)


def test_what_is_no_weight_of_it_is_refused():
    for name in ("_blocks.3._se_reduce.weight", "layer1.0.conv1.weight", "weight", "_blocks.x._bn1.bias"):
        with pytest.raises(ValueError, match=f"names of EfficientNet-Lite0, got '{name}'"):
            convert_state_dict({name: torch.zeros(1)})
    with pytest.raises(ValueError, match="image_size must be at least 32"):
        EfficientNetLite0().grid_size(31)
