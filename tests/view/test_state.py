"""The state of the viewer and its URL hash in a browser."""

import base64

import pytest

from samples import WORDS, record_of, weights


@pytest.mark.parametrize(
    "state",
    [
        "view=matrix&layer=1&heads=0.3&query=2&key=5&zoom=1.5",
        "view=temperature&layer=2&query=4&hide=true&temperature=0.5",
        "view=heads&combine=max&theme=dark",
        "view=grid&layer=1",
    ],
)
def test_a_reload_restores_the_state(viewer, encoder_page, state):
    viewer.open(encoder_page, state)
    assert dict(part.split("=") for part in state.split("&")).items() <= viewer.state.items()
    before = viewer.state, viewer.screenshot()
    viewer.reload()
    assert (viewer.state, viewer.screenshot()) == before
    assert viewer.view == viewer.state["view"]


def test_a_reload_restores_what_was_clicked(viewer, encoder_page):
    viewer.open(encoder_page)
    viewer.tab("Matrix")
    viewer.button("Next layer")
    viewer.button("Head 2")
    viewer.press("ArrowRight", "ArrowDown")
    before = viewer.hash, viewer.canvas()
    viewer.reload()
    assert (viewer.hash, viewer.canvas()) == before
    assert viewer.view == "matrix"


def test_a_reload_scrolls_to_the_selection(viewer, tmp_path):
    path = record_of(weights(1, 400, 400), kind="cross").save_html(
        tmp_path / "page.html", source=[f"s{i}" for i in range(400)], target=[f"t{i}" for i in range(400)]
    )
    for view, state in (("heads", "query=390"), ("matrix", "zoom=8&query=390&key=380"), ("alignment", "key=390")):
        viewer.open(path, f"view={view}&{state}")
        viewer.reload()
        left, top = viewer.scroll_position
        assert (top if view != "alignment" else left) > 1000
        assert left > 1000 or view == "heads"


def test_a_page_with_images_opens_on_them_unless_the_hash_names_a_view(viewer, vit_page):
    viewer.open(vit_page)
    assert viewer.view == "image"
    viewer.tab("Heads")
    assert viewer.state["view"] == "heads"
    viewer.reload()
    assert viewer.view == "heads"


def test_an_encoder_decoder_page_opens_on_cross_attention(viewer, translator_page):
    viewer.open(translator_page)
    assert viewer.frame.get_by_label("Attention", exact=True).input_value() == "cross"
    assert viewer.state["layer"] == "3"
    viewer.choose("Attention", "Encoder")
    assert viewer.state["layer"] == "0"
    viewer.reload()
    assert viewer.frame.get_by_label("Attention", exact=True).input_value() == "encoder"


def test_a_repeated_head_in_the_hash_counts_once(viewer, encoder_page):
    viewer.open(encoder_page, "view=matrix&heads=1.1.1")
    assert viewer.state["heads"] == "1"


@pytest.mark.parametrize(
    "state",
    [
        "view=nothing&layer=99&heads=77&query=-1&zoom=1e9&temperature=NaN",
        "layer=1.5&heads=a.b&example=9&theme=<b>",
        "__proto__=1&constructor=2",
    ],
)
def test_invalid_values_in_the_hash_are_ignored(viewer, encoder_page, state):
    viewer.open(encoder_page, state)
    assert viewer.view == "heads"
    assert "cat" in viewer.words()


def test_each_view_has_its_own_zoom(viewer, encoder_page):
    viewer.open(encoder_page, "view=matrix&zoom=2")
    viewer.tab("Heads")
    assert "zoom" not in viewer.state
    viewer.button("Zoom in")
    viewer.tab("Matrix")
    assert viewer.state["zoom"] == "2"


@pytest.mark.parametrize("scheme", ["blob", "data"])
def test_a_frame_with_a_fixed_url_works_without_a_hash(viewer, encoder_page, tmp_path, scheme):
    (tmp_path / "frame.html").write_text("<!doctype html><body></body>", "utf-8")
    viewer.page.goto((tmp_path / "frame.html").as_uri())
    viewer.page.evaluate(
        """([scheme, base64]) => {
          const frame = document.createElement("iframe");
          frame.sandbox = "allow-scripts allow-downloads";
          frame.style = "width:1200px;height:700px";
          const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
          const blob = () => URL.createObjectURL(new Blob([bytes], { type: "text/html" }));
          frame.src = scheme === "blob" ? blob() : `data:text/html;base64,${base64}`;
          document.body.append(frame);
        }""",
        [scheme, base64.b64encode(encoder_page.read_bytes()).decode()],
    )
    viewer.frame = viewer.page.locator("iframe").element_handle().content_frame()
    viewer.settle()
    viewer.tab("Matrix")
    viewer.press("ArrowRight")
    assert viewer.status.startswith("[CLS] → [CLS]: ")
    viewer.press("Escape")
    assert viewer.status.startswith("Keyboard")


def test_a_notebook_frame_does_not_change_the_history(viewer, encoder, tmp_path):
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{encoder.view(WORDS)._repr_html_()}</body>", "utf-8")
    viewer.page.goto((tmp_path / "cell.html").as_uri())
    viewer.frame = viewer.page.locator("iframe").element_handle().content_frame()
    viewer.settle()
    before = viewer.page.evaluate("() => history.length")
    viewer.tab("Matrix")
    viewer.press("ArrowRight", "ArrowDown")
    assert viewer.view == "matrix"
    assert viewer.page.evaluate("() => history.length") == before
