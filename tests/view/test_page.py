"""The saved page: self-contained, safe against injection, and loadable as modules."""

import html
import json
import re
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from samples import HOSTILE, SOURCE, TARGET, WORDS, AttentionMap, record_of, weights
from sightline.attention import Record
from sightline.errors import SightlineError
from sightline.view.captions import CaptionCard, WordMap, captions_page
from sightline.view.maps import Map
from sightline.view.page import attention_page, bundle_script, json_for_html

MAX_LINES = {"main": 2600, "explanations": 350, "trials": 350, "captions": 350}
"""Of all modules of a page."""
MAX_LINES_PER_MODULE = 300
STATIC = files("sightline.view") / "static"


def test_the_file_refers_to_no_host(encoder_page):
    text = encoder_page.read_text("utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_saving_creates_folders_and_leaves_no_other_file(encoder, tmp_path):
    path = encoder.save_html(tmp_path / "deep" / "page.html")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    with pytest.raises(SightlineError, match=r"path must end in .html, got 'page.txt'"):
        encoder.save_html(tmp_path / "page.txt")


def test_lone_surrogates_in_titles_are_replaced(encoder, tmp_path):
    page = encoder.view(WORDS, title="caf\udce9")
    assert "<title>caf?</title>" in page.save(tmp_path / "page.html").read_text("utf-8")
    assert repr(page).endswith("of HTML)")


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800", "\u2028", "\\u003c/script>"])
def test_json_contains_no_markup_and_round_trips(text):
    escaped = json_for_html({"a": text})
    assert not set("<>&") & set(escaped)
    assert json.loads(escaped.encode("utf-8").decode("utf-8")) == {"a": text}


@pytest.mark.parametrize("kind", ["viewer", "captions"])
@pytest.mark.parametrize("width", [1280, 390])
def test_inputs_without_a_prediction_are_listed(viewer, encoder, photo, tmp_path, kind, width):
    failures = [("a.png", "a.png must be an image, got none"), *((text, f"an error: {text}") for text in HOSTILE)]
    card = CaptionCard("photo.jpg", photo, [WordMap("spot", np.eye(4)[None, None])], [("spot", -0.1)])
    page = encoder.view(WORDS) if kind == "viewer" else captions_page([card])
    path = page.with_failures(failures).save(tmp_path / "page.html")
    viewer.page.set_viewport_size({"width": width, "height": 800})
    viewer.page.goto(path.as_uri())
    shown = viewer.page.get_by_role("region", name="Inputs without a prediction")
    assert shown.locator("p").inner_text() == f"{len(failures)} inputs without a prediction:"
    rows = shown.get_by_role("listitem").all_text_contents()
    assert rows[0] == "a.png must be an image, got none"
    assert rows[1:-1] == [f"{text}: an error: {text}" for text in HOSTILE[:-1]]
    box = shown.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert 40 < box["height"] <= 0.3 * 800 + 1
    assert viewer.page.evaluate("() => document.documentElement.scrollWidth") == width


def test_hostile_tokens_are_text_in_every_view(viewer, tmp_path):
    maps = [
        AttentionMap(name="<script>alert(0)</script>", kind="encoder", weights=weights(2, 7, 7)),
        AttentionMap(name="</script><b>cross", kind="cross", weights=weights(2, 7, 7)),
    ]
    title = "</title><script>alert(3)</script>"
    tokens = {"source": HOSTILE, "target": HOSTILE, "special_tokens": HOSTILE[2:3]}
    path = Record("Model", maps).save_html(tmp_path / "page.html", **tokens, title=title)
    for view in ("heads", "grid", "matrix", "alignment", "temperature"):
        viewer.open(path, f"view={view}&layer=1&query=0&zoom=0.9")
        words = viewer.words()
        if view != "grid":
            assert any(text.startswith("<scrip") for text in words)
            assert viewer.frame.locator("h2 q").inner_text() == HOSTILE[0]
        if view in ("heads", "matrix"):
            viewer.hover("</script>" if "</script>" in words else words[1])
    assert viewer.page.title() == title
    assert viewer.frame.locator("h1").inner_text() == title
    assert viewer.frame.locator("b, img, iframe").count() == 0
    assert "</script><b>cross" in viewer.frame.get_by_label("Layer", exact=True).inner_text()


def test_hostile_labels_and_file_names_are_text_in_the_image_view(viewer, tmp_path):
    path = tmp_path / "<img src=x onerror=alert(1)>.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    record = record_of(weights(1, 1, 2), kind="cross")
    labeled = record.save_html(tmp_path / "a.html", images=[path, path], labels=["<script>alert(1)</script>", "x"])
    viewer.open(labeled, "zoom=2")
    assert "<script>alert(1)</script>" in viewer.words()
    viewer.open(record.save_html(tmp_path / "b.html", images=[path, path]), "zoom=2")
    assert path.name in viewer.words()
    viewer.tab("Matrix")
    assert viewer.frame.locator("img, iframe").count() == 0


def test_the_security_policy_blocks_injected_scripts_and_requests(viewer, encoder, encoder_page):
    with socket.create_server(("127.0.0.1", 0)) as server:
        image = f"<img src='http://127.0.0.1:{server.getsockname()[1]}/x'>"
        injected = f"<script>document.title='broken'</script>{image}<noscript>"
        encoder_page.write_text(encoder_page.read_text("utf-8").replace("<noscript>", injected), "utf-8")
        viewer.open(encoder_page)
        assert viewer.page.title() == encoder.model
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.accept()
        viewer.errors.clear()


def test_pages_in_one_notebook_are_independent(viewer, encoder, translator, tmp_path):
    frames = [page._repr_html_() for page in (encoder.view(WORDS), translator.view(source=SOURCE, target=TARGET))]
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{''.join(frames)}</body>", "utf-8")
    viewer.page.goto(notebook.as_uri())
    first, second = (viewer.page.locator("iframe").nth(i).element_handle().content_frame() for i in (0, 1))
    for frame, record in ((second, translator), (first, encoder)):
        viewer.frame = frame
        viewer.settle()
        assert frame.locator("h1").inner_text() == record.model
    viewer.tab("Matrix")
    viewer.press("ArrowRight")
    assert viewer.status.startswith("[CLS] → [CLS]: ")
    assert "view=matrix" in first.evaluate("() => location.hash")
    assert second.locator("html").get_attribute("data-view") == "heads"
    assert len(viewer.export("SVG")) > 1000
    assert viewer.page.url == notebook.as_uri()


def test_the_notebook_frame_contains_the_page(encoder):
    page = encoder.view(WORDS, height=500)
    frame = page._repr_html_()
    assert "height:500px" in frame
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame).group(1)) == page.html
    assert repr(page) == "Page(0.2 MB of HTML)"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_the_modules_also_load_over_http(viewer, encoder, tmp_path):
    text = re.sub(r"<meta http-equiv[^>]*>", "", encoder.view(WORDS).html)
    module = '<script type="module" src="main.js"></script>'
    text, replaced = re.subn(r'<script type="module" async>.*?</script>', module, text, flags=re.S)
    assert replaced == 1
    (tmp_path / "index.html").write_text(text, "utf-8")
    for file in STATIC.iterdir():
        if file.name.endswith(".js"):
            (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    try:
        viewer.page.goto(f"{address}index.html")
        viewer.settle()
        assert "cat" in viewer.words()
        expected = (f"request: {address}", "favicon", "404")
        assert [error for error in viewer.errors if not any(text in error for text in expected)] == []
        viewer.errors.clear()
    finally:
        server.shutdown()
        server.server_close()


def test_the_scripts_are_small_and_bundle_every_module():
    modules = {file.name: file.read_text("utf-8") for file in STATIC.iterdir() if file.name.endswith(".js")}
    lines = {name: text.count("\n") for name, text in modules.items()}
    assert max(lines.values()) < MAX_LINES_PER_MODULE
    bundled = set()
    for page, max_lines in MAX_LINES.items():
        script = bundle_script(page)
        assert "</script" not in script
        assert "innerHTML" not in script
        names = {f"{name}.js" for name in re.findall(r'^modules\["([\w-]+)"\] = ', script, re.MULTILINE)}
        assert sum(lines[name] for name in names) < max_lines
        bundled |= names
    assert bundled == set(modules)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": []}, "batch must contain at least one index, got none"),
        ({"batch": -1}, "batch must be 0 to 0, the batch indices of a, got -1"),
        ({"height": '1px"><b>x'}, "height must be an integer of at least 1, got '1px"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(SightlineError, match=message):
        attention_page([Map(name="a", kind="encoder", weights=weights(2, 5, 5).numpy())], **options)
