import warnings
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from browser import SVG, is_close
from samples import HOSTILE, record_of, weights
from sightline.errors import SightlineError
from sightline.view import figures
from sightline.view.heatmaps import LOOK
from sightline.view.plots import attention_overlay, patch_attention, rollout


def layers(depth=3, num_heads=2, size=7):
    return [weights(num_heads, size, size)[0].numpy() for _ in range(depth)]


def test_rollout_averages_with_the_identity_and_multiplies():
    lower, upper = layers(2)
    first, second = rollout([lower, upper])
    np.testing.assert_allclose(first, 0.5 * lower.mean(0) + 0.5 * np.eye(7))
    np.testing.assert_allclose(second, (0.5 * upper.mean(0) + 0.5 * np.eye(7)) @ first)
    np.testing.assert_allclose(second.sum(1), 1, rtol=1e-6)


def test_rollout_equals_that_of_the_viewer(viewer, tmp_path):
    record = record_of(*(weights(3, 5, 5) for _ in range(3)))
    page = record.save_html(tmp_path / "page.html")
    rollouts = rollout([m.weights[0].numpy() for m in record])
    for layer, query, key in ((0, 1, 1), (1, 0, 4), (2, 3, 2), (2, 0, 0)):
        viewer.open(page, f"view=matrix&combine=rollout&layer={layer}&query={query}&key={key}")
        assert viewer.status.endswith(f"layer {layer}, rollout")
        assert is_close(viewer.weight, rollouts[layer][query, key], rollouts[layer][query].max())


def test_patch_attention_is_that_of_the_class_token_or_the_mean():
    table = layers(1, size=7)[0]
    np.testing.assert_allclose(patch_attention(table, (2, 3), prefix_tokens=1), table[:, 0, 1:].reshape(2, 2, 3))
    np.testing.assert_allclose(patch_attention(table[:, 1:, 1:], (2, 3)), table[:, 1:, 1:].mean(1).reshape(2, 2, 3))


def test_every_head_and_the_rollout_are_drawn_over_the_image():
    maps = [np.random.default_rng(i).random((2, 3, 3)) for i in range(3)]
    rollouts = [np.random.default_rng(9 + i).random((3, 3)) for i in range(3)]
    image = np.linspace(0, 1, 36).reshape(6, 6)
    ax = attention_overlay(image, maps, rollouts, caption=["cat (90%)", "$x^2$"]).axes[0]
    drawn = [np.asarray(artist.get_array()) for artist in ax.images]
    below, above, (original,) = drawn[:9], drawn[9:18], drawn[18:]
    for tile in (*below, original):
        np.testing.assert_allclose(tile, image)
    np.testing.assert_allclose(above[:6], np.concatenate(maps))
    np.testing.assert_allclose(above[6:], rollouts)
    for artist, tile in zip(ax.images[9:18], above, strict=True):
        assert artist.get_clim() == (0, tile.max())
    assert {"block 2", "head 1", "rollout", "cat (90%)", r"\$x^2\$"} <= {text.get_text() for text in ax.texts}


@pytest.mark.parametrize(("depth", "heads"), [(1, 1), (4, 4), (8, 12)])
def test_texts_do_not_overlap_and_are_not_cut_off(depth, heads):
    words = ["99.9% " + "wonderful " * 9, "i" * 90, "W" * 9, "猫" * 9]
    drawn = attention_overlay(
        np.zeros((6, 6)), [np.ones((heads, 3, 3))] * depth, [np.ones((3, 3))] * depth, caption=words
    )
    with warnings.catch_warnings(action="ignore"):
        drawn.draw_without_rendering()
    boxes = [text.get_window_extent() for text in drawn.axes[0].texts]
    for i, box in enumerate(boxes):
        assert box.x0 >= -1
        assert box.x1 <= drawn.bbox.x1 + 1
        assert box.y0 >= -1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_color_images_keep_their_colors_where_weights_are_high():
    image = np.random.default_rng(0).random((200, 210, 3))
    weights = np.array([[0.0, 0.25], [0.5, 1.0]])
    ax = attention_overlay(image, [weights[None]], [weights]).axes[0]
    np.testing.assert_allclose(ax.images[0].get_array(), image.reshape(100, 2, 105, 2, 3).mean((1, 3)))
    np.testing.assert_allclose(ax.images[-1].get_array(), image)
    for veil in ax.images[2:4]:
        colors = veil.to_rgba(veil.get_array())
        assert not colors[..., :3].any()
        np.testing.assert_allclose(colors[..., 3], 1 - weights**LOOK.gamma, atol=0.005)


def test_gray_images_have_a_heat_map_over_them():
    ax = attention_overlay(np.zeros((6, 6)), [np.array([[[0.0, 1.0]]])], [np.ones((1, 2))]).axes[0]
    (low, high), _ = (heat.to_rgba(heat.get_array())[0] for heat in ax.images[2:4])
    assert low[:3].max() < 0.1 < 0.5 < high[:3].min()
    assert low[3] == high[3] == 0.65


def test_svg_files_contain_every_tile_without_resampling(tmp_path):
    drawn = attention_overlay(np.zeros((6, 6)), [np.ones((2, 3, 3))] * 3, [np.ones((3, 3))] * 3, caption=HOSTILE)
    root = ET.fromstring(figures.save(drawn, tmp_path / "map.svg").read_text())
    sizes = [(image.get("width"), image.get("height")) for image in root.iter(f"{SVG}image")]
    assert sorted(sizes) == [("3", "3")] * 9 + [("6", "6")] * 10
    assert not list(root.iter(f"{SVG}script"))


def test_invalid_shapes_are_refused():
    with pytest.raises(
        ValueError, match=r"weights must have shape \(H, N, N\) with the same N in all layers, got \(2, 5, 5"
    ):
        rollout([*layers(1), *layers(1, size=5)])
    with pytest.raises(SightlineError, match="weights must have 1 \\+ 2 x 2 positions, got 7"):
        patch_attention(layers(1)[0], (2, 2), prefix_tokens=1)
    with pytest.raises(SightlineError, match=r"image must have shape .* got \(3, 6, 6\)"):
        attention_overlay(np.zeros((3, 6, 6)), [np.ones((1, 2, 2))], [np.ones((2, 2))])
    with pytest.raises(SightlineError, match="rollouts must have one entry for each of the 1 blocks, got 0"):
        attention_overlay(np.zeros((6, 6)), [np.ones((1, 2, 2))], [])
