import pytest
import torch

from sightline.data import load
from sightline.data.images import glyphs
from sightline.data.images import loading as images


def test_a_name_is_enough():
    splits = load("glyphs")
    assert splits.kind == "glyphs"
    assert torch.equal(splits.train.pixels, glyphs.splits().train.pixels)


def test_a_named_set_is_brought_to_the_form_asked_for():
    splits = load("glyphs", size=16, channels=3)
    for part in (splits.train, splits.validation, splits.test):
        assert part.pixels.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize("source", ["glyhps", "/no/such/folder", "a\0b"])
def test_a_source_that_is_not_there_is_refused(source):
    with pytest.raises(ValueError, match=r"a data set must be a path that is there, or one of glyphs, got"):
        load(source)


def test_a_misspelt_name_is_put_right():
    with pytest.raises(ValueError, match=r"did you mean 'glyphs'\?"):
        load("glyhps")


def test_what_is_not_recognized_is_told_the_formats(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    for source in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match=r"a data set must be one of these:") as error:
            load(source)
        assert all(text in str(error.value) for text in images.FORMATS)
        assert str(source) in str(error.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"size": -1}, "size must be an integer of at least 1, got -1"),
        ({"channels": 2}, "channels must be 1"),
        ({"keep_in_memory": -1}, "keep_in_memory must be an integer of at least 0"),
    ],
)
def test_impossible_wishes_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        load("glyphs", **asked)
