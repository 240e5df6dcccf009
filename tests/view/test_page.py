"""The page as a file: alone, harmless and the same wherever it is opened."""

import base64
import html
import io
import re
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samples import HOSTILE, SOURCE, TARGET, WORDS, weights
from sightline.attention import Record, AttentionMap
from sightline.view.images import pictures
from sightline.view.maps import Map
from sightline.view.page import inert_json, page, script_text
from visitor import visiting


def test_the_file_asks_nobody_for_anything(encoder, tmp_path):
    text = encoder.save_html(tmp_path / "page.html", WORDS).read_text("utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    namespaces = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= namespaces


def test_a_file_appears_whole_or_not_at_all(encoder, tmp_path):
    made = encoder.save_html(tmp_path / "deep" / "page.html")
    assert [path.name for path in made.parent.iterdir()] == ["page.html"]
    with pytest.raises(ValueError, match=r"path must end in .html, got 'page.txt'"):
        encoder.save_html(tmp_path / "page.txt")


def test_half_a_surrogate_in_a_title_is_no_obstacle(encoder, tmp_path):
    page = encoder.view(WORDS, title="caf\udce9")
    assert "<title>caf?</title>" in page.save(tmp_path / "page.html").read_text("utf-8")
    assert repr(page).endswith("of HTML)")


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800", "\u2028", "\\u003c/script>"])
def test_json_holds_no_markup_and_comes_back_as_it_was(text):
    import json

    inert = inert_json({"a": text})
    assert not set("<>&") & set(inert)
    assert json.loads(inert.encode("utf-8").decode("utf-8")) == {"a": text}


def test_hostile_words_are_words_in_every_view(browser, tmp_path):
    seen = [
        AttentionMap(name="<script>alert(0)</script>", kind="encoder", weights=weights(2, 7, 7)),
        AttentionMap(name="</script><b>cross", kind="cross", weights=weights(2, 7, 7)),
    ]
    words = {
        "source": HOSTILE,
        "target": HOSTILE,
        "special": HOSTILE[2:3],
        "title": "</title><script>alert(3)</script>",
    }
    path = Record("Model", seen).save_html(tmp_path / "page.html", **words)
    with visiting(browser) as visitor:
        for view in ("heads", "grid", "matrix", "alignment", "temperature"):
            visitor.open(path, f"view={view}&layer=1&token=0&zoom=0.9")
            visitor.page.reload()
            visitor.ready()
            texts = [text for text, _, _ in visitor.texts()]
            if view != "grid":
                assert any(text.startswith("<scrip") for text in texts)
                assert visitor.frame.locator("h2 q").inner_text() == HOSTILE[0]
            if view in ("heads", "matrix"):
                visitor.hover("</script>" if "</script>" in texts else texts[1])
        assert visitor.page.title() == "</title><script>alert(3)</script>"
        assert visitor.frame.locator("h1").inner_text() == "</title><script>alert(3)</script>"
        assert visitor.frame.locator("b, img, iframe").count() == 0
        assert "</script><b>cross" in visitor.frame.get_by_label("Layer", exact=True).inner_text()


def test_hostile_labels_and_file_names_are_words_over_images(browser, tmp_path):
    name = tmp_path / "<img src=x onerror=alert(1)>.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(name)
    record = Record("Few", [AttentionMap(name="a", kind="cross", weights=weights(1, 1, 2))])
    labelled = record.save_html(tmp_path / "a.html", images=[name, name], labels=["<script>alert(1)</script>", "x"])
    named = record.save_html(tmp_path / "b.html", images=[name, name])
    with visiting(browser) as visitor:
        visitor.open(labelled, "zoom=2")
        assert "<script>alert(1)</script>" in [text for text, _, _ in visitor.texts()]
        visitor.open(named, "zoom=2")
        assert "<img src=x onerror=alert(1)>.png" in [text for text, _, _ in visitor.texts()]
        visitor.tab("Matrix")
        assert visitor.frame.locator("img, iframe").count() == 0


def test_the_policy_would_stop_a_script_or_a_request_that_slipped_in(browser, encoder, tmp_path):
    path = encoder.save_html(tmp_path / "page.html", WORDS)
    with socket.create_server(("127.0.0.1", 0)) as host, visiting(browser) as visitor:
        picture = f"<img src='http://127.0.0.1:{host.getsockname()[1]}/x'>"
        slipped = f"<script>document.title='broken'</script>{picture}<noscript>"
        path.write_text(path.read_text("utf-8").replace("<noscript>", slipped), "utf-8")
        visitor.open(path)
        assert visitor.page.title() == "Encoder"
        host.settimeout(0.5)
        with pytest.raises(TimeoutError):
            host.accept()
        visitor.problems.clear()


def test_a_notebook_shows_two_pages_that_share_nothing(browser, encoder, translator, tmp_path):
    one, two = encoder.view(WORDS), translator.view(source=SOURCE, target=TARGET)
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{one._repr_html_()}{two._repr_html_()}</body>", "utf-8")
    with visiting(browser) as visitor:
        visitor.page.goto(notebook.as_uri())
        first, second = (visitor.page.locator("iframe").nth(i).element_handle().content_frame() for i in (0, 1))
        for frame in (first, second):
            visitor.frame = frame
            visitor.ready()
        assert first.locator("h1").inner_text() == "Encoder"
        assert second.locator("h1").inner_text() == "Translator"
        visitor.frame = first
        visitor.tab("Matrix")
        visitor.press("ArrowRight")
        assert visitor.status.startswith("[CLS] → [CLS]: ")
        assert "view=matrix" in first.evaluate("() => location.hash")
        assert second.locator("html").get_attribute("data-view") == "heads"
        assert len(visitor.saved("SVG")) > 1000
        assert visitor.page.url == notebook.as_uri()


def test_a_frame_holds_its_page_as_text(encoder):
    page = encoder.view(WORDS, height=500)
    shown = page._repr_html_()
    assert "height:500px" in shown
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', shown).group(1)) == page.html
    assert repr(page) == "Page(0.1 MB of HTML)"


def test_the_modules_also_load_as_they_are(browser, encoder, tmp_path):
    text = encoder.view(WORDS).html
    text = re.sub(r"<meta http-equiv[^>]*>", "", text)
    text, replaced = re.subn(
        r'<script type="module" async>.*?</script>', '<script type="module" src="main.js"></script>', text, flags=re.S
    )
    assert replaced == 1
    (tmp_path / "index.html").write_text(text, "utf-8")
    for file in (files("sightline.view") / "static").iterdir():
        if file.name.endswith(".js"):
            (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    try:
        with visiting(browser) as visitor:
            visitor.page.goto(f"{address}index.html")
            visitor.ready()
            assert "cat" in [text for text, _, _ in visitor.texts()]
            ours = [
                p for p in visitor.problems if not (p.startswith(f"request: {address}") or "favicon" in p or "404" in p)
            ]
            assert ours == []
            visitor.problems.clear()
    finally:
        server.shutdown()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_the_front_end_can_be_read_in_one_sitting():
    modules = [f for f in (files("sightline.view") / "static").iterdir() if f.name.endswith(".js")]
    lines = {module.name: module.read_text("utf-8").count("\n") for module in modules}
    assert max(lines.values()) < 300
    assert sum(lines.values()) < 2100
    assert "</script" not in script_text()
    assert "innerHTML" not in script_text()
    assert {Path(name).stem for name in lines} == set(re.findall(r'^modules\["([\w-]+)"\] = ', script_text(), re.M))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": []}, "batch must name at least one row, got none"),
        ({"batch": -1}, "batch must be at least 0 and below 1"),
        ({"height": '1px"><b>x'}, "height must be an integer of pixels"),
        ({"tokens": list("abcdef")}, "the last token of generate"),
        ({"images": np.zeros((1, 3, 8, 8))}, "take one of the batch"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        page([Map(name="a", kind="encoder", weights=weights(2, 5, 5).numpy())], **options)


def test_a_picture_of_far_too_many_pixels_is_refused(tmp_path):
    path = tmp_path / "bomb.png"
    Image.new("1", (14_000, 14_000)).save(path)
    with pytest.raises(ValueError, match=r"images must be pictures that can be opened, got .*bomb"):
        page([Map(name="a", kind="encoder", weights=weights(2, 4, 4).numpy())], images=path)


def test_a_photo_is_shown_upright_and_a_deep_grey_picture_with_all_its_greys(tmp_path):
    photo = Image.new("RGB", (80, 40), "teal")
    exif = photo.getexif()
    exif[0x0112] = 6  # turned by a quarter
    photo.save(tmp_path / "turned.jpg", exif=exif)
    deep = Image.fromarray(np.linspace(0, 4000, 64, dtype=np.uint16).reshape(8, 8))
    for picture, check in (
        (tmp_path / "turned.jpg", lambda drawn: drawn.size == (40, 80)),
        (deep, lambda drawn: len(np.unique(np.asarray(drawn.convert("L")))) > 32),
    ):
        shown = pictures(picture, 8, name="images", grid=(4, 2))
        drawn = Image.open(io.BytesIO(base64.b64decode(shown.images[0]["src"].partition(",")[2])))
        assert check(drawn)
