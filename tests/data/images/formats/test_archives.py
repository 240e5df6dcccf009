import io
import tracemalloc
import warnings
import zipfile

import pytest

from class_folders import png, write_zip
from sightline.data.images.formats import archives
from sightline.data.images.formats.archives import opened


def test_files_are_listed_and_read_and_hidden_ones_passed_over(tmp_path):
    files = {"b/2.png": b"two", "a/1.png": b"one", "__MACOSX/a/1.png": b"x", "a/.DS_Store": b"x", "c/": b""}
    with opened(write_zip(tmp_path / "x.zip", files)) as archive:
        assert archive.files == ["a/1.png", "b/2.png"]
        assert archive.read("b/2.png") == b"two"


@pytest.mark.parametrize("name", ["../a.png", "a/../../b.png", "/etc/a.png", "C:/a.png", "a//b.png", "a/./b.png"])
def test_a_name_that_leads_elsewhere_is_refused(name, tmp_path):
    write_zip(tmp_path / "x.zip", {name: b""})
    with (
        pytest.raises(ValueError, match=r"names in .*x\.zip must be plain paths below it, got"),
        opened(tmp_path / "x.zip"),
    ):
        pass


def test_a_backslash_is_refused(tmp_path):
    write_zip(tmp_path / "x.zip", {"a\\b.png": b""})
    with pytest.raises(ValueError, match="must be plain paths below it"), opened(tmp_path / "x.zip"):
        pass


def test_a_file_twice_is_refused(tmp_path):
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a/b.png", b"1")
        archive.writestr("a/b.png", b"2")
    with pytest.raises(ValueError, match=r"must hold each file once, got 'a/b\.png' twice"), opened(tmp_path / "x.zip"):
        pass


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ("MOST_ENTRIES", r"must hold at most 2 entries, got 3"),
        ("MOST_TOTAL", r"must unpack to at most 2 bytes, got 15"),
        ("MOST_BYTES", r"a/0\.png in .* must be at most 2 bytes, got 5"),
    ],
)
def test_what_is_too_much_is_refused_before_it_is_read(bound, message, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, bound, 2)
    write_zip(tmp_path / "x.zip", {f"a/{number}.png": b"12345" for number in range(3)})
    with pytest.raises(ValueError, match=message), opened(tmp_path / "x.zip"):
        pass


def test_what_unpacks_to_more_than_it_says_is_cut_short(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.png", bytes(1 << 26))
    data = stream.getvalue().replace((1 << 26).to_bytes(4, "little"), (1009).to_bytes(4, "little"))
    (tmp_path / "x.zip").write_bytes(data)
    tracemalloc.start()
    with opened(tmp_path / "x.zip") as archive, pytest.raises(ValueError, match=r"a/b\.png in .* must be whole"):
        archive.read("a/b.png")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 22


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_can_only_be_unpacked_all_at_once_is_refused(kind, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", kind) as archive:
        archive.writestr("a/b.png", png())
    with pytest.raises(ValueError, match=r"a/b\.png in .* must be stored or deflated, got"), opened(tmp_path / "x.zip"):
        pass


def test_what_is_no_zip_or_torn_is_refused(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK, or so it says")
    with pytest.raises(ValueError, match=r"x\.zip must be a whole zip file, got"), opened(tmp_path / "x.zip"):
        pass
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/b.png", png())
    data = bytearray(stream.getvalue())
    data[45] ^= 255
    (tmp_path / "x.zip").write_bytes(data)
    with opened(tmp_path / "x.zip") as archive, pytest.raises(ValueError, match=r"a/b\.png in .* must be whole"):
        archive.read("a/b.png")
