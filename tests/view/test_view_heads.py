"""The heads view in a browser."""

import re

import numpy as np
import pytest
import torch

from browser import curved_lines, is_close
from samples import WORDS, record_of, weights
from sightline.view.page import read_static

DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
PROTANOPIA = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_OKLAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])

COUNT_STROKES = """async (by) => {
    const scroller = document.querySelector(".scroller");
    const stroke = CanvasRenderingContext2D.prototype.stroke;
    let count = 0;
    CanvasRenderingContext2D.prototype.stroke = function (...args) { count++; return stroke.apply(this, args); };
    const drawnAfter = async (before) => {
        for (let frame = 0; frame < 120 && count === before; frame++) await new Promise(requestAnimationFrame);
        return count;
    };
    for (let attempt = 0; ; attempt++) { // on a busy machine, scrolling may end before its first frame is drawn: again
        count = 0;
        scroller.scrollTop += by;
        const scrolling = await drawnAfter(0);
        const resting = (await drawnAfter(scrolling)) - scrolling;
        if (!(scrolling && resting) && attempt < 5) continue;
        CanvasRenderingContext2D.prototype.stroke = stroke;
        return [scrolling, resting];
    }
}"""
"""Lines drawn while scrolling, and after scrolling has ended."""


def all_lines(viewer):
    return [line for lines in curved_lines(viewer.svg()).values() for line in lines]


def test_hovering_a_query_shows_only_its_weights(viewer, encoder_page, encoder):
    viewer.open(encoder_page)
    before = viewer.canvas()
    viewer.hover("cat")
    row = encoder[0].weights[0].mean(0)[2]
    strongest = WORDS[int(row.argmax())]
    assert viewer.status.startswith(f"cat → {strongest}, strongest key: ")
    assert viewer.tooltip[0] == "Strongest keys of cat"
    number, name = viewer.tooltip[1].split()
    assert name == strongest
    assert is_close(number, row.max(), row.max())
    assert viewer.weights[0][0] == strongest
    assert viewer.canvas() != before
    viewer.page.mouse.move(5, 5)
    viewer.settle()
    assert viewer.canvas() == before


def test_hovering_a_key_shows_its_queries(viewer, encoder_page, encoder):
    viewer.open(encoder_page)
    viewer.hover("cat", occurrence=1)
    strongest = WORDS[int(encoder[0].weights[0].mean(0)[:, 2].argmax())]
    assert viewer.tooltip[0] == "Strongest queries of cat"
    assert viewer.tooltip[1].split()[1] == strongest
    assert viewer.status.startswith(f"{strongest} → cat, strongest query: ")


def test_clicking_selects_a_query_and_draws_only_its_lines(viewer, encoder_page):
    viewer.open(encoder_page)
    assert len({y for _, y, _, _ in all_lines(viewer)}) == len(WORDS)
    viewer.click("cat")
    assert viewer.state["query"] == "2"
    assert len({y for _, y, _, _ in all_lines(viewer)}) == 1
    viewer.press("Escape")
    assert "query" not in viewer.state


def test_clicking_a_head_toggles_it_and_double_clicking_shows_only_it(viewer, encoder_page):
    viewer.open(encoder_page)
    chip = viewer.frame.get_by_role("button", name="Head 3", exact=True)
    assert len(curved_lines(viewer.svg())) == 5
    viewer.button("Head 3")
    assert chip.get_attribute("aria-pressed") == "false"
    assert viewer.state["heads"] == "0.1.2.4"
    assert len(curved_lines(viewer.svg())) == 4
    chip.dblclick()
    viewer.settle()
    assert viewer.state["heads"] == "3"
    assert len(curved_lines(viewer.svg())) == 1
    viewer.button("All heads")
    assert "heads" not in viewer.state


