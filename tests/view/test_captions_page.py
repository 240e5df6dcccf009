"""The page of captions in a browser: words and their maps, layers and heads, the animation, files, a narrow window."""

import numpy as np
import pytest
from PIL import Image

from sightline.view.captions import CaptionCard, WordMap, captions_page

WORDS = ("a", "red", "spot", "<b>below</b>")
LAYERS, HEADS, ROWS, COLUMNS = 2, 3, 5, 7
ORANGE = (255, 157, 30)
PRESSED = "() => [...document.querySelectorAll('.word')].findIndex((node) => node.ariaPressed === 'true')"
VEIL = """() => {
    const canvas = document.querySelector(".veil");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return Array.from(data).filter((_, i) => i % 4 === 3);
}"""


@pytest.fixture(scope="module")
def maps():
    """Word i attends to row i: layer 0 to column i as well, layer 1 to the last column."""
    weights = np.zeros((len(WORDS), LAYERS, HEADS, ROWS, COLUMNS))
    for i in range(len(WORDS)):
        weights[i, 0, :, i, i] = 0.9
        weights[i, 1, :, i, -1] = 0.2
        weights[i, 1, 2, i, -1] = 0.8
    return weights


@pytest.fixture
def page(viewer, maps, photo, tmp_path):
    words = [WordMap(word, own) for word, own in zip(WORDS, maps, strict=True)]
    captions = [(" ".join(WORDS), -0.25), ("another caption", -1.5)]
    card = CaptionCard("<i>photo</i>.jpg", photo, words, captions)
    path = captions_page([card]).save(tmp_path / "page.html")
    viewer.page.goto(path.as_uri())
    return viewer.page


def brightest(page):
    """Row and column of the region that is dimmed least."""
    return divmod(int(np.argmin(page.evaluate(VEIL))), COLUMNS)


def test_words_have_maps_by_pointer_and_keys(page):
    assert page.locator(".word").all_inner_texts() == list(WORDS)
    assert brightest(page) == (0, 0)
    page.get_by_role("button", name="spot").hover()
    assert page.evaluate(PRESSED) == 2
    assert brightest(page) == (2, 2)
    assert "strongest of 5 x 7 regions: row 3 column 3" in page.locator(".heat-map").get_attribute("aria-label")
    page.get_by_role("button", name="red").focus()
    for key, word in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowRight", 0), ("ArrowLeft", 3)):
        page.keyboard.press(key)
        assert page.evaluate(PRESSED) == word
    assert brightest(page) == (3, 3)


def test_layers_and_heads_are_chosen_and_averaged(page, maps):
    page.get_by_role("button", name="red").hover()
    page.get_by_label("Layer").select_option(label="Layer 1")
    assert brightest(page) == (1, COLUMNS - 1)
    map_node = page.locator(".heat-map")
    box = map_node.bounding_box()

    def value_at(row, column):
        x, y = box["x"] + (column + 0.5) * box["width"] / COLUMNS, box["y"] + (row + 0.5) * box["height"] / ROWS
        page.mouse.move(x, y)
        return page.locator(".tip").inner_text()

    assert value_at(1, COLUMNS - 1) == f"row 2, column 7: {100 * maps[1, 1, :, 1, -1].mean():.1f}%"
    page.get_by_label("Head").select_option(label="Head 2")
    assert value_at(1, COLUMNS - 1) == "row 2, column 7: 80.0%"
    page.get_by_label("Layer").select_option(label="Layer: mean")
    assert value_at(1, COLUMNS - 1) == f"row 2, column 7: {100 * maps[1, :, 2, 1, -1].mean():.1f}%"


def test_the_animation_steps_through_the_words_and_pauses(page):
    page.clock.install()
    page.reload()
    page.get_by_role("button", name="Play").click()
    seen = []
    for _ in range(5):
        page.clock.run_for(700)
        seen.append(page.evaluate(PRESSED))
    assert seen == [1, 2, 3, 0, 1]
    assert brightest(page) == (1, 1)
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(2100)
    assert page.evaluate(PRESSED) == 1
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="spot").hover()  # pointing at a word stops the animation
    page.clock.run_for(2100)
    assert page.evaluate(PRESSED) == 2


