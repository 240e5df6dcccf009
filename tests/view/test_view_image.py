"""The image view in a browser."""

import io
import re

import pytest
from PIL import Image

from browser import SVG, is_close
from samples import record_of, weights


def test_patches_of_a_classifier(viewer, vit, vit_page):
    viewer.open(vit_page, "layer=0")
    assert viewer.tabs[3] == "Image"
    largest = max(viewer.svg().iter(f"{SVG}image"), key=lambda image: float(image.get("width")))
    side = float(largest.get("width")) / 4
    x, y = viewer.on_screen(float(largest.get("x")) + 2.5 * side, float(largest.get("y")) + 1.5 * side)
    viewer.page.mouse.move(x, y)
    viewer.settle()
    exact = vit[0].weights[0].mean(0)
    assert viewer.tooltip[1] == "2,3"
    assert is_close(viewer.tooltip[0], exact[0, 1 + 6], exact[0].max())
    viewer.page.mouse.click(x, y)
    viewer.settle()
    assert viewer.state["query"] == "7"
    assert is_close(viewer.tooltip[0], exact[7, 7], exact[7].max())
    assert viewer.weight == viewer.tooltip[0]
    assert "Attention of patch 2,3" in viewer.words()
    viewer.press("ArrowRight", "ArrowDown")
    assert viewer.state["query"] == "12"


def test_smoothing_and_opacity(viewer, vit_page):
    viewer.open(vit_page)
    smooth = viewer.screenshot()
    viewer.frame.get_by_label("Smooth").uncheck()
    viewer.settle()
    pixelated = viewer.screenshot()
    assert pixelated != smooth
    viewer.slide("Opacity", 0)
    assert viewer.screenshot() != pixelated
    assert viewer.state["smooth"] == "false"
    assert viewer.state["opacity"] == "0"


def test_clicking_a_head_thumbnail_shows_only_that_head(viewer, vit_page):
    viewer.open(vit_page, "layer=0")
    viewer.click("head 1", dy=-30)
    assert viewer.state["heads"] == "1"


def test_each_word_of_a_caption_has_its_map(viewer, photo, tmp_path):
    record = record_of(weights(2, 5, 16), kind="cross")
    words = ["<s>", "a", "red", "spot", "</s>"]
    viewer.open(record.save_html(tmp_path / "page.html", target=words, images=photo))
    assert "Attention of “a”" in viewer.words()
    viewer.hover("spot", dy=-30)
    best = int(record[0].weights[0].mean(0)[3].argmax())
    assert viewer.status.startswith(f"spot → {best // 4 + 1},{best % 4 + 1}, strongest key: ")
    viewer.click("red", dy=-30)
    assert viewer.state["query"] == "2"
    assert "Attention of “red”" in viewer.words()


@pytest.mark.parametrize("patches", [1, 9])
def test_support_images_show_their_total_weight(viewer, photo, tmp_path, patches):
    record = record_of(weights(1, patches, 5 * patches), kind="cross")
    labels = ["cat", "dog", "owl", "fox", "eel"]
    viewer.open(record.save_html(tmp_path / "page.html", images=[photo] * 5, labels=labels, query_image=photo))
    totals = record[0].weights[0, 0].mean(0).reshape(5, patches).sum(-1)
    texts = viewer.texts()
    for label, total in zip(labels, totals, strict=True):
        (y,) = (y for text, _, y in texts if text == label)
        numbers = [text for text, _, at in texts if at == y and re.fullmatch(r"0\.\d{4}", text)]
        assert any(is_close(number, total, 1.0) for number in numbers)
    if patches > 1:
        query = next(viewer.svg().iter(f"{SVG}image"))
        viewer.page.mouse.click(*viewer.on_screen(float(query.get("x")) + 5, float(query.get("y")) + 5))
        viewer.settle()
        assert viewer.state["query"] == "0"


def test_shift_and_arrow_keys_read_the_weights_of_patches(viewer, vit, vit_page):
    viewer.open(vit_page, "layer=0")
    viewer.press("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown")
    row = vit[0].weights[0].mean(0)[0]
    assert viewer.status.startswith("[CLS] → 2,2: ")
    assert is_close(viewer.weight, row[1 + 5], row.max())


