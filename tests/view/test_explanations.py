"""Why a classifier answered as it did, as a picture and as a page in a real browser."""

import re

import numpy as np
import pytest

from sightline.view import explanations as reasons
from sightline.view.explanations import Reason, Sight, glowing, strongest

PARTS = np.array([[0.0, 2.0, 0.0], [0.0, -3.0, 0.5]])


def reason(*, known: bool = True, name: str = "asked.png", label: str = "beta", pictures: bool = True) -> Reason:
    gray = np.full((20, 30), 200, dtype=np.uint8) if pictures else None
    color = np.full((8, 8, 3), 90, dtype=np.uint8) if pictures else None
    parts = PARTS if pictures else None
    examples = [Sight("1.png", color, parts, label, 1.5), Sight("2.png", color, None, "gamma", -0.25)]
    scores = [(label, 0.75), *((f"class {i}", 0.25 / 11) for i in range(11))]
    return Reason(name, label, known, 0.75, scores, Sight(name, gray, parts), examples, ["A note."])


def test_what_is_worth_most_glows_most():
    picture = np.full((12, 18), 128, dtype=np.uint8)
    lit = glowing(picture, PARTS, side=90).astype(int)
    assert lit.shape == (60, 90, 3)
    cells = lit.sum(2).reshape(2, 30, 3, 30).mean((1, 3))
    assert np.argmax(cells) == 1
    assert (lit == glowing(picture, PARTS.clip(0), side=90)).all()  # what would be better hidden does not glow
    assert (glowing(picture, None, side=90) == 128).all()
    assert glowing(picture, np.zeros((2, 3)), side=90).std((0, 1)).max() == 0


def test_the_strongest_parts_are_named():
    assert strongest(PARTS) == [(1, 2), (2, 3)]
    assert strongest(np.zeros((3, 3))) == []


def test_a_page_says_all_that_it_shows(visitor, tmp_path):
    path = reasons.page([reason(), reason(known=False, name="other.png")]).save(tmp_path / "page.html")
    page = visitor.page
    page.goto(path.as_uri())
    assert page.title() == "2 answers"
    text = page.inner_text("body")
    for words in ("1 of 2 known", "asked.png", "beta", "75.0% sure", "none of these", "closest: beta", "A note.",
                  "If it were one of them", "worth +1.50", "worth -0.25", "and 4 more classes"):  # fmt: skip
        assert words in text
    assert [badge.inner_text() for badge in page.locator(".badge").all()] == [
        "known",
        "unknown: belongs to none of the classes",
    ]
    alts = [image.get_attribute("alt") for image in page.locator("img.heat").all()]
    assert alts[0] == "asked.png; of 2 x 3 parts these matter most: row 1 column 2, row 2 column 3"
    assert all(image.get_attribute("alt") for image in page.locator("img").all())
    loaded = page.evaluate("() => [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert loaded
    assert not visitor.problems


def test_the_glow_can_be_switched_off_by_keyboard(visitor, tmp_path):
    page = visitor.page
    page.goto(reasons.page([reason()]).save(tmp_path / "page.html").as_uri())
    heat, plain = page.locator("img.heat").first, page.locator("img.plain").first
    assert heat.is_visible()
    assert not plain.is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert plain.is_visible()
    assert not heat.is_visible()
    page.get_by_text("show the parts that matter").click()
    assert heat.is_visible()


def test_names_from_outside_are_text(visitor, tmp_path):
    evil = '<img src=x onerror="alert(1)">\ud800"\x07'
    page = visitor.page
    page.goto(reasons.page([reason(name=evil, label=evil)], title=evil).save(tmp_path / "page.html").as_uri())
    assert '<img src=x onerror="alert(1)">' in page.inner_text("body")
    assert not visitor.problems


@pytest.mark.parametrize("width", [1240, 400])
def test_it_fits_wide_and_narrow_windows(visitor, tmp_path, width):
    page = visitor.page
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(reasons.page([reason(label="a long name " * 9)]).save(tmp_path / "page.html").as_uri())
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_page_holds_no_script_and_no_address():
    html = reasons.page([reason()]).html
    assert "<script" not in html
    assert not re.search(r"https?://", html)
    assert "default-src 'none'" in html


def test_pictures_of_what_has_none():
    html = reasons.page([reason(pictures=False)]).html
    assert "<img" not in html
    drawn = reasons.picture(reason(pictures=False, known=False))
    assert drawn.get_suptitle().split() == ["unknown:", "none", "of", "these", "(closest", "beta)"]
    assert [axes.get_title() for axes in drawn.axes] == ["If it were one of them"]


def test_a_picture_has_the_image_the_examples_and_the_scores():
    drawn = reasons.picture(reason())
    assert drawn.get_suptitle() == "beta 75.0% (known)"
    assert [axes.get_title() for axes in drawn.axes] == ["asked", "beta", "gamma", "All scores"]
    assert [axes.get_xlabel() for axes in drawn.axes[1:3]] == ["1.png, worth +1.50", "2.png, worth -0.25"]
    assert len(drawn.axes[3].patches) == 8


@pytest.mark.parametrize("label", ["beta", "a longer name " * 5])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("pictures", [True, False])
def test_no_words_of_a_picture_are_cut_off_or_lie_on_others(label, known, pictures):
    drawn = reasons.picture(reason(label=label, known=known, pictures=pictures))
    drawn.draw_without_rendering()
    words = [drawn._suptitle, *(text for axes in drawn.axes for text in (axes.title, axes.xaxis.label, *axes.texts))]
    boxes = [word.get_window_extent() for word in words if word.get_text()]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= drawn.bbox.x1
        assert box.y1 <= drawn.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_nothing_to_show_is_refused():
    with pytest.raises(ValueError, match="reasons must hold at least one answer, got none"):
        reasons.page([])
