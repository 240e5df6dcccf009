"""The controls around the drawing in a browser: tabs, menus, search, status, themes, export and accessibility."""

import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from browser import SVG, is_close
from samples import SOURCE, TARGET, WORDS, AttentionMap, record_of, weights
from sightline.attention import Record

ALL_BUT_IMAGE = ["heads", "grid", "matrix", "alignment", "temperature"]
FOCUSED_CONTROL = """() => {
    const node = document.activeElement;
    const hasOutline = getComputedStyle(node).outlineStyle !== "none" || node === document.body;
    const name = node.ariaLabel || node.textContent || node.closest("label")?.textContent || "";
    return [name.trim(), hasOutline];
}"""

DISPLAYED = {
    " ": "␣",
    "a\u202eb": "a\ufffdb",
    "\u2028": "\ufffd",
    "\u200b": "\ufffd",
    "👩🏽\u200d🔬": "👩🏽\u200d🔬",
    "❤️\u200d🔥": "❤️\u200d🔥",
    "a\u200d🔥": "a\ufffd🔥",
    "\u200d": "\ufffd",
    "a\u200cb": "a\ufffdb",
    "\uffff\ufffe": "\ufffd\ufffd",
    "می\u200cخو": "می\u200cخو",
    "क्\u200dष": "क्\u200dष",
}
"""Tokens and how they are displayed."""


def test_tabs_are_those_of_the_views_that_apply(viewer, translator_page):
    viewer.open(translator_page)
    assert viewer.tabs == ["Heads", "Grid", "Matrix", "Alignment", "Temperature"]
    viewer.choose("Attention", "Encoder")
    assert viewer.tabs == ["Heads", "Grid", "Matrix", "Temperature"]


def test_special_tokens_can_be_hidden(viewer, encoder_page):
    viewer.open(encoder_page)
    assert viewer.words().count("[CLS]") == 2
    viewer.frame.get_by_label("Hide special tokens").check()
    viewer.settle()
    assert viewer.state["hide"] == "true"
    for view in ("Heads", "Matrix", "Temperature"):
        viewer.tab(view)
        words = viewer.words()
        assert "cat" in words
        assert not {"[CLS]", "[SEP]"} & set(words)


def test_search_finds_and_selects_tokens(viewer, encoder_page):
    viewer.open(encoder_page)
    box = viewer.frame.get_by_label("Find a token")
    box.type("T")
    viewer.settle()
    assert viewer.frame.locator(".count").inner_text() == "4 found"
    box.press("Enter")
    assert viewer.state["query"] == "1"
    box.press("Enter")
    assert viewer.state["query"] == "2"
    box.fill("xyz")
    viewer.settle()
    assert viewer.frame.locator(".count").inner_text() == "none"
    box.press("Escape")
    viewer.settle()
    assert box.input_value() == ""


def test_search_in_cross_attention_covers_queries_and_keys(viewer, translator_page):
    viewer.open(translator_page)
    box = viewer.frame.get_by_label("Find a token")
    box.type("a")
    viewer.settle()
    count = sum("a" in word.lower() for word in [*SOURCE, *TARGET])
    assert viewer.frame.locator(".count").inner_text() == f"{count} found"
    selections = []
    for _ in range(4):
        box.press("Enter")
        viewer.settle()
        selections.append({k: v for k, v in viewer.state.items() if k in ("query", "key")})
    assert selections == [{"query": "2"}, {"key": "1"}, {"key": "2"}, {"query": "2"}]


def test_the_status_follows_layer_heads_and_selection(viewer, encoder_page, encoder):
    viewer.open(encoder_page)
    viewer.press("ArrowDown")
    assert viewer.status.startswith("[CLS] → ")
    for layer in (1, 2):
        viewer.button("Next layer")
        row = encoder[layer].weights[0].mean(0)[0]
        assert f" → {WORDS[int(row.argmax())]}, strongest key: " in viewer.status
        assert viewer.status.endswith(f"layer {layer}, mean of 5 heads")
    viewer.button("Head 3")
    assert viewer.status.endswith("mean of 4 heads")
    viewer.choose("Combine", "Max")
    assert viewer.status.endswith("max of 4 heads")
    viewer.frame.get_by_label("Hide special tokens").check()
    viewer.settle()
    assert "query" not in viewer.state
    assert viewer.status.startswith("Keyboard")
    viewer.press("ArrowDown")
    assert viewer.weights
    viewer.press("Escape")
    assert viewer.status.startswith("Keyboard")
    assert not viewer.weights


def test_invisible_characters_are_displayed_as_marks(viewer, tmp_path):
    record = record_of(weights(1, len(DISPLAYED), len(DISPLAYED)))
    viewer.open(record.save_html(tmp_path / "page.html", list(DISPLAYED)))
    words = viewer.words()
    assert words[: len(DISPLAYED)] == list(DISPLAYED.values())


def test_repeated_tokens_are_listed_with_their_position(viewer, tmp_path):
    viewer.open(record_of(weights(2, 3, 3)).save_html(tmp_path / "page.html", ["the", "the", "cat"]), "query=0")
    assert {name for name, _ in viewer.weights} == {"the · 0", "the · 1", "cat"}


