import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.layers import Conv4, ResNet12


def test_conv4_gives_one_vector_for_a_28_pixel_image():
    assert Conv4(1)(torch.rand(2, 1, 28, 28)).shape == (2, 1, 64)


def test_grid_cells_are_in_row_major_order():
    backbone = Conv4(3, channels=(5, 7)).eval()
    images = torch.rand(2, 3, 12, 20)
    grid = backbone.blocks(images)
    assert grid.shape == (2, 7, 3, 5)
    torch.testing.assert_close(backbone(images)[:, 5 + 2], grid[:, :, 1, 2])


def test_resnet12_has_the_number_of_parameters_of_the_paper():
    backbone = ResNet12(3)
    assert sum(p.numel() for p in backbone.parameters()) == 12_424_320
    assert backbone.embed_dim == 640
    assert ResNet12(1, channels=(4, 6), dropout=0.1)(torch.rand(2, 1, 9, 9)).shape == (2, 4, 6)


@pytest.mark.parametrize("make", [Conv4, ResNet12])
def test_dropout_drops_channels_of_every_block_in_training(make):
    backbone, images = make(1, channels=(53, 59), dropout=0.5), torch.rand(1, 1, 8, 8)
    dropped = (backbone.blocks(images) == 0).flatten(2).all(2).float().mean()
    assert 0.25 < dropped < 0.75
    backbone.eval()
    torch.testing.assert_close(backbone(images), backbone(images))
    assert len([module for module in backbone.modules() if isinstance(module, nn.Dropout2d)]) == 2


def _gradients(backbone, model, images):
    backbone.zero_grad()
    model(images).square().sum().backward()
    return [parameter.grad.clone() for parameter in backbone.parameters()]


def test_activation_after_pooling_equals_activation_before_pooling():
    """A monotonic activation commutes with max pooling."""
    images = torch.randn(5, 1, 13, 13)
    small, large = Conv4(1, channels=(3, 5)), ResNet12(1, channels=(3, 5))

    def reference_conv4(x):
        for convolution, norm, *_ in small.blocks:
            x = F.max_pool2d(norm(convolution(x)).relu(), 2)
        return x.flatten(2).mT

    def reference_resnet12(x):
        for block in large.blocks:
            x = F.max_pool2d(F.leaky_relu(block.path(x) + block.shortcut(x), 0.1), 2)
        return x.flatten(2).mT

    for backbone, reference in ((small, reference_conv4), (large, reference_resnet12)):
        assert torch.equal(backbone(images), reference(images))
        ours, theirs = (_gradients(backbone, model, images) for model in (backbone, reference))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_state_dicts_without_versions_load():
    ours, theirs = ResNet12(1, channels=(3, 5)), ResNet12(1, channels=(3, 5))
    theirs(torch.rand(2, 1, 7, 7))
    state = dict(theirs.state_dict())  # as loaded from safetensors, without version metadata
    assert all(tensor.is_floating_point() for tensor in state.values())
    ours.load_state_dict(state)
    images = torch.rand(2, 1, 7, 7)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv4(1)(torch.rand(1, 1, 15, 28)), r"sides of at least 16, got \(1, 1, 15, 28\)"),
        (lambda: Conv4(1)(torch.rand(1, 3, 28, 28)), r"images must have shape \(batch, 1, height, width\)"),
        (lambda: Conv4(1, channels=()), "channels must have at least one entry"),
        (lambda: ResNet12(1, channels=(3, 0)), r"channels\[1\] must be an integer of at least 1, got 0"),
        (lambda: ResNet12(1, dropout=1.0), "dropout must be at least 0 and below 1"),
    ],
)
def test_invalid_input_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
