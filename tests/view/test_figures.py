import re

import pytest

from sightline.view import figures as pictures


def test_a_heat_map_shows_its_labels_and_numbers(tmp_path):
    drawn, axes = pictures.figure(size=(3, 2))
    pictures.heatmap(axes[0, 0], [[0.25, 0.75]], title="T", rows=["row"], columns=["a", "b"])
    path = pictures.save(drawn, tmp_path / "x" / "map.svg")
    assert path.read_text().startswith("<?xml")
    shown = [text.get_text() for text in axes[0, 0].texts]
    assert shown == ["0.25", "0.75"]
    assert [label.get_text() for label in axes[0, 0].get_xticklabels()] == ["a", "b"]


def test_numbers_are_left_out_where_there_are_too_many():
    _, axes = pictures.figure(size=(3, 2))
    pictures.heatmap(axes[0, 0], [[0.5] * 40] * 40)
    assert len(axes[0, 0].texts) == 0


def test_the_same_picture_is_the_same_file(tmp_path):
    for name in ("one.svg", "two.svg"):
        drawn, axes = pictures.figure(size=(3, 2))
        pictures.heatmap(axes[0, 0], [[0.25, 0.75]])
        pictures.save(drawn, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_bad_input_is_answered_with_the_rule_and_the_value(tmp_path):
    drawn, axes = pictures.figure(size=(3, 2))
    with pytest.raises(ValueError, match="weights must have at least one row and one column, got 0 rows"):
        pictures.heatmap(axes[0, 0], [])
    with pytest.raises(ValueError, match=re.escape("path must end in .png or .svg, got 'x.gif'")):
        pictures.save(drawn, tmp_path / "x.gif")
