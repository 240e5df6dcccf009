import pytest

from sightline.files import atomic_write


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_write(path) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as part:
        part.write_text("half \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
