import xml.etree.ElementTree as ET

import numpy as np
import pytest

from samples import HOSTILE
from sightline.errors import SightlineError
from sightline.view import figures, parameters
from sightline.view.figures import curves

rng = np.random.default_rng(0)


def tiles(axes):
    return [np.asarray(image.get_array()) for image in axes.images]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_filters_of_one_channel_are_sorted_by_norm():
    kernels = rng.normal(size=(11, 1, 3, 5))
    fig = parameters.filters(kernels)
    order = np.argsort(-np.linalg.norm(kernels.reshape(11, -1), axis=1))
    np.testing.assert_allclose(tiles(fig.axes[0]), kernels[order, 0])
    assert fig.axes[0].get_title() == "11 filters, largest norm first"
    assert {image.get_clim()[0] + image.get_clim()[1] for image in fig.axes[0].images} == {0}  # zero is white
    assert len({image.get_clim() for image in fig.axes[0].images}) == 1  # one scale for all


def test_filters_of_three_channels_are_gray_at_zero():
    kernels = np.zeros((2, 3, 4, 4))
    kernels[1, 0] = 1.0
    red, zero = tiles(parameters.filters(kernels).axes[0])
    np.testing.assert_allclose(red[0, 0], [1, 0.5, 0.5])
    np.testing.assert_allclose(zero, 0.5)


def test_the_filters_with_the_largest_norms_are_shown():
    kernels = np.arange(1.0, 201)[:, None, None, None] * np.ones((1, 1, 2, 2))
    fig = parameters.filters(kernels)
    shown = tiles(fig.axes[0])
    assert len(shown) == parameters.MAX_FILTERS
    assert shown[-1][0, 0] == 200 - parameters.MAX_FILTERS + 1
    assert fig.axes[0].get_title().startswith("144 of 200 filters")
    assert len(tiles(fig.axes[1])) <= 4


def test_principal_components_are_eigenvectors():
    rows = rng.normal(size=(40, 7)) * np.arange(1, 8)
    components, shares = parameters.principal_components(rows)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    np.testing.assert_allclose(shares, values[::-1] / values.sum())
    for component, vector in zip(components, vectors.T[::-1], strict=True):
        assert abs(component @ vector) / np.linalg.norm(component) == pytest.approx(1)
        assert component.max() == pytest.approx(np.abs(component).max()) == pytest.approx(1)


def test_position_embeddings_are_drawn_as_a_heat_map():
    table = rng.normal(size=(1 + 6, 5))
    fig = parameters.positions(table, (2, 3), prefix_tokens=1)
    left, right = fig.axes[:2]
    np.testing.assert_allclose(left.images[0].get_array(), table)
    assert [label.get_text() for label in left.get_yticklabels()] == ["class token", "row 1", "row 2"]
    assert list(left.get_yticks()) == [0, 2, 5]  # the middle of each row's three
    assert {tile.shape for tile in tiles(right)} == {(2, 3)}


def test_each_map_is_the_similarity_to_one_position():
    table = rng.normal(size=(1 + 6, 5))
    fig = parameters.similarity(table, (2, 3), prefix_tokens=1)
    (shown,) = tiles(fig.axes[0])  # one image for all maps
    repeat = 3
    assert shown.shape == (2 * (2 * repeat + 1) - 1, 3 * (3 * repeat + 1) - 1)
    for i in range(6):
        top, left = i // 3 * (2 * repeat + 1), i % 3 * (3 * repeat + 1)
        tile = shown[top : top + 2 * repeat : repeat, left : left + 3 * repeat : repeat]
        assert tile.flat[i] == pytest.approx(1)
        position, other = table[1 + i], table[1 + (i + 2) % 6]
        cosine = position @ other / np.linalg.norm(position) / np.linalg.norm(other)
        assert tile.flat[(i + 2) % 6] == pytest.approx(cosine)
    assert np.ma.getmaskarray(np.ma.masked_invalid(shown))[2 * repeat].all()


def test_zero_embeddings_have_similarity_zero():
    assert (parameters.cosine_similarities(np.zeros((3, 4))) == 0).all()


