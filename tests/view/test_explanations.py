"""Explanations of few-shot predictions, as figures and as pages in a browser."""

import re

import numpy as np
import pytest

from sightline.errors import SightlineError
from sightline.view.explanations import (
    ExplainedImage,
    ExplanationCard,
    explanation_figure,
    explanation_page,
    overlay_heat,
    strongest_cells,
)

OCCLUSION = np.array([[0.0, 2.0, 0.0], [0.0, -3.0, 0.5]])


def make_card(*, known=True, name="query.png", label="beta", images=True):
    gray = np.full((20, 30), 200, dtype=np.uint8) if images else None
    color = np.full((8, 8, 3), 90, dtype=np.uint8) if images else None
    occlusion = OCCLUSION if images else None
    examples = [
        ExplainedImage("1.png", color, occlusion, label, 1.5),
        ExplainedImage("2.png", color, None, "gamma", -0.25),
    ]
    scores = [(label, 0.75), *((f"class {i}", 0.25 / 11) for i in range(11))]
    image = ExplainedImage(name, gray, occlusion)
    return ExplanationCard(name, label, known, 0.75, scores, image, examples, ["A note."])


def test_cells_with_the_largest_drop_are_brightest():
    image = np.full((12, 18), 128, dtype=np.uint8)
    heat = overlay_heat(image, OCCLUSION, side=90).astype(int)
    assert heat.shape == (60, 90, 3)
    cells = heat.sum(2).reshape(2, 30, 3, 30).mean((1, 3))
    assert np.argmax(cells) == 1
    assert (heat == overlay_heat(image, OCCLUSION.clip(0), side=90)).all()  # negative values count as 0
    assert (overlay_heat(image, None, side=90) == 128).all()
    assert overlay_heat(image, np.zeros((2, 3)), side=90).std((0, 1)).max() == 0


def test_strongest_cells_are_positive_and_counted_from_one():
    assert strongest_cells(OCCLUSION) == [(1, 2), (2, 3)]
    assert strongest_cells(np.zeros((3, 3))) == []


def test_a_page_shows_predictions_scores_and_contributions(viewer, tmp_path):
    cards = [make_card(), make_card(known=False, name="other.png")]
    page = viewer.page
    page.goto(explanation_page(cards).save(tmp_path / "page.html").as_uri())
    assert page.title() == "2 predictions"
    text = page.inner_text("body")
    for words in (
        "1 of 2 known", "query.png", "beta", "confidence 75.0%", "unknown", "closest: beta", "A note.",
        "Scores if it were known", "contribution +1.50", "contribution -0.25", "and 4 more classes",
        "Bright regions lower the predicted class's score when occluded.",
    ):  # fmt: skip
        assert words in text
    badges = [badge.inner_text() for badge in page.locator(".badge").all()]
    assert badges == ["known", "none of the classes"]
    alts = [image.get_attribute("alt") for image in page.locator("img.heat").all()]
    assert alts[0] == "query.png; most important of 2 x 3 regions: row 1 column 2, row 2 column 3"
    assert all(image.get_attribute("alt") for image in page.locator("img").all())
    assert page.evaluate("() => [...document.images].every(image => image.complete && image.naturalWidth > 0)")


def test_occlusion_maps_are_toggled_by_keyboard_and_by_click(viewer, tmp_path):
    page = viewer.page
    page.goto(explanation_page([make_card()]).save(tmp_path / "page.html").as_uri())
    heat, plain = page.locator("img.heat").first, page.locator("img.plain").first
    assert heat.is_visible()
    assert not plain.is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert plain.is_visible()
    assert not heat.is_visible()
    page.get_by_text("Show occlusion maps").click()
    assert heat.is_visible()


def test_names_are_escaped(viewer, tmp_path):
    name = '<img src=x onerror="alert(1)">\ud800"\x07'
    html = explanation_page([make_card(name=name, label=name)], title=name)
    viewer.page.goto(html.save(tmp_path / "page.html").as_uri())
    assert '<img src=x onerror="alert(1)">' in viewer.page.inner_text("body")


@pytest.mark.parametrize("width", [1240, 400])
def test_a_page_fits_wide_and_narrow_windows(viewer, tmp_path, width):
    viewer.page.set_viewport_size({"width": width, "height": 900})
    html = explanation_page([make_card(label="a long name " * 9)])
    viewer.page.goto(html.save(tmp_path / "page.html").as_uri())
    assert viewer.page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_page_has_no_script_and_no_url():
    html = explanation_page([make_card()]).html
    assert "<script" not in html
    assert not re.search(r"https?://", html)
    assert "default-src 'none'" in html


def test_cards_without_images():
    html = explanation_page([make_card(images=False)]).html
    assert "<img" not in html
    assert "occluded" not in html
    figure = explanation_figure(make_card(images=False, known=False))
    assert figure.get_suptitle().split() == ["unknown", "(closest", "beta)"]
    assert [axes.get_title() for axes in figure.axes] == ["Scores if it were known"]


def test_a_figure_shows_the_query_the_examples_and_the_scores():
    figure = explanation_figure(make_card())
    assert figure.get_suptitle() == "beta 75.0%"
    assert [axes.get_title() for axes in figure.axes] == ["query", "beta", "gamma", "All scores"]
    labels = [axes.get_xlabel() for axes in figure.axes[1:3]]
    assert labels == ["1.png\ncontribution +1.50", "2.png\ncontribution -0.25"]
    assert len(figure.axes[3].patches) == 8


@pytest.mark.parametrize("label", ["beta", "a longer name " * 5])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("images", [True, False])
def test_texts_of_a_figure_do_not_overlap_and_are_not_cut_off(label, known, images):
    figure = explanation_figure(make_card(label=label, known=known, images=images))
    figure.draw_without_rendering()
    texts = [figure._suptitle, *(text for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts))]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_an_empty_page_is_refused():
    with pytest.raises(SightlineError, match="cards must contain at least one prediction, got none"):
        explanation_page([])
