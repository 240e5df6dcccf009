"""The alignment view in a browser."""

from browser import curved_lines, is_close
from samples import SOURCE, TARGET, record_of, weights

SCROLL = """async () => {
    const scroller = document.querySelector(".scroller");
    for (let i = 0; i < 10; i++) {
        scroller.scrollLeft += 40;
        scroller.dispatchEvent(new Event("scroll"));
        await new Promise(requestAnimationFrame);
    }
}"""
COUNT_MEASUREMENTS = """() => {
    const context = CanvasRenderingContext2D.prototype;
    const measure = context.measureText;
    window.measured = 0;
    context.measureText = function (...args) { window.measured++; return measure.apply(this, args); };
}"""


def all_lines(viewer):
    return [line for lines in curved_lines(viewer.svg()).values() for line in lines]


def test_each_target_word_has_its_strongest_source_word(viewer, translator_page, translator):
    viewer.open(translator_page, "view=alignment&layer=3")
    texts = viewer.texts()
    mean = translator[3].weights[0].mean(0)
    for row, word in zip(mean, TARGET, strict=True):
        x, y = next((x, y) for text, x, y in texts if text == word)
        source, number = (next(text for text, at, y2 in texts if at == x and y2 == y + down) for down in (30, 48))
        assert source == SOURCE[int(row.argmax())]
        assert is_close(number, row.max(), row.max())
    viewer.hover("chat")
    assert viewer.tooltip[0] == "Strongest keys of chat"
    assert viewer.tooltip[1].split()[1] == SOURCE[int(mean[2].argmax())]
    viewer.click("chat")
    assert viewer.state["query"] == "2"
    assert len({x for _, _, x, _ in all_lines(viewer)}) == 1
    viewer.press("ArrowRight")
    assert viewer.state["query"] == "3"


def test_arrow_keys_move_through_source_and_target(viewer, translator_page):
    viewer.open(translator_page, "view=alignment")
    viewer.press("ArrowUp", "ArrowRight")
    assert f" → {SOURCE[1]}, strongest query: " in viewer.status
    viewer.press("ArrowDown")
    assert viewer.status.startswith(f"{TARGET[1]} → ")


def test_clicking_a_source_word_toggles_its_selection(viewer, translator_page):
    viewer.open(translator_page, "view=alignment")
    viewer.click("sleeps")
    assert viewer.state["key"] == "3"
    viewer.click("sleeps")
    assert "key" not in viewer.state


def test_a_long_alignment_scrolls_without_a_new_layout(viewer, tmp_path):
    record = record_of(weights(4, 300, 300, sharp=1.0), kind="cross")
    viewer.open(record.save_html(tmp_path / "page.html"), "view=alignment&combine=mean")
    viewer.page.evaluate(COUNT_MEASUREMENTS)
    viewer.page.evaluate(SCROLL)
    assert viewer.page.evaluate("() => window.measured") < 100  # a layout measures every token
    assert 0 < len(all_lines(viewer)) <= 3000


def test_negative_weights_are_drawn(viewer, tmp_path):
    record = record_of(-weights(1, 4, 5, sharp=4.0), kind="cross")
    viewer.open(record.save_html(tmp_path / "page.html"), "view=alignment")
    assert len({x for _, _, x, _ in all_lines(viewer)}) == 4
