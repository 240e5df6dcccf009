"""A narrow window with a touch screen: nothing is cut off, controls fold away, hints are about touch."""

import pytest

from browser import ViewerPage
from samples import WORDS, record_of, weights

VISIBLE = """() => [...document.querySelectorAll("header *, .toolbar *, .inspector, .viewport, .status, .zoom")]
    .filter((node) => node.checkVisibility() && node.tagName !== "OPTION")
    .map((node) => [node.className || node.tagName, node.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.left < 0 || box.right > innerWidth + 0.5))
    .map(([name]) => String(name))"""


@pytest.fixture(scope="module")
def phone(browser):
    window = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    viewer = ViewerPage(window.new_page())
    yield viewer
    assert viewer.errors == []
    window.close()


@pytest.fixture
def pages(encoder_page, translator_page, vit_page):
    return {"encoder": encoder_page, "translator": translator_page, "vit": vit_page}


@pytest.mark.parametrize("name", ["encoder", "translator", "vit"])
def test_nothing_is_cut_off(phone, pages, name):
    phone.open(pages[name])
    for tab in phone.tabs:
        phone.tab(tab)
        for _ in range(2):  # folded and unfolded
            assert phone.page.evaluate(VISIBLE) == [], tab
            assert phone.page.evaluate("() => document.documentElement.scrollWidth") == 390
            phone.button("Options")
        box = phone.frame.locator(".viewport").bounding_box()
        assert box["height"] > 250
        status = phone.frame.locator(".status")
        assert status.evaluate("(node) => node.scrollHeight <= node.clientHeight + 1"), tab


def test_controls_fold_away(phone, encoder_page):
    phone.open(encoder_page)
    options = phone.frame.get_by_role("button", name="Options")
    heads = phone.frame.get_by_role("button", name="Head 0", exact=True)
    assert options.get_attribute("aria-expanded") == "false"
    assert not heads.is_visible()
    assert phone.frame.get_by_label("Layer", exact=True).is_visible()
    options.tap()
    phone.settle()
    assert options.get_attribute("aria-expanded") == "true"
    assert heads.is_visible()
    assert phone.frame.get_by_label("Find a token").is_visible()


def test_hints_are_about_touch(phone, encoder_page):
    phone.open(encoder_page)
    assert phone.status.startswith("Tap a token")
    hint = phone.frame.locator(".guide").inner_text()
    assert hint.startswith("Tap a token")
    assert "Hover" not in hint
    x, y = phone.locate("cat")
    phone.page.touchscreen.tap(x, y)
    phone.settle()
    assert phone.state["query"] == "2"
    assert phone.status.startswith("cat → ")
    phone.page.touchscreen.tap(x, y)
    phone.settle()
    assert "query" not in phone.state


def test_wide_windows_show_all_controls(viewer, encoder_page):
    viewer.open(encoder_page)
    assert not viewer.frame.locator(".fold").is_visible()
    assert viewer.status.startswith("Keyboard: ")


def test_titles_and_answers_are_whole(phone, tmp_path):
    text = "Two old [MASK] in red hats run [MASK] the water, past a very long row of houses. → women, through"
    words = {
        "Words for mask 1": [("women", 0.25), ("internationalization" * 3, 0.2)],
        "Words for mask 2": [("through", 0.97)],
    }
    path = record_of(weights(2, 7, 7)).save_html(tmp_path / "page.html", WORDS, title=text, scores=words)
    phone.open(path)
    assert phone.page.evaluate(VISIBLE) == []
    is_whole = "(node) => node.scrollHeight <= node.clientHeight + 1 && node.scrollWidth <= node.clientWidth + 1"
    names = phone.frame.locator(".scores .name")
    assert names.count() == 3
    for node in (phone.frame.locator("h1"), phone.frame.locator(".inspector"), *names.all()):
        assert node.evaluate(is_whole)


def test_a_long_layer_name_fits(phone, tmp_path):
    path = record_of(weights(12, 7, 7)).save_html(
        tmp_path / "page.html", WORDS, title="A model with a very long title " * 4
    )
    phone.open(path)
    assert phone.page.evaluate(VISIBLE) == []
