"""Heat maps over pictures, in figures and on pages."""

import re

import numpy as np
import pytest

from sightline.view import heatmaps
from sightline.view.figures import figure
from sightline.view.page import read_static

VALUES = np.array([[0.0, 2.0, 0.1], [0.0, -1.0, 0.0]])


def test_cells_of_little_effect_are_dimmed_and_keep_their_color():
    picture = np.full((12, 18, 3), (200, 100, 50), dtype=np.uint8)
    dimmed = heatmaps.dim(picture, VALUES, 2.0, side=90).astype(float)
    assert dimmed.shape == (60, 90, 3)
    centers = dimmed[15::30, 15::30]
    assert centers[0, 1] == pytest.approx((200, 100, 50), abs=4)
    assert centers[1, 0] == pytest.approx((1 - heatmaps.LOOK.veil) * np.array((200, 100, 50)), abs=4)
    brightness = centers.sum(2)
    assert brightness[0, 1] > brightness[1, 1] > brightness[0, 2] > brightness[1, 0]  # the sign does not matter
    assert dimmed[..., 0] == pytest.approx(2 * dimmed[..., 1], abs=2)  # a veil does not change the hue


def test_maps_on_one_scale_can_be_compared():
    picture = np.full((8, 8), 255, dtype=np.uint8)
    strong, weak = (heatmaps.dim(picture, np.full((2, 2), value), 0.85, side=8) for value in (0.85, 0.02))
    assert strong.min() == 255
    assert weak.max() < 255 * (1 - 0.85 * heatmaps.LOOK.veil)
    assert heatmaps.common_scale([VALUES, None, 3 * VALUES]) == 6
    assert heatmaps.common_scale([None]) == 0


def test_picture_without_a_map_is_not_dimmed():
    picture = np.full((4, 4), 9, dtype=np.uint8)
    assert (heatmaps.dim(picture, None, 1.0, side=8) == 9).all()
    assert (heatmaps.dim(picture, np.zeros((2, 2)), 0.0, side=8) == round(9 * (1 - heatmaps.LOOK.veil))).all()


def test_outline_encloses_marked_cells():
    marked = np.array([[True, True], [False, False]])
    edges = heatmaps.outline(marked)
    assert len(edges) == len(set(edges)) == 6
    assert ((0, 1), (1, 1)) not in edges  # between two marked cells
    assert heatmaps.outline(np.zeros((2, 2), dtype=bool)) == []


def test_figure_outlines_cells_for_and_against():
    axes = figure(size=(2, 2))[1]
    heatmaps.draw(axes[0, 0], np.zeros((6, 9), dtype=np.uint8), VALUES, 2.0, side=18)
    styles = {(line.get_color(), line.get_linestyle()) for line in axes[0, 0].lines}
    assert styles == {(heatmaps.FOR_COLOR, "-"), (heatmaps.AGAINST_COLOR, "--")}
    assert len(axes[0, 0].lines) == 8  # one cell each


def test_pages_and_figures_have_the_same_colors():
    colors = re.search(r"--for: (#\w+); --against: (#\w+);", read_static("heat-map.css")).groups()
    assert colors == (heatmaps.FOR_COLOR, heatmaps.AGAINST_COLOR)
