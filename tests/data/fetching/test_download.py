"""Downloads from a server that breaks connections, sends other files, or redirects."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from file_server import public_file
from sightline import limits
from sightline.data.fetching import download
from sightline.data.fetching.download import obtain
from sightline.errors import SightlineError

DATA = bytes(range(256)) * 40


def test_a_file_is_downloaded_and_reports_its_progress(server, tmp_path):
    seen = []
    path = obtain(public_file(server, "a.bin", DATA), tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "a.bin"
    assert path.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]
    assert obtain(public_file(server, "a.bin", DATA), tmp_path) == path
    assert len(server.requests) == 1


def test_a_broken_connection_is_continued(server, tmp_path):
    server.breaks = [1000, 2000]
    assert obtain(public_file(server, "a.bin", DATA), tmp_path).read_bytes() == DATA
    assert [start for _, start in server.requests] == [None, "bytes=1000-", "bytes=3000-"]


def test_a_download_that_was_killed_is_continued_by_the_next(server, tmp_path):
    file = public_file(server, "a.bin", DATA)
    (tmp_path / "a.bin.part").write_bytes(DATA[:700])
    assert obtain(file, tmp_path).read_bytes() == DATA
    assert server.requests == [("a.bin", "bytes=700-")]


def test_a_server_without_ranges_sends_the_file_again(server, tmp_path):
    server.breaks, server.has_ranges = [1000], False
    assert obtain(public_file(server, "a.bin", DATA), tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("part", [b"x" * 700, b"x" * len(DATA), b"x" * (len(DATA) + 1)])
def test_a_part_of_another_file_is_downloaded_again(server, tmp_path, part):
    (tmp_path / "a.bin.part").write_bytes(part)
    assert obtain(public_file(server, "a.bin", DATA), tmp_path).read_bytes() == DATA


def test_a_complete_part_of_unknown_size_is_used(server, tmp_path):
    file = replace(public_file(server, "a.bin", DATA), size=None)
    (tmp_path / "a.bin.part").write_bytes(DATA)
    assert obtain(file, tmp_path).read_bytes() == DATA
    assert server.requests == [("a.bin", f"bytes={len(DATA)}-")]


def test_a_file_that_changes_is_never_continued(server, tmp_path):
    file = public_file(server, "a.bin", DATA, pinned=False)
    (tmp_path / "a.bin.part").write_bytes(b"old")
    assert obtain(file, tmp_path).read_bytes() == DATA
    assert server.requests == [("a.bin", None)]


def test_a_file_with_another_digest_is_refused_and_removed(server, tmp_path):
    file = public_file(server, "a.bin", DATA)
    server.files["a.bin"] = bytes(len(DATA))
    with pytest.raises(SightlineError, match=r"must have the sha256 digest \w+, got \w+; the address has another"):
        obtain(file, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("declares_length", [True, False])
@pytest.mark.parametrize("data", [DATA + b"x", DATA * 10])
def test_a_larger_file_is_refused(server, tmp_path, data, declares_length):
    file = public_file(server, "a.bin", DATA)
    server.files["a.bin"], server.declares_length = data, declares_length
    with pytest.raises(SightlineError, match=r"must have 10,240 bytes, got [\d,]+( or more)?; the address "):
        obtain(file, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_of_unknown_size_is_bounded_in_size_and_memory(server, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_DOWNLOAD_BYTES", 1 << 19)
    file = public_file(server, "a.bin", bytes(1 << 21), pinned=False)
    server.declares_length = False
    with pytest.raises(SightlineError, match="must have at most 524,288 bytes"):
        obtain(file, tmp_path)
    monkeypatch.setattr(limits, "MAX_DOWNLOAD_BYTES", 1 << 25)
    gc.collect()
    tracemalloc.start()
    obtain(file, tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_shorter_file_is_refused(server, tmp_path):
    file = public_file(server, "a.bin", DATA)
    server.files["a.bin"] = DATA[:500]
    with pytest.raises(SightlineError, match="must have 10,240 bytes, got 500; the address has another file"):
        obtain(file, tmp_path)
    assert not list(tmp_path.iterdir())


def test_connections_that_end_too_early_are_an_error_that_keeps_the_part(server, tmp_path):
    file = public_file(server, "a.bin", DATA)
    server.breaks = [500, 0, 0, 0, 0]
    with pytest.raises(SightlineError, match=r"must be reachable, got an error: .*; run the command again to continue"):
        obtain(file, tmp_path)
    assert (tmp_path / "a.bin.part").read_bytes() == DATA[:500]


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(server, tmp_path):
    file = public_file(server, "a.bin", DATA)
    server.statuses = [503, 500]
    assert obtain(file, tmp_path).read_bytes() == DATA
    server.requests.clear()
    with pytest.raises(SightlineError, match=r"b\.bin must be a file, got HTTP status 404"):
        obtain(replace(file, address=f"{server.address}/b.bin"), tmp_path)
    assert len(server.requests) == 1


def test_an_unreachable_server_is_an_error(server, tmp_path):
    file = replace(public_file(server, "a.bin", DATA), address="http://127.0.0.1:9/a.bin")
    with pytest.raises(SightlineError, match=r"127\.0\.0\.1:9/a\.bin must be reachable, got an error: .*refused"):
        obtain(file, tmp_path)


def test_redirects_lead_to_http_addresses_only(server, tmp_path):
    file = public_file(server, "a.bin", DATA)
    server.redirects["b.bin"] = f"{server.address}/a.bin"
    assert obtain(replace(file, address=f"{server.address}/b.bin"), tmp_path).read_bytes() == DATA
    server.redirects["c.bin"] = "file:///etc/passwd"
    with pytest.raises(SightlineError, match="must be a file, got HTTP status 302"):
        obtain(replace(file, address=f"{server.address}/c.bin"), tmp_path)


def test_a_redirect_from_https_to_http_is_refused():
    request = download.urllib.request.Request("https://example.org/a")
    with pytest.raises(SightlineError, match=r"must redirect to an HTTPS address, got 'http://example\.org/a'"):
        download._Redirects().redirect_request(request, None, 302, "", {}, "http://example.org/a")


def test_a_mirror_is_a_folder_or_an_address(server, tmp_path):
    file = replace(public_file(server, "a.bin", DATA), address="http://127.0.0.1:9/a.bin")
    assert obtain(file, tmp_path, f"{server.address}/copies/").read_bytes() == DATA
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with pytest.raises(SightlineError, match=r"mirror must be a folder with a file a\.bin, got "):
        obtain(file, tmp_path, str(mirror))
    (mirror / "a.bin").write_bytes(DATA[:-1])
    with pytest.raises(SightlineError, match="must have 10,240 bytes, got 10,239; download it again"):
        obtain(file, tmp_path, str(mirror))
    (mirror / "a.bin").write_bytes(DATA)
    assert obtain(file, tmp_path, str(mirror)) == mirror / "a.bin"
