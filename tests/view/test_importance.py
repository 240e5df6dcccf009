"""Relevance and the importance of heads on a page."""

import json
import re

import pytest
import torch

from browser import SVG, is_close
from samples import WORDS, AttentionMap, record_of, weights
from sightline.errors import SightlineError
from sightline.view.importance import read_importance
from sightline.view.maps import Map

TARGETS = ("cat", "dog", "cat, not dog")


def relevance_of(keys, kind="encoder"):
    rows = torch.rand(1, 1, len(TARGETS), keys)
    rows[0, 0, 0, 2] = 3.0
    fields = {"measure": "relevance", "heads": (), "queries": TARGETS}
    return AttentionMap(name="relevance", kind=kind, weights=rows, **fields)


def layers_of(page):
    return json.loads(re.search(r'id="sightline-meta">(.*?)</script>', page.html).group(1))["examples"][0]


def test_a_page_opens_on_the_relevance_of_each_target(viewer, encoder, tmp_path):
    relevance = relevance_of(7)
    record = encoder + record_of()
    record.maps.append(relevance)
    viewer.open(record.save_html(tmp_path / "page.html", WORDS))
    assert viewer.frame.get_by_label("Attention", exact=True).input_value() == "relevance"
    assert {*TARGETS, *WORDS} <= set(viewer.words())
    viewer.click("cat, not dog")
    row = relevance.weights[0, 0, 2]
    assert viewer.weights[0][0] == WORDS[int(row.argmax())]
    assert is_close(viewer.weights[0][1], row.max(), row.max())
    assert viewer.status.endswith("· relevance")
    assert viewer.tabs == ["Heads", "Grid", "Matrix", "Alignment"]
    viewer.choose("Attention", "Encoder")
    assert viewer.frame.get_by_label("Combine").locator("option[value=rollout]").is_enabled()


def test_relevance_is_shown_over_the_image(viewer, vit, photo, tmp_path):
    vit.maps.append(relevance_of(17))
    viewer.open(vit.save_html(tmp_path / "page.html", images=photo))
    assert (viewer.view, viewer.state.get("layer")) == ("image", "2")
    words = viewer.words()
    assert "Relevance for “cat”" in words
    assert "Targets" in words
    viewer.click("dog")
    assert "Relevance for “dog”" in viewer.words()


def test_relevance_of_a_decoder_has_the_tokens_of_the_target(translator):
    translator.maps.append(relevance_of(7, kind="decoder"))
    translator.maps.append(relevance_of(5))
    page = translator.view()
    over_target, over_source = layers_of(page)["layers"][-2:]
    assert over_target["sequences"] == ["targets: cat, dog, cat, not dog", "target"]
    assert over_source["sequences"][1] == "source"
    assert layers_of(page)["targets: cat, dog, cat, not dog"]["tokens"] == list(TARGETS)


def test_the_grid_shows_how_much_each_head_matters(viewer, encoder, tmp_path):
    importance = {"layers.1": torch.tensor([0.1, -0.2, 0.4, 0.0, 0.05])}
    viewer.open(encoder.save_html(tmp_path / "page.html", WORDS, importance=importance), "view=grid")
    assert [name for name, _ in viewer.weights][:2] == ["encoder 1, head 2", "encoder 1, head 0"]
    assert [value for _, value in viewer.weights] == ["+0.400", "+0.100", "+0.0500", "+0.00", "\u22120.200"]
    svg = viewer.svg()
    bars = [float(rect.get("width")) for rect in svg.iter(f"{SVG}rect") if rect.get("height") == "4"]
    side = float(next(svg.iter(f"{SVG}image")).get("width"))
    assert bars == pytest.approx([side / 4, side / 2, side, 1, side / 8], abs=0.01)
    viewer.press("ArrowRight", "ArrowRight", "ArrowDown")
    assert viewer.status.endswith("without it, the target rises by 0.200")


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        ([1.0], "importance must be a dict of layer names, got list"),
        ({"layers.7": [1.0]}, "importance must be of layers of the record, got layers.7"),
        ({"layers.0": [1.0, 2.0]}, "importance must have one number for each head of layers.0, got 2"),
        ({"layers.0": ["x"] * 3}, "importance must be numbers, one for each head of layers.0"),
        ({"layers.0": [float("nan")] * 3}, "importance must be finite, got NaN or infinity in layers.0"),
    ],
)
def test_invalid_importance_is_refused(importance, message):
    with pytest.raises(SightlineError, match=message):
        record_of(weights(3, 5, 5)).view(importance=importance)


def test_importance_of_selected_heads_and_calls():
    m = Map(name="layers.0, call 1 of 2", kind="encoder", weights=weights(2, 5, 5).numpy(), heads=(0, 2))
    mean = Map(name="layers.0", kind="encoder", weights=weights(1, 5, 5).numpy(), heads=())
    assert read_importance({"layers.0": [0.5, 0.25, 0.125]}, [m, mean]) == [[0.5, 0.125], None]
