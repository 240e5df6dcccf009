import io
import os
import tracemalloc
import warnings
import zipfile

import pytest

from class_folders import png, write_zip
from sightline import limits
from sightline.data.images.archives import Archive, open_archive
from sightline.errors import SightlineError


def test_files_are_listed_and_read_without_hidden_ones(tmp_path):
    files = {"b/2.png": b"two", "a/1.png": b"one", "__MACOSX/a/1.png": b"x", "a/.DS_Store": b"x", "c/": b""}
    archive = Archive(write_zip(tmp_path / "x.zip", files))
    assert archive.files == ["a/1.png", "b/2.png"]
    assert archive.read("b/2.png") == b"two"


def test_an_archive_is_opened_once_until_it_changes(tmp_path):
    path = write_zip(tmp_path / "x.zip", {"a/1.png": b"one"})
    first = open_archive(path)
    assert open_archive(path) is first
    write_zip(path, {"a/2.png": b"two"})
    os.utime(path, ns=(1, 1))
    assert open_archive(path).files == ["a/2.png"]


@pytest.mark.parametrize("name", ["../a.png", "a/../../b.png", "/etc/a.png", "C:/a.png", "a//b.png", "a/./b.png"])
def test_unsafe_paths_are_rejected(name, tmp_path):
    write_zip(tmp_path / "x.zip", {name: b""})
    with pytest.raises(SightlineError, match=r"entries of .*x\.zip must be relative paths, got"):
        Archive(tmp_path / "x.zip")


def test_a_backslash_is_rejected(tmp_path):
    write_zip(tmp_path / "x.zip", {"a\\b.png": b""})
    with pytest.raises(SightlineError, match="must be relative paths"):
        Archive(tmp_path / "x.zip")


def test_duplicate_files_are_rejected(tmp_path):
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a/b.png", b"1")
        archive.writestr("a/b.png", b"2")
    with pytest.raises(SightlineError, match=r"must have each file once, got 'a/b\.png' twice"):
        Archive(tmp_path / "x.zip")


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_ARCHIVE_ENTRIES", r"must have at most 2 entries, got 3"),
        ("MAX_ARCHIVE_BYTES", r"must decompress to at most 2 bytes, got 15"),
        ("MAX_IMAGE_BYTES", r"a/0\.png in .* must be at most 2 bytes, got 5"),
    ],
)
def test_limits_are_checked_before_reading(limit, message, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, limit, 2)
    write_zip(tmp_path / "x.zip", {f"a/{number}.png": b"12345" for number in range(3)})
    with pytest.raises(SightlineError, match=message):
        Archive(tmp_path / "x.zip")


def test_a_file_larger_than_declared_is_not_decompressed(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.png", bytes(1 << 26))
    data = stream.getvalue().replace((1 << 26).to_bytes(4, "little"), (1009).to_bytes(4, "little"))
    (tmp_path / "x.zip").write_bytes(data)
    archive = Archive(tmp_path / "x.zip")
    tracemalloc.start()
    with pytest.raises(SightlineError, match=r"a/b\.png in .* must be intact"):
        archive.read("a/b.png")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_types_are_rejected(kind, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", kind) as archive:
        archive.writestr("a/b.png", png())
    with pytest.raises(SightlineError, match=r"a/b\.png in .* must be stored or deflated, got compression type"):
        Archive(tmp_path / "x.zip")


def test_damaged_files_are_rejected(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK, but not a zip file")
    with pytest.raises(SightlineError, match=r"x\.zip must be a complete zip file, got"):
        Archive(tmp_path / "x.zip")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/b.png", png())
    data = bytearray(stream.getvalue())
    data[45] ^= 255
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(SightlineError, match=r"a/b\.png in .* must be intact"):
        Archive(tmp_path / "x.zip").read("a/b.png")
