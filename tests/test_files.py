import pytest

from sightline.files import whole


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "a.txt"
    with whole(path) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), whole(path) as part:
        part.write_text("half \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