@pytest.mark.parametrize("initial", [0.0, 1.0])
def test_masks_are_white_at_their_initial_value(initial):
    tables = initial + rng.normal(size=(2, 3, 5, 5))
    ax = parameters.masks(tables, initial=initial).axes[0]
    np.testing.assert_allclose(tiles(ax), tables.reshape(6, 5, 5))
    assert sum(ax.images[0].get_clim()) / 2 == pytest.approx(initial)
    assert texts(ax) == ["block 0", "block 1", "head 0", "head 1", "head 2"]


def test_temperatures_are_printed_and_colored_by_their_change():
    ax = parameters.temperatures([[0.05, 0.1, 0.025]], initial=0.05).axes[0]
    assert texts(ax)[:3] == ["0.0500", "0.100", "0.0250"]
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 1, -1]])


@pytest.mark.parametrize(("depth", "heads"), [(1, 1), (4, 4), (8, 12)])
def test_tile_labels_do_not_overlap_and_are_not_cut_off(depth, heads):
    for fig in (
        parameters.masks(
            rng.normal(size=(depth, heads, 3, 3)), title="Learned multiplicative masks (rows: queries, columns: keys)"
        ),
        parameters.temperatures(rng.uniform(0.01, 1, (depth, heads)), initial=0.05),
    ):
        fig.draw_without_rendering()
        ax = fig.axes[0]
        words = [*ax.texts, *([*ax.get_xticklabels(), *ax.get_yticklabels()] if ax.axison else [])]
        boxes = [word.get_window_extent() for word in [*words, fig._suptitle] if word.get_text()]
        for i, box in enumerate(boxes):
            assert fig.bbox.x0 - 1 <= box.x0
            assert box.x1 <= fig.bbox.x1 + 1
            assert not any(box.overlaps(other) for other in boxes[:i])


def test_invalid_shapes_are_refused():
    with pytest.raises(
        SightlineError, match=r"kernels must have shape \(N, 1 or 3, height, width\), got \(2, 2, 4, 4\)"
    ):
        parameters.filters(np.zeros((2, 2, 4, 4)))
    with pytest.raises(
        SightlineError, match=r"table must have 1 \+ 2 x 3 rows, one for each position, got shape \(6, 4\)"
    ):
        parameters.positions(np.zeros((6, 4)), (2, 3), prefix_tokens=1)
    with pytest.raises(SightlineError, match=r"tables must have shape \(L, H, Q, K\) without a zero, got \(2, 3, 3\)"):
        parameters.masks(np.zeros((2, 3, 3)))
    with pytest.raises(SightlineError, match="values must be positive and have shape"):
        parameters.temperatures([[0.0]], initial=1)
    with pytest.raises(SightlineError, match="panels must each contain at least one line, got none"):
        curves({"loss": {}})


def test_curves_show_the_given_values():
    fig = curves(
        {"loss": {"training": ([1, 2], [4, 3]), "validation": ([2], [5])}, "rate": {"": ([1], [1])}}, best_step=2
    )
    loss = fig.axes[0]
    assert [line.get_xydata().tolist() for line in loss.lines[:2]] == [[[1, 4], [2, 3]], [[2, 5]]]
    assert loss.lines[2].get_xdata() == [2, 2]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "validation"]


def test_names_are_escaped(tmp_path):
    names = [*HOSTILE, "$x^2$", "a $ b", r"\alpha $\underepeatd$", "--><script>"]
    fig = curves({name: {name: ([1], [1]), "other": ([1], [2])} for name in names}, title=names[-1])
    text = figures.save(fig, tmp_path / "hostile.svg").read_text()
    root = ET.fromstring(text)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert figures.short_label("$x^2$") == r"\$x^2\$"
    assert figures.short_label("a\n\x00b") == "a \ufffdb"
    assert figures.short_label("猫" * 50, 10) == "猫" * 9 + "…"


def test_missing_glyphs_give_no_warning(tmp_path):
    fig = curves({"\U000e0100猫": {"x": ([1], [1])}})
    assert figures.save(fig, tmp_path / "cat.png").stat().st_size > 1000


def test_installed_fallback_fonts_are_used(monkeypatch):
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["NanumGothic", "Comic Sans"])
    figures._fonts.cache_clear()
    try:
        assert figures._fonts() == [figures.FONT, "NanumGothic"]
    finally:
        figures._fonts.cache_clear()
