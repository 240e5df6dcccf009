"""Tar archives: hostile names, links, bombs and damage."""

import gzip
import tarfile

import pytest

from archives import tar_gz
from sightline import limits
from sightline.data.fetching.unpacking import tar_files
from sightline.errors import SightlineError


def read_all(tmp_path, data):
    (tmp_path / "a.tgz").write_bytes(data)
    return {entry.name: entry.read(1 << 20) for entry in tar_files(tmp_path / "a.tgz")}


def test_files_are_read_in_order(tmp_path):
    files = {"a/b.txt": b"1", "a/c.txt": b"22", "d": b""}
    assert read_all(tmp_path, tar_gz(files)) == files


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a\\..\\b", "a//b"])
def test_names_outside_the_archive_are_refused(tmp_path, name):
    with pytest.raises(SightlineError, match="entries must be relative paths"):
        read_all(tmp_path, tar_gz({name: b"x"}))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with pytest.raises(SightlineError, match="entries must be files and folders, got another kind: a/b"):
        read_all(tmp_path, tar_gz({"a/b": b""}, kind=kind))


def test_bombs_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(SightlineError, match="it must unpack to at most 1,000 bytes, got more"):
        read_all(tmp_path, tar_gz({"a": bytes(600), "b": bytes(600)}))
    monkeypatch.setattr(limits, "MAX_ARCHIVE_ENTRIES", 2)
    with pytest.raises(SightlineError, match="it must have at most 2 entries"):
        read_all(tmp_path, tar_gz(dict.fromkeys("abc", b"")))


def test_a_large_header_is_refused_before_it_is_read(tmp_path):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    with pytest.raises(SightlineError, match="a header must have at most 65,536 bytes, got 1,099,511,627,776"):
        read_all(tmp_path, gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"PK" + data[2:], lambda _: b""])
def test_a_damaged_archive_is_an_error(tmp_path, damage):
    data = tar_gz({"a": bytes(range(256)) * 50})
    with pytest.raises(SightlineError, match=r"a\.tgz must be (a )?complete.*, got an error: "):
        read_all(tmp_path, damage(data))
