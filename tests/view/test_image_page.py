"""The page that `predict --show` and `show` write, in a real browser."""

import numpy as np
import pytest
from PIL import Image

from sightline import load
from visitor import SVG


@pytest.fixture(scope="module")
def predictor(tiny_run):
    return load(tiny_run)


@pytest.fixture
def images(tmp_path):
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"<b>{number}.png")
    return sorted(tmp_path.glob("*.png"))


def test_it_opens_on_the_picture_with_its_answer(visitor, predictor, images, tmp_path):
    visitor.open(predictor.page(images[:1]).save(tmp_path / "page.html"))
    answer = str(predictor.predict(images[0]))
    assert visitor.hash.startswith("#view=image&")
    assert visitor.page.title() == f"<b>0.png: {answer}"
    assert f"Where “{answer}” looks" in [text for text, _, _ in visitor.texts()]
    assert len(list(visitor.drawing().iter(f"{SVG}image"))) >= 2


def test_several_images_are_several_examples_each_with_its_answer(visitor, predictor, images, tmp_path):
    answers = [str(answer) for answer in predictor.predict(images)]
    page = predictor.page(images).save(tmp_path / "page.html")
    for number, answer in enumerate(answers):
        visitor.open(page, f"view=image&example={number}")
        assert f"Where “{answer}” looks" in [text for text, _, _ in visitor.texts()]
    assert visitor.page.title() == " · ".join(f"{i}: {answer}" for i, answer in enumerate(answers))


def test_of_many_images_the_title_names_a_few(predictor, images):
    page = predictor.page(images * 2)
    assert "<title>0: " in page.html
    assert " and 2 more</title>" in page.html
