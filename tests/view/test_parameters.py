import xml.etree.ElementTree as ET

import numpy as np
import pytest

from samples import HOSTILE
from sightline.view import figures as pictures
from sightline.view import parameters as learned
from sightline.view.curves import curves

rng = np.random.default_rng(0)


def tiles(axes):
    return [np.asarray(image.get_array()) for image in axes.images]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_filters_of_one_channel_come_as_they_are_the_strongest_first():
    kernels = rng.normal(size=(11, 1, 3, 5))
    drawn = learned.filters(kernels)
    order = np.argsort(-np.linalg.norm(kernels.reshape(11, -1), axis=1))
    np.testing.assert_allclose(tiles(drawn.axes[0]), kernels[order, 0])
    assert drawn.axes[0].get_title() == "11 filters, strongest first"
    assert {image.get_clim()[0] + image.get_clim()[1] for image in drawn.axes[0].images} == {0}  # white is zero
    assert len({image.get_clim() for image in drawn.axes[0].images}) == 1  # all on one scale


def test_filters_of_three_channels_are_colored_around_grey():
    kernels = np.zeros((2, 3, 4, 4))
    kernels[1, 0] = 1.0
    strong, idle = tiles(learned.filters(kernels).axes[0])
    np.testing.assert_allclose(strong[0, 0], [1, 0.5, 0.5])
    np.testing.assert_allclose(idle, 0.5)


def test_of_many_filters_the_strongest_are_shown():
    kernels = np.arange(1.0, 201)[:, None, None, None] * np.ones((1, 1, 2, 2))
    drawn = learned.filters(kernels)
    shown = tiles(drawn.axes[0])
    assert len(shown) == learned.MOST_FILTERS
    assert shown[-1][0, 0] == 200 - learned.MOST_FILTERS + 1
    assert drawn.axes[0].get_title().startswith("the 144 strongest of 200")
    assert len(tiles(drawn.axes[1])) <= 4


def test_principal_components_are_those_of_the_covariance():
    rows = rng.normal(size=(40, 7)) * np.arange(1, 8)
    parts, shares = learned.components(rows)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    np.testing.assert_allclose(shares, values[::-1] / values.sum())
    for part, vector in zip(parts, vectors.T[::-1], strict=True):
        assert abs(part @ vector) / np.linalg.norm(part) == pytest.approx(1)
        assert part.max() == pytest.approx(np.abs(part).max()) == pytest.approx(1)


def test_the_position_table_is_drawn_as_it_is():
    table = rng.normal(size=(1 + 6, 5))
    drawn = learned.positions(table, (2, 3), before=1)
    left, right = drawn.axes[:2]
    np.testing.assert_allclose(left.images[0].get_array(), table)
    assert [label.get_text() for label in left.get_yticklabels()] == ["class token", "row 1", "row 2"]
    assert list(left.get_yticks()) == [0, 2, 5]  # the middle of each row's three
    assert {tile.shape for tile in tiles(right)} == {(2, 3)}


def test_each_position_is_compared_with_all_others_at_its_place():
    table = rng.normal(size=(1 + 6, 5))
    drawn = learned.similarity(table, (2, 3), before=1)
    (shown,) = tiles(drawn.axes[0])  # one picture, whatever the number of patches
    fine = 3
    assert shown.shape == (2 * (2 * fine + 1) - 1, 3 * (3 * fine + 1) - 1)
    for i in range(6):
        top, left = i // 3 * (2 * fine + 1), i % 3 * (3 * fine + 1)
        tile = shown[top : top + 2 * fine : fine, left : left + 3 * fine : fine]
        assert tile.flat[i] == pytest.approx(1)
        own, other = table[1 + i], table[1 + (i + 2) % 6]
        cosine = own @ other / np.linalg.norm(own) / np.linalg.norm(other)
        assert tile.flat[(i + 2) % 6] == pytest.approx(cosine)
    assert np.ma.getmaskarray(np.ma.masked_invalid(shown))[2 * fine].all()


