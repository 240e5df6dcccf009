import pytest
import torch
from torch.testing import assert_close

from sightline.layers import PatchEmbedding


def test_patches_are_linear_maps_in_row_major_order():
    layer, images = PatchEmbedding(3, 4, 7), torch.rand(2, 3, 8, 12)
    patch = images[:, :, 4:8, 8:12].flatten(1)
    expected = patch @ layer.proj.weight.flatten(1).T + layer.proj.bias
    assert layer(images).shape == (2, 6, 7)
    assert_close(layer(images)[:, 5], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 8, 8), r"images must have shape \(batch, 3, height, width\), got \(2, 1, 8, 8\)"),
        ((3, 8, 8), r"images must have shape \(batch, 3, height, width\), got \(3, 8, 8\)"),
        ((2, 3, 8, 9), "images must have sides that are multiples of patch_size=4, got 8 x 9"),
    ],
)
def test_invalid_images_raise(shape, message):
    with pytest.raises(ValueError, match=message):
        PatchEmbedding(3, 4, 7)(torch.rand(shape))
