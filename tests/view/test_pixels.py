"""The colors of weights in the matrix, grid and image views."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from browser import SVG, image_pixels
from samples import record_of


def veils(viewer):
    """The opacity of each veil over an image."""
    images = (image for image in viewer.svg().iter(f"{SVG}image") if image.get("href").startswith("data:image/png"))
    decoded = (Image.open(io.BytesIO(base64.b64decode(image.get("href").partition(",")[2]))) for image in images)
    return [np.asarray(image)[..., 3] for image in decoded if image.mode == "RGBA"]


def lightness(viewer):
    """The gray values of each image in the drawing."""
    return [image_pixels(image) @ [0.299, 0.587, 0.114] for image in viewer.svg().iter(f"{SVG}image")]


@pytest.fixture
def record():
    """Asymmetric weights of two heads, 7 x 7."""
    weights = torch.rand(1, 2, 7, 7) ** 3
    return record_of(weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize(("theme", "sign"), [("light", -1), ("dark", 1)])
def test_high_weights_are_dark_in_the_light_theme_and_light_in_the_dark_theme(viewer, record, tmp_path, theme, sign):
    viewer.open(record.save_html(tmp_path / "x.html"), f"view=matrix&heads=1&theme={theme}")
    (light,) = lightness(viewer)
    exact = record[0].weights[0, 1].numpy()
    assert light.shape == (7, 7)
    assert np.corrcoef(sign * light.ravel(), np.sqrt(exact).ravel())[0, 1] > 0.95
    assert np.argmax(sign * light) == np.argmax(exact)


def test_each_thumbnail_shows_its_head(viewer, record, tmp_path):
    viewer.open(record.save_html(tmp_path / "x.html"), "view=grid&theme=light")
    thumbnails = lightness(viewer)
    assert len(thumbnails) == 2
    for light, exact in zip(thumbnails, record[0].weights[0].numpy(), strict=True):
        assert np.corrcoef(-light.ravel(), np.sqrt(exact).ravel())[0, 1] > 0.95


@pytest.mark.parametrize("query", [0, 3])
def test_patches_with_low_weights_are_dimmed(viewer, record, tmp_path, query):
    photo = Image.new("RGB", (96, 64), "gray")  # 2 x 3 patches and a class token
    viewer.open(record.save_html(tmp_path / "x.html", images=photo), f"view=image&heads=0&query={query}&smooth=false")
    light = next(255 - veil.astype(int) for veil in veils(viewer) if veil.shape == (2, 3))
    exact = record[0].weights[0, 0, query, 1:].numpy()
    assert np.argmax(light) == np.argmax(exact)
    assert np.argmin(light) == np.argmin(exact)
