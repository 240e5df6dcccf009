import re

import pytest

from sightline.errors import SightlineError
from sightline.view import figures


def test_heat_maps_have_labels_and_numbers(tmp_path):
    fig, axes = figures.figure(size=(3, 2))
    figures.heatmap(axes[0, 0], [[0.25, 0.75]], title="T", row_labels=["row"], column_labels=["a", "b"])
    path = figures.save(fig, tmp_path / "x" / "map.svg")
    assert path.read_text().startswith("<?xml")
    assert [text.get_text() for text in axes[0, 0].texts] == ["0.25", "0.75"]
    assert [label.get_text() for label in axes[0, 0].get_xticklabels()] == ["a", "b"]


def test_large_heat_maps_have_no_numbers():
    _, axes = figures.figure(size=(3, 2))
    figures.heatmap(axes[0, 0], [[0.5] * 40] * 40)
    assert len(axes[0, 0].texts) == 0


def test_svg_files_are_reproducible(tmp_path):
    for name in ("one.svg", "two.svg"):
        fig, axes = figures.figure(size=(3, 2))
        figures.heatmap(axes[0, 0], [[0.25, 0.75]])
        figures.save(fig, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_invalid_input_is_refused(tmp_path):
    fig, axes = figures.figure(size=(3, 2))
    with pytest.raises(SightlineError, match="weights must have at least one row and one column, got 0 rows"):
        figures.heatmap(axes[0, 0], [])
    with pytest.raises(SightlineError, match=re.escape("path must end in .png or .svg, got 'x.gif'")):
        figures.save(fig, tmp_path / "x.gif")


def test_numbers_of_a_heatmap_have_two_digits_of_the_largest():
    for weights, texts in (
        ([[0.0021, 0.00049]], ["0.0021", "0.0005"]),
        ([[0.25, -0.001]], ["0.25", "0.00"]),
        ([[0.0, 0.0]], ["0.00", "0.00"]),
    ):
        _, axes = figures.figure(1, 1, size=(2, 1))
        figures.heatmap(axes[0, 0], weights)
        assert [text.get_text() for text in axes[0, 0].texts] == texts