def test_shift_enter_shows_only_one_head_and_the_last_head_stays_selected(viewer, encoder_page):
    viewer.open(encoder_page)
    viewer.frame.get_by_role("button", name="Head 3", exact=True).focus()
    viewer.step("Shift+Enter")
    assert viewer.state["heads"] == "3"
    viewer.step("Enter")
    viewer.settle()
    assert viewer.status == "At least one head must be selected."
    assert viewer.state["heads"] == "3"


@pytest.mark.parametrize(("heads", "combine", "colors"), [(16, "each", 16), (24, "mean", 1)])
def test_more_heads_than_colors_are_shown_as_their_mean(viewer, tmp_path, heads, combine, colors):
    viewer.open(record_of(weights(heads, 3, 3)).save_html(tmp_path / "page.html"))
    assert viewer.state["combine"] == combine
    assert len(curved_lines(viewer.svg())) == colors


def test_head_colors_are_distinguishable_with_color_blindness():
    palettes = re.findall(r"(light|dark): \[((?:\"#\w{6}\",?\s*){16})\]", read_static("colors.js"))
    assert [name for name, _ in palettes] == ["light", "dark"]
    for _, text in palettes:
        codes = re.findall(r"#\w{6}", text)
        rgb = np.array([[int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)] for code in codes])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        for simulation, min_distance in ((np.eye(3), 0.1), (DEUTERANOPIA, 0.06), (PROTANOPIA, 0.06)):
            lab = np.cbrt((linear @ simulation.T).clip(0, 1) @ TO_CONES.T) @ TO_OKLAB.T
            distances = np.linalg.norm(lab[:, None] - lab[None], axis=-1) + np.eye(16)
            assert distances.min() > min_distance


def test_arrow_keys_move_through_queries_and_keys(viewer, encoder_page, encoder):
    viewer.open(encoder_page)
    viewer.press("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown")
    column = encoder[0].weights[0].mean(0)[:, 2]
    assert viewer.state["key"] == "2"
    assert viewer.status.startswith(f"{WORDS[int(column.argmax())]} → cat, strongest query: ")
    assert len({y for _, _, _, y in all_lines(viewer)}) == 1
    viewer.press("ArrowLeft")
    assert viewer.state["query"] == "2"
    assert viewer.status.startswith("cat → ")


def test_only_the_visible_part_of_a_long_input_is_drawn(viewer, tmp_path):
    record = record_of(*(weights(4, 300, 300) for _ in range(2)))
    viewer.open(record.save_html(tmp_path / "page.html", [f"token{i}" for i in range(300)]))
    assert viewer.page.evaluate("() => document.querySelectorAll('*').length") < 200
    assert viewer.frame.locator("canvas").bounding_box()["height"] < 800
    top = viewer.screenshot()
    viewer.page.mouse.move(600, 500)
    viewer.wheel(3000)
    viewer.page.wait_for_function("() => document.querySelector('.scroller').scrollTop > 0")
    viewer.settle()
    assert viewer.screenshot() != top
    viewer.frame.get_by_label("Find a token").fill("token299")
    viewer.frame.get_by_label("Find a token").press("Enter")
    viewer.settle()
    assert viewer.scroll_position[1] > 5000


def test_fewer_lines_are_drawn_while_scrolling(viewer, tmp_path):
    flat = (0.2 * torch.randn(1, 12, 256, 256, generator=torch.Generator().manual_seed(0))).softmax(-1)
    viewer.open(record_of(flat).save_html(tmp_path / "page.html"))
    scrolling, resting = viewer.page.evaluate(COUNT_STROKES, 60)
    assert 0 < scrolling <= 200 < resting <= 3000
    assert 1000 < len(all_lines(viewer)) <= 3000


def test_fewer_lines_are_drawn_while_scrolling_sharp_attention(viewer, tmp_path):
    viewer.open(record_of(weights(12, 200, 200)).save_html(tmp_path / "page.html"))
    scrolling, resting = viewer.page.evaluate(COUNT_STROKES, 60)
    assert 0 < scrolling < resting / 2
