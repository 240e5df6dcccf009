import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.layers import Conv4, ResNet12


def test_conv4_of_an_omniglot_image_is_one_vector():
    assert Conv4(1)(torch.rand(2, 1, 28, 28)).shape == (2, 1, 64)


def test_places_are_in_reading_order():
    backbone = Conv4(3, channels=(5, 7)).eval()
    images = torch.rand(2, 3, 12, 20)
    grid = backbone.blocks(images)
    assert grid.shape == (2, 7, 3, 5)
    torch.testing.assert_close(backbone(images)[:, 5 + 2], grid[:, :, 1, 2])


def test_resnet12_has_the_size_of_the_papers():
    backbone = ResNet12(3)
    assert sum(p.numel() for p in backbone.parameters()) == 12_424_320
    assert backbone.embed_dim == 640
    assert ResNet12(1, channels=(4, 6), dropout=0.1)(torch.rand(2, 1, 9, 9)).shape == (2, 4, 6)


@pytest.mark.parametrize("make", [Conv4, ResNet12])
def test_dropout_leaves_out_channels_of_every_block_while_learning(make):
    backbone, images = make(1, channels=(53, 59), dropout=0.5), torch.rand(1, 1, 8, 8)
    gone = (backbone.blocks(images) == 0).flatten(2).all(2).float().mean()
    assert 0.25 < gone < 0.75
    whole = backbone.eval()(images)
    torch.testing.assert_close(whole, backbone(images))
    assert len([one for one in backbone.modules() if isinstance(one, nn.Dropout2d)]) == 2


def _gradients(backbone, answer, images):
    backbone.zero_grad()
    answer(images).square().sum().backward()
    return [parameter.grad.clone() for parameter in backbone.parameters()]


def test_bent_after_the_halving_or_before_is_the_same_to_the_last_bit():
    """The papers bend first; a bend that only rises may wait until there is a quarter of the places."""
    images = torch.randn(5, 1, 13, 13)
    small, large = Conv4(1, channels=(3, 5)), ResNet12(1, channels=(3, 5))

    def conv4_of_the_papers(x):
        for convolution, norm, *_ in small.blocks:
            x = F.max_pool2d(norm(convolution(x)).relu(), 2)
        return x.flatten(2).mT

    def resnet12_of_the_papers(x):
        for block in large.blocks:
            x = F.max_pool2d(F.leaky_relu(block.path(x) + block.shortcut(x), 0.1), 2)
        return x.flatten(2).mT

    for backbone, papers in ((small, conv4_of_the_papers), (large, resnet12_of_the_papers)):
        assert torch.equal(backbone(images), papers(images))
        ours, theirs = (_gradients(backbone, answer, images) for answer in (backbone, papers))
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_file_s_weights_go_in():
    ours, theirs = ResNet12(1, channels=(3, 5)), ResNet12(1, channels=(3, 5))
    theirs(torch.rand(2, 1, 7, 7))
    plain = dict(theirs.state_dict())  # as it comes from safetensors, without torch's versions
    assert all(tensor.is_floating_point() for tensor in plain.values())
    ours.load_state_dict(plain)
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
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