def saved_picture(page):
    """The name of the file that "Save PNG" writes, and its pixels."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Save PNG").click()
    pixels = np.asarray(Image.open(download.value.path()).convert("RGB")).astype(float)
    return download.value.suggested_filename, pixels


def is_orange(pixels):
    return abs(pixels - ORANGE).max(-1) < 60


def test_saved_pictures_keep_the_colors_of_the_photo(page, photo):
    page.get_by_role("button", name="spot").hover()
    name, saved = saved_picture(page)
    assert name == "-i-photo-i-.jpg-3-spot.png"
    assert saved.shape[1] == 448
    rows, columns = (np.array([2.5, 0.5]) * 448 / ROWS).astype(int), (np.array([2.5, 5.5]) * 448 / COLUMNS).astype(int)
    side = len(photo)
    attended, dimmed = (
        (saved[r - 3 : r + 3, c - 3 : c + 3].mean((0, 1)), photo[r * side // 448, c * side // 448].astype(float))
        for r, c in zip(rows, columns, strict=True)
    )
    np.testing.assert_allclose(*attended, atol=12)  # the photo itself
    np.testing.assert_allclose(dimmed[0], 0.4 * dimmed[1], atol=12)  # darker, of the same hue


def test_saved_pictures_have_the_outline_and_the_caption_with_the_word_marked(page):
    page.get_by_label("Layer").select_option(label="Layer 0")  # one region per word
    marks, words = [], []
    for i, word in enumerate(WORDS):
        page.get_by_role("button", name=word, exact=True).hover()
        saved = saved_picture(page)[1]
        marked = is_orange(saved[:448])
        height, width = 448 / ROWS, 448 / COLUMNS
        found = np.argwhere(marked)
        edges = np.array([[i * height, i * width], [(i + 1) * height, (i + 1) * width]])
        np.testing.assert_allclose([found.min(0), found.max(0)], edges, atol=3)
        assert not marked[round((i + 0.5) * height), round((i + 0.5) * width)]  # a line around the region
        below = saved[448:]
        marks.append(np.argwhere(is_orange(below))[:, 1].mean())
        words.append((abs(below - [22, 24, 29]).max(-1) > 60).any(0))  # columns with text
    assert marks == sorted(marks)  # from left to right
    assert marks[-1] - marks[0] > 100
    shown = [columns.nonzero()[0] for columns in words]
    assert all(columns[0] < 25 and columns[-1] > 150 for columns in shown)  # the whole caption in each


def test_a_long_caption_of_a_saved_picture_has_several_lines(viewer, photo, tmp_path):
    texts = [f"word{i}" for i in range(17)] + ["x" * 40]
    words = [WordMap(text, np.eye(4)[None, None]) for text in texts]
    card = CaptionCard("photo", photo, words, [(" ".join(texts), -0.5)])
    viewer.page.goto(captions_page([card]).save(tmp_path / "long.html").as_uri())
    viewer.page.get_by_role("button", name=texts[-1]).hover()
    saved = saved_picture(viewer.page)[1]
    assert saved.shape[0] > 448 + 4 * 30
    marked = np.argwhere(is_orange(saved[448:]))
    assert marked[:, 0].min() > 3 * 30  # in the last line
    assert marked[:, 1].max() < 447  # with its frame


def test_texts_are_shown_as_they_are_and_a_phone_shows_all(page):
    assert page.locator("h2").inner_text() == "<i>photo</i>.jpg"
    assert page.locator(".captions li").all_inner_texts() == [
        "a red spot <b>below</b>\n-0.250",
        "another caption\n-1.500",
    ]
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    boxes = [node.bounding_box() for node in page.locator("button, select, .heat-map, .captions").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
    page.get_by_role("button", name="red").click()
    assert brightest(page) == (1, 1)
