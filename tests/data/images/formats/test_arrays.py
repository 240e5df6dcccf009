import numpy as np
import pytest
import torch

from sightline.data import read_image
from sightline.data.images.formats import arrays


def pixels(count, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def test_fit_agrees_with_reading_images_one_by_one():
    array = pixels(3, 24, 20, 3)
    fitted = arrays.fit(torch.from_numpy(array).permute(0, 3, 1, 2), 10, None, "these")
    for ours, image in zip(fitted, array, strict=True):
        assert (ours.int() - read_image(image, size=10).int()).abs().max() <= 1
    gray = arrays.fit(torch.from_numpy(array[:, :20]).permute(0, 3, 1, 2), None, 1, "these")
    for ours, image in zip(gray, array[:, :20], strict=True):
        assert torch.equal(ours, read_image(image, channels=1))


def test_a_set_is_made_grey_in_parts(monkeypatch):
    array = torch.from_numpy(pixels(7, 3, 5, 5))
    whole = arrays.fit(array, None, 1, "these")
    monkeypatch.setattr(arrays, "AT_ONCE", 3)
    assert torch.equal(arrays.fit(array, None, 1, "these"), whole)


@pytest.mark.parametrize("size", [7, 19, 31])
def test_arrays_are_scaled_as_files_are(size):
    sharp = 255 * np.random.default_rng(0).integers(
        0, 2, (5, 1, 23, 23), dtype=np.uint8
    )  # black on white overshoots most
    ours = arrays.fit(torch.from_numpy(sharp), size, 1, "the images")
    theirs = torch.stack([read_image(image[0], size=size) for image in sharp])
    assert (ours.int() - theirs.int()).abs().max() <= 1
