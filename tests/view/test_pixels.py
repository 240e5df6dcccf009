"""What the pictures show: the strongest weight has the strongest color, in its own place and not in another."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.attention import Record, AttentionMap
from visitor import SVG


def shown_pictures(visitor):
    """Every picture in the drawing, as light per pixel."""
    for image in visitor.drawing().iter(f"{SVG}image"):
        file = io.BytesIO(base64.b64decode(image.get("href").partition(",")[2]))
        yield np.asarray(Image.open(file).convert("L"), float)


@pytest.fixture
def uneven():
    """7 x 7 weights of 2 heads, far from symmetric."""
    weights = torch.rand(1, 2, 7, 7) ** 3
    return Record("R", [AttentionMap(name="a", kind="encoder", weights=weights / weights.sum(-1, keepdim=True))])


@pytest.mark.parametrize(("theme", "sign"), [("light", -1), ("dark", 1)])
def test_the_matrix_is_darker_on_white_and_lighter_on_black_where_more_is_looked_at(
    visitor, uneven, tmp_path, theme, sign
):
    visitor.open(uneven.save_html(tmp_path / "x.html"), f"view=matrix&heads=1&theme={theme}")
    (light,) = shown_pictures(visitor)
    exact = uneven[0].weights[0, 1].numpy()
    assert light.shape == (7, 7)
    assert np.corrcoef(sign * light.ravel(), np.sqrt(exact).ravel())[0, 1] > 0.95
    assert np.argmax(sign * light) == np.argmax(exact)


def test_each_thumbnail_of_the_grid_is_its_own_head(visitor, uneven, tmp_path):
    visitor.open(uneven.save_html(tmp_path / "x.html"), "view=grid&theme=light")
    thumbnails = list(shown_pictures(visitor))
    assert len(thumbnails) == 2
    for light, exact in zip(thumbnails, uneven[0].weights[0].numpy(), strict=True):
        assert np.corrcoef(-light.ravel(), np.sqrt(exact).ravel())[0, 1] > 0.95


@pytest.mark.parametrize("token", [0, 3])
def test_the_picture_glows_where_it_is_looked_at(visitor, uneven, tmp_path, token):
    photo = Image.new("RGB", (96, 64), "gray")  # 2 x 3 patches and a class token
    visitor.open(uneven.save_html(tmp_path / "x.html", images=photo), f"view=image&heads=0&token={token}&smooth=false")
    light = next(light for light in shown_pictures(visitor) if light.shape == (2, 3))
    exact = uneven[0].weights[0, 0, token, 1:].numpy()
    assert np.argmax(light) == np.argmax(exact)
    assert np.argmin(light) == np.argmin(exact)
