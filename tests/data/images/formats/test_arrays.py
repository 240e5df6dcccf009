import numpy as np
import pytest
import torch

from sightline.data import read_image
from sightline.data.images.formats import arrays


def pixels(count, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def test_convert_agrees_with_read_image():
    array = pixels(3, 24, 20, 3)
    converted = arrays.convert(torch.from_numpy(array).permute(0, 3, 1, 2), 10, None, "images")
    for actual, image in zip(converted, array, strict=True):
        assert (actual.int() - read_image(image, size=10).int()).abs().max() <= 1
    gray = arrays.convert(torch.from_numpy(array[:, :20]).permute(0, 3, 1, 2), None, 1, "images")
    for actual, image in zip(gray, array[:, :20], strict=True):
        assert torch.equal(actual, read_image(image, channels=1))


def test_grayscale_conversion_is_chunked(monkeypatch):
    array = torch.from_numpy(pixels(7, 3, 5, 5))
    expected = arrays.convert(array, None, 1, "images")
    monkeypatch.setattr(arrays, "CHUNK", 3)
    assert torch.equal(arrays.convert(array, None, 1, "images"), expected)


@pytest.mark.parametrize("size", [7, 19, 31])
def test_arrays_are_resized_like_files(size):
    sharp = 255 * np.random.default_rng(0).integers(0, 2, (5, 1, 23, 23), dtype=np.uint8)  # most overshoot
    actual = arrays.convert(torch.from_numpy(sharp), size, 1, "images")
    expected = torch.stack([read_image(image[0], size=size) for image in sharp])
    assert (actual.int() - expected.int()).abs().max() <= 1