def test_several_examples(viewer, tmp_path):
    record = record_of(weights(2, 3, 3, batch=3))
    tokens = [list("abc"), list("xyz")]
    viewer.open(record.save_html(tmp_path / "page.html", tokens, batch=[0, 2]), "view=matrix&heads=1")
    viewer.choose("Example", "batch index 2")
    assert viewer.state["example"] == "1"
    viewer.press("ArrowRight")
    row = record[0].weights[2, 1, 0]
    assert viewer.status.startswith("x → x: ")
    assert is_close(viewer.weight, row[0], row.max())
    viewer.open(record.save_html(tmp_path / "page.html", batch=[0, 1], names=["<b>cat.png", "dog.png"]))
    viewer.choose("Example", "dog.png")
    assert viewer.state["example"] == "1"


def test_a_long_layer_name_keeps_its_end(viewer, tmp_path):
    name = "model.text_model.encoder.transformer.layers.0.self_attention"
    record = Record("Model", [AttentionMap(name=name, kind="encoder", weights=weights(2, 3, 3))])
    viewer.open(record.save_html(tmp_path / "page.html"))
    layer = viewer.frame.get_by_label("Layer", exact=True)
    assert layer.inner_text().endswith("layers.0.self_attention")
    assert len(layer.inner_text()) < 40
    assert layer.get_attribute("title") == name


def test_the_tooltip_of_a_resting_pointer_follows_the_state(viewer, encoder_page, encoder):
    viewer.open(encoder_page)
    viewer.hover("cat")
    viewer.frame.get_by_label("Layer", exact=True).focus()
    viewer.step("ArrowDown")
    viewer.settle()
    row = encoder[1].weights[0].mean(0)[2]
    number, name = viewer.tooltip[1].split()
    assert name == WORDS[int(row.argmax())]
    assert is_close(number, row.max(), row.max())
    assert viewer.status.endswith("layer 1, mean of 5 heads")


def test_dark_theme_by_button_and_by_preference(viewer, encoder_page):
    def background(page):
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    viewer.open(encoder_page)
    light = background(viewer.page)
    viewer.frame.get_by_role("button", name="Use dark colors").click()
    viewer.settle()
    assert viewer.state["theme"] == "dark"
    dark = background(viewer.page)
    assert dark != light
    viewer.page.emulate_media(color_scheme="dark")
    viewer.open(encoder_page)
    assert background(viewer.page) == dark
    assert np.asarray(Image.open(io.BytesIO(viewer.screenshot())).convert("L")).mean() < 60
    viewer.page.emulate_media(color_scheme="light")
    is_light = "(color) => getComputedStyle(document.body).backgroundColor === color"
    viewer.page.wait_for_function(is_light, arg=light)  # the page is told of the change
    viewer.settle()
    assert background(viewer.page) == light


def test_every_view_is_exported_as_png_and_svg(viewer, translator_page):
    drawings = set()
    for view in ALL_BUT_IMAGE:
        viewer.open(translator_page, f"view={view}&layer=3")
        image = Image.open(io.BytesIO(viewer.export("PNG")))
        assert image.size[0] >= 1000
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20
        svg = viewer.export("SVG")
        assert ET.fromstring(svg).tag == f"{SVG}svg"
        drawings.add(svg)
    assert len(drawings) == len(ALL_BUT_IMAGE)


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_an_export_waits_until_the_weights_are_loaded(viewer, tmp_path, view):
    path = record_of(*(weights(2, 220, 220) for _ in range(8))).save_html(tmp_path / "page.html")
    viewer.page.goto(f"{path.as_uri()}#view={view}&combine=rollout&layer=7")
    words = viewer.words()
    assert "Loading…" not in words
    assert "215" in words


def test_small_records_fill_a_wide_window(viewer, translator_page):
    viewer.page.set_viewport_size({"width": 1900, "height": 1000})
    for view in ALL_BUT_IMAGE:
        viewer.open(translator_page, f"view={view}&layer=3")
        xs = [x for _, x, _ in viewer.texts()]
        width = viewer.frame.locator(".scroller").bounding_box()["width"]
        share = 0.3 if view == "matrix" else 0.4  # a matrix is as high as the window
        assert max(xs) - min(xs) > share * width, view


def test_arrow_keys_move_through_the_tabs(viewer, encoder_page):
    viewer.open(encoder_page)
    viewer.frame.get_by_role("tab", name="Heads").focus()
    selected = []
    for _ in range(4):
        viewer.step("ArrowRight")
        viewer.settle()
        selected.append(viewer.frame.locator("[role=tab][aria-selected=true]").inner_text())
        assert viewer.page.evaluate("() => document.activeElement.textContent") == selected[-1]
    assert selected == ["Grid", "Matrix", "Temperature", "Heads"]


def test_every_control_is_reachable_by_tab_and_has_a_name(viewer, encoder_page):
    viewer.open(encoder_page)
    names = set()
    for _ in range(40):
        viewer.page.keyboard.press("Tab")
        name, has_outline = viewer.page.evaluate(FOCUSED_CONTROL)
        assert name
        assert has_outline
        names.add(name)
    joined = " ".join(names)
    for name in ("Head 0", "Find a token", "Save this view as SVG", "Heads: query tokens on the left", "Next layer"):
        assert name in joined


def test_accessibility_roles_and_live_region(viewer, encoder_page):
    viewer.open(encoder_page)
    tree = viewer.frame.locator("body").aria_snapshot()
    for role in ("tablist", 'tab "Heads" [selected]', "status", 'button "Head 0" [pressed]', "complementary"):
        assert role in tree
    assert viewer.frame.get_by_role("tabpanel", name="Heads").count() == 1
    assert viewer.frame.get_by_role("toolbar").count() == 0
    viewer.press("ArrowDown", "ArrowDown")
    assert viewer.frame.locator("[role=status]").inner_text().startswith("the → ")
