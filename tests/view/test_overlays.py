import re
import warnings
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from samples import HOSTILE, weights
from sightline.attention import Record, AttentionMap
from sightline.view import figures as pictures
from sightline.view.overlays import looked_at, over_pixels, rollout

SVG = "{http://www.w3.org/2000/svg}"


def layers(depth=3, num_heads=2, size=7):
    return [weights(num_heads, size, size)[0].numpy() for _ in range(depth)]


def test_rollout_mixes_each_layer_with_the_identity_and_multiplies_upwards():
    low, high = layers(2)
    first, second = rollout([low, high])
    np.testing.assert_allclose(first, 0.5 * low.mean(0) + 0.5 * np.eye(7))
    np.testing.assert_allclose(second, (0.5 * high.mean(0) + 0.5 * np.eye(7)) @ first)
    np.testing.assert_allclose(second.sum(1), 1, rtol=1e-6)


def test_rollout_is_the_viewer_s(visitor, tmp_path):
    seen = [AttentionMap(name=f"layers.{i}", kind="encoder", weights=weights(3, 5, 5)) for i in range(3)]
    page = Record("Model", seen).save_html(tmp_path / "page.html")
    flows = rollout([one.weights[0].numpy() for one in seen])
    for layer, query, key in ((0, 1, 1), (1, 0, 4), (2, 3, 2), (2, 0, 0)):
        visitor.open(page, f"view=matrix&combine=rollout&layer={layer}&token={query}&key={key}")
        shown = float(re.search(rf": (\S+) · layer {layer}, rollout", visitor.status).group(1))
        assert shown == pytest.approx(flows[layer][query, key], abs=0.003)


def test_the_class_token_tells_what_is_looked_at_and_without_one_all_do():
    table = layers(1, size=7)[0]
    np.testing.assert_allclose(looked_at(table, (2, 3), before=1), table[:, 0, 1:].reshape(2, 2, 3))
    np.testing.assert_allclose(looked_at(table[:, 1:, 1:], (2, 3)), table[:, 1:, 1:].mean(1).reshape(2, 2, 3))


def test_every_head_and_the_rollout_lie_over_the_picture():
    maps = [np.random.default_rng(i).random((2, 3, 3)) for i in range(3)]
    flows = [np.random.default_rng(9 + i).random((3, 3)) for i in range(3)]
    picture = np.linspace(0, 1, 36).reshape(6, 6)
    ax = over_pixels(picture, maps, flows, words=["cat (90%)", "$x^2$"]).axes[0]
    shown = [np.asarray(image.get_array()) for image in ax.images]
    below, above, (alone,) = shown[:9], shown[9:18], shown[18:]
    for one in (*below, alone):
        np.testing.assert_allclose(one, picture)
    np.testing.assert_allclose(above[:6], np.concatenate(maps))
    np.testing.assert_allclose(above[6:], flows)
    for image, tile in zip(ax.images[9:18], above, strict=True):
        assert image.get_clim() == (0, tile.max())
    assert {"block 2", "head 1", "rollout", "cat (90%)", r"\$x^2\$"} <= {text.get_text() for text in ax.texts}


@pytest.mark.parametrize(("depth", "heads"), [(1, 1), (4, 4), (8, 12)])
def test_no_words_stand_on_one_another_or_are_cut_off(depth, heads):
    words = ["99.9% " + "wonderful " * 9, "i" * 90, "W" * 9, "猫" * 9]
    drawn = over_pixels(np.zeros((6, 6)), [np.ones((heads, 3, 3))] * depth, [np.ones((3, 3))] * depth, words=words)
    with warnings.catch_warnings(action="ignore"):
        drawn.draw_without_rendering()
    boxes = [text.get_window_extent() for text in drawn.axes[0].texts]
    for i, box in enumerate(boxes):
        assert box.x0 >= -1
        assert box.x1 <= drawn.bbox.x1 + 1
        assert box.y0 >= -1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_a_colored_picture_is_gray_and_small_under_its_maps():
    picture = np.random.default_rng(0).random((200, 200, 3))
    ax = over_pixels(picture, [np.ones((1, 2, 2))], [np.ones((2, 2))]).axes[0]
    assert np.asarray(ax.images[0].get_array()).shape == (100, 100)
    np.testing.assert_allclose(ax.images[-1].get_array(), picture)


def test_an_svg_holds_every_tile_as_sharp_as_it_is(tmp_path):
    drawn = over_pixels(np.zeros((6, 6)), [np.ones((2, 3, 3))] * 3, [np.ones((3, 3))] * 3, words=HOSTILE)
    root = ET.fromstring(pictures.save(drawn, tmp_path / "map.svg").read_text())
    sizes = [(image.get("width"), image.get("height")) for image in root.iter(f"{SVG}image")]
    assert sorted(sizes) == [("3", "3")] * 9 + [("6", "6")] * 10
    assert not list(root.iter(f"{SVG}script"))


def test_what_cannot_be_laid_over_a_picture_is_refused():
    with pytest.raises(
        ValueError, match=r"weights must have shape \(H, N, N\) with one N for all layers, got \(2, 5, 5"
    ):
        rollout([*layers(1), *layers(1, size=5)])
    with pytest.raises(ValueError, match="weights must be over 1 \\+ 2 x 2 places, got 7"):
        looked_at(layers(1)[0], (2, 2), before=1)
    with pytest.raises(ValueError, match=r"picture must have shape .* got \(3, 6, 6\)"):
        over_pixels(np.zeros((3, 6, 6)), [np.ones((1, 2, 2))], [np.ones((2, 2))])
    with pytest.raises(ValueError, match="flows must be 1, one for each block, and at least one, got 0"):
        over_pixels(np.zeros((6, 6)), [np.ones((1, 2, 2))], [])
