"""The grid view in a browser."""

import re

import numpy as np
import pytest
import torch

from browser import SVG, image_pixels, is_close
from samples import record_of

BACK = "\u2039 All heads"


def test_the_grid_shows_every_head_and_a_click_opens_one(viewer, encoder_page, encoder):
    viewer.open(encoder_page, "view=grid")
    images = list(viewer.svg().iter(f"{SVG}image"))
    assert len(images) == 3 * 5
    last = images[-1]
    x, y = viewer.on_screen(float(last.get("x")) + 20, float(last.get("y")) + 20)
    viewer.page.mouse.move(x, y)
    viewer.settle()
    assert viewer.tooltip[:2] == ["Layer 2, head 4", "layers.2"]
    assert re.search(r"entropy \d\.\d\d bits", viewer.status)
    viewer.page.mouse.click(x, y)
    viewer.settle()
    assert viewer.view == "matrix"
    viewer.press("ArrowRight")
    row = encoder[2].weights[0, 4, 0]
    assert is_close(viewer.weight, row[0], row.max())
    viewer.press("Escape")
    assert viewer.view == "grid"


def test_arrow_keys_and_enter_open_a_head(viewer, encoder_page):
    viewer.open(encoder_page, "view=grid")
    viewer.press("ArrowRight", "ArrowRight", "ArrowDown")
    assert viewer.status.startswith("Layer 1, head 1")
    viewer.press("Enter")
    assert (viewer.view, viewer.state["layer"], viewer.state["heads"]) == ("matrix", "1", "1")


@pytest.mark.parametrize("way", ["history", "button", "Escape"])
def test_an_opened_head_leads_back_to_the_grid(viewer, encoder_page, way):
    viewer.open(encoder_page, "view=grid")
    viewer.press("ArrowRight", "ArrowDown", "Enter")
    assert viewer.view == "matrix"
    if way == "history":
        viewer.page.go_back()
        viewer.settle()
    elif way == "button":
        viewer.button(BACK)
    else:
        viewer.press("Escape")
    assert viewer.view == "grid"
    assert "heads" not in viewer.state
    assert viewer.status.startswith("Layer 1, head 0")
    assert not viewer.frame.get_by_role("button", name=BACK).is_visible()


def test_the_way_back_is_ignored_in_other_views(viewer, encoder_page):
    viewer.open(encoder_page, "view=heads&from=grid")
    assert not viewer.frame.get_by_role("button", name=BACK).is_visible()
    assert "from" not in viewer.state


def test_thumbnails_of_large_layers_keep_thin_diagonals(viewer, tmp_path):
    diagonal = torch.eye(256)[None, None].expand(1, 2, 256, 256)
    record = record_of(0.5 * diagonal + 0.5 * diagonal.flip(-1))
    viewer.open(record.save_html(tmp_path / "page.html", special_tokens=["0"]), "view=grid")

    def dark_pixels():
        return image_pixels(next(viewer.svg().iter(f"{SVG}image"))).mean(-1) < 128

    from_payload = dark_pixels()
    assert (from_payload == (np.eye(64) + np.eye(64)[::-1]).astype(bool)).all()
    viewer.frame.get_by_label("Hide special tokens").check()  # now it is computed in the browser
    viewer.settle()
    assert abs(dark_pixels().mean() - from_payload.mean()) < 0.02