def test_positions_that_are_zero_are_like_none():
    assert (learned.cosines(np.zeros((3, 4))) == 0).all()


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_masks_are_white_where_they_began(start):
    tables = start + rng.normal(size=(2, 3, 5, 5))
    ax = learned.masks(tables, start=start).axes[0]
    np.testing.assert_allclose(tiles(ax), tables.reshape(6, 5, 5))
    assert sum(ax.images[0].get_clim()) / 2 == pytest.approx(start)
    assert texts(ax) == ["block 0", "block 1", "head 0", "head 1", "head 2"]


def test_temperatures_are_printed_and_colored_by_how_they_changed():
    ax = learned.temperatures([[0.05, 0.1, 0.025]], start=0.05).axes[0]
    assert texts(ax)[:3] == ["0.0500", "0.100", "0.0250"]
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 1, -1]])


@pytest.mark.parametrize(("depth", "heads"), [(1, 1), (4, 4), (8, 12)])
def test_no_name_of_a_wall_is_cut_off_or_stands_on_another(depth, heads):
    for drawn in (
        learned.masks(rng.normal(size=(depth, heads, 3, 3)), title="Learned multiplicative masks: who looks at whom"),
        learned.temperatures(rng.uniform(0.01, 1, (depth, heads)), start=0.05),
    ):
        drawn.draw_without_rendering()
        ax = drawn.axes[0]
        words = [*ax.texts, *([*ax.get_xticklabels(), *ax.get_yticklabels()] if ax.axison else [])]
        boxes = [word.get_window_extent() for word in [*words, drawn._suptitle] if word.get_text()]
        for i, box in enumerate(boxes):
            assert drawn.bbox.x0 - 1 <= box.x0
            assert box.x1 <= drawn.bbox.x1 + 1
            assert not any(box.overlaps(other) for other in boxes[:i])


def test_what_cannot_be_drawn_is_answered_with_the_rule_and_the_value():
    with pytest.raises(ValueError, match=r"kernels must have shape \(N, 1 or 3, height, width\), got \(2, 2, 4, 4\)"):
        learned.filters(np.zeros((2, 2, 4, 4)))
    with pytest.raises(ValueError, match=r"table must have 1 \+ 2 x 3 rows, one for each position, got shape \(6, 4\)"):
        learned.positions(np.zeros((6, 4)), (2, 3), before=1)
    with pytest.raises(ValueError, match=r"tables must have shape \(L, H, Q, K\) without a zero, got \(2, 3, 3\)"):
        learned.masks(np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match="values must be positive and of shape"):
        learned.temperatures([[0.0]], start=1)
    with pytest.raises(ValueError, match="panels must each hold at least one line, got none"):
        curves({"loss": {}})


def test_curves_show_what_was_measured():
    drawn = curves({"loss": {"training": ([1, 2], [4, 3]), "validation": ([2], [5])}, "rate": {"": ([1], [1])}}, best=2)
    loss = drawn.axes[0]
    assert [line.get_xydata().tolist() for line in loss.lines[:2]] == [[[1, 4], [2, 3]], [[2, 5]]]
    assert loss.lines[2].get_xdata() == [2, 2]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "validation"]


def test_hostile_names_are_drawn_as_they_are_written(tmp_path):
    names = [*HOSTILE, "$x^2$", "a $ b", r"\alpha $\undefined$", "--><script>"]
    drawn = curves({name: {name: ([1], [1]), "other": ([1], [2])} for name in names}, title=names[-1])
    text = pictures.save(drawn, tmp_path / "hostile.svg").read_text()
    root = ET.fromstring(text)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert pictures.name("$x^2$") == r"\$x^2\$"
    assert pictures.name("a\n\x00b") == "a \ufffdb"
    assert pictures.name("猫" * 50, 10) == "猫" * 9 + "…"


def test_a_letter_no_font_has_is_a_box_and_no_warning(tmp_path):
    drawn = curves({"\U000e0100猫": {"x": ([1], [1])}})
    assert pictures.save(drawn, tmp_path / "cat.png").stat().st_size > 1000


def test_letters_of_other_scripts_take_what_is_installed(monkeypatch):
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["NanumGothic", "Comic Sans"])
    pictures._fonts.cache_clear()
    try:
        assert pictures._fonts() == [pictures.FONT, "NanumGothic"]
    finally:
        pictures._fonts.cache_clear()