def test_the_first_arrow_key_selects_the_first_patch(viewer, tmp_path):
    path = record_of(weights(2, 16, 16)).save_html(tmp_path / "page.html", images=Image.new("RGB", (64, 64), "teal"))
    for key in ("ArrowRight", "ArrowDown"):
        viewer.open(path, "view=image")
        assert "Attention of all patches (mean)" in viewer.words()
        viewer.press(key)
        assert viewer.state["query"] == "0"


def test_special_tokens_are_skipped_when_hidden_and_thumbnails_keep_the_aspect_ratio(viewer, tmp_path):
    record, words = record_of(weights(2, 5, 16), kind="cross"), ["<s>", "a", "</s>", "b", "c"]
    path = record.save_html(
        tmp_path / "page.html", target=words, images=Image.new("RGB", (64, 32), "teal"), grid=(2, 8)
    )
    viewer.open(path, "view=image&query=1")
    viewer.frame.get_by_label("Hide special tokens").check()
    viewer.press("ArrowRight")
    assert viewer.state["query"] == "3"
    thumbnails = [image for image in viewer.svg().iter(f"{SVG}image") if float(image.get("width")) < 150]
    assert thumbnails
    for image in thumbnails:
        assert float(image.get("width")) == pytest.approx(2 * float(image.get("height")), abs=0.02)


def test_a_zoomed_image_can_be_scrolled_and_exported(viewer, vit_page):
    viewer.open(vit_page, "view=image&zoom=4")
    svg = viewer.svg()
    right = max(float(image.get("x")) + float(image.get("width")) for image in svg.iter(f"{SVG}image"))
    assert float(svg.get("width")) >= right
    assert viewer.page.evaluate("() => document.querySelector('.scroller').scrollWidth") >= right


def test_the_image_view_is_exported_as_png_and_svg(viewer, vit_page):
    viewer.open(vit_page, "layer=0")
    image = Image.open(io.BytesIO(viewer.export("PNG")))
    assert len(image.convert("RGB").getcolors(1 << 24)) > 1000
    assert len(list(viewer.svg().iter(f"{SVG}image"))) == 2 * (1 + 3)


def test_narrow_windows(viewer, vit_page):
    viewer.page.set_viewport_size({"width": 390, "height": 800})
    viewer.open(vit_page)
    assert viewer.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    texts = viewer.texts()
    heading, note = (next(y for t, _, y in texts if t.startswith(start)) for start in ("Attention of ", "max "))
    assert note > heading + 14
    status, zoom = (viewer.frame.locator(selector).bounding_box() for selector in (".status", ".zoom"))
    assert status["x"] + status["width"] <= zoom["x"]
    assert zoom["height"] < 32
    assert zoom["x"] + zoom["width"] <= 390


def test_words_after_an_image_have_their_maps(viewer, photo, tmp_path):
    record = record_of(weights(2, 21, 21, causal=True), kind="decoder")
    words = ["<s>", *["<image>"] * 16, "what", "is", "this", "?"]
    viewer.open(record.save_html(tmp_path / "page.html", words, images=photo, image_tokens=slice(1, 17)), "view=image")
    assert [word for word in viewer.words() if word in words] == ["what", "is", "this", "?"]
    assert "Attention of “?”" in viewer.words()
    viewer.hover("this", dy=-30)
    row = record[0].weights[0].mean(0)[19]
    best = int(row[1:17].argmax())
    largest = max(viewer.svg().iter(f"{SVG}image"), key=lambda image: float(image.get("width")))
    side = float(largest.get("width")) / 4
    x, y = float(largest.get("x")) + (best % 4 + 0.5) * side, float(largest.get("y")) + (best // 4 + 0.5) * side
    viewer.click("this", dy=-30)
    viewer.page.mouse.move(*viewer.on_screen(x, y))
    viewer.settle()
    assert viewer.tooltip[1] == f"{best // 4 + 1},{best % 4 + 1}"
    assert is_close(viewer.tooltip[0], row[1 + best], row.max())
