"""The page of an image classifier, as `predict --show` and `show` write it, in a browser."""

import numpy as np
import pytest
from PIL import Image

from browser import SVG
from sightline import load


@pytest.fixture(scope="module")
def predictor(tiny_run):
    return load(tiny_run)


@pytest.fixture
def images(tmp_path):
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"<b>{i}.png")
    return sorted(tmp_path.glob("*.png"))


def test_the_page_opens_on_the_image_with_its_prediction(viewer, predictor, images, tmp_path):
    viewer.open(predictor.explain(images[:1]).page.save(tmp_path / "page.html"))
    prediction = str(predictor.predict(images[:1])[0])
    assert viewer.hash.startswith("#view=image&")
    assert viewer.page.title() == f"Attention for the prediction {prediction}"
    assert f"Attention of “{prediction}”" in viewer.words()
    assert len(list(viewer.svg().iter(f"{SVG}image"))) >= 2


def test_several_images_are_examples_with_their_predictions(viewer, predictor, images, tmp_path):
    predictions = [str(prediction) for prediction in predictor.predict(images)]
    page = predictor.explain(images).page.save(tmp_path / "page.html")
    for number, prediction in enumerate(predictions):
        viewer.open(page, f"view=image&example={number}")
        assert f"Attention of “{prediction}”" in viewer.words()
    assert viewer.page.title() == "3 images"
    choices = viewer.page.locator("select option").all_inner_texts()
    assert [choice for choice in choices if ".png" in choice] == [
        f"<b>{i}.png: {prediction}" for i, prediction in enumerate(predictions)
    ]
