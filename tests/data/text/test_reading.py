import gzip
import io

import pytest

from sightline import limits
from sightline.data.text.reading import STDIN, iter_lines, stream_lines
from sightline.errors import SightlineError


def read_lines(path):
    return list(iter_lines(path))


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture(params=["file", "stream"])
def parse(request, tmp_path):
    """Reads the lines of bytes from a file or from a stream."""

    def parse(data):
        if request.param == "stream":
            return list(stream_lines(io.BytesIO(data), "x.txt"))
        return read_lines(write(tmp_path / "x.txt", data))

    return parse


def test_only_line_feeds_end_lines(parse):
    assert parse("a\r\n\nb\u2028c\x85d\n e".encode()) == ["a", "", "b\u2028c\x85d", " e"]
    assert parse(b"a\nb\n") == ["a", "b"]
    assert parse(b"") == []


def test_gzip_files_are_decompressed(tmp_path):
    assert read_lines(write(tmp_path / "x.txt.gz", b"a\nb")) == ["a", "b"]


def test_a_byte_order_mark_is_removed(parse):
    assert parse(b"\xef\xbb\xbfGeh.\n\xef\xbb\xbf") == ["Geh.", "\ufeff"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_other_unicode_encodings_are_named(parse, encoding):
    with pytest.raises(SightlineError, match=f"x.txt must be UTF-8, got {encoding.upper()}; convert it: iconv .* >"):
        parse("Geh.\n".encode(encoding))


def test_invalid_bytes_are_reported_with_their_line(parse):
    with pytest.raises(SightlineError, match=r"UTF-8, got the byte 0xfc in line 2; if it is Latin-1, convert"):
        parse("Geh.\nGrüß Gott\n".encode("latin-1"))
    with pytest.raises(SightlineError, match=r"iconv -f LATIN1 -t UTF-8$"):
        list(stream_lines(io.BytesIO(b"\xfc"), STDIN))


def test_lines_are_read_lazily(tmp_path):
    lines = iter_lines(write(tmp_path / "x.txt", b"first\nsecond\n\xff\n"))
    assert [next(lines), next(lines)] == ["first", "second"]
    with pytest.raises(SightlineError, match="in line 3"):
        next(lines)


@pytest.mark.parametrize("character", ["x", "\N{MUSICAL SYMBOL G CLEF}"])
def test_long_lines_are_rejected_in_files_and_cut_in_streams(tmp_path, character):
    longest = character * limits.MAX_LINE_CHARS
    data = f"{longest}\r\n{longest}".encode()
    assert read_lines(write(tmp_path / "x", data)) == list(stream_lines(io.BytesIO(data), "x")) == [longest, longest]
    for data, number in ((f"a\n{longest}{character}\nb".encode(), 2), (5 * longest.encode() + b"\nb", 1)):
        with pytest.raises(SightlineError, match=rf"line {number} of .*x must be at most 100,000 characters, got"):
            read_lines(write(tmp_path / "x", data))
        *_, line, last = stream_lines(io.BytesIO(data), "x")
        assert (line, last) == (longest + character, "b")


def test_long_lines_of_invalid_bytes_stay_long(tmp_path):
    data = b"\xff\xfa" * 4 * limits.MAX_LINE_CHARS
    with pytest.raises(SightlineError, match=r"line 2 of .*x must be at most 100,000 characters, got more"):
        read_lines(write(tmp_path / "x", b"a\n" + data))
    _, line = stream_lines(io.BytesIO(b"a\n" + data), "x")
    assert len(line) == limits.MAX_LINE_CHARS + 1


def test_large_files_are_rejected(tmp_path, monkeypatch):
    path = write(tmp_path / "bomb.txt.gz", b"a" * 99 + b"\n" + b"b" * 10_000)
    monkeypatch.setattr(limits, "MAX_TEXT_BYTES", 5000)
    with pytest.raises(SightlineError, match=r"bomb.txt.gz must be at most 5,000 bytes of text, got more"):
        read_lines(path)


def test_unreadable_files_are_reported(tmp_path):
    path = write(tmp_path / "cut.txt.gz", b"abc\n" * 1000)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SightlineError, match="must be a complete gzip file"):
        read_lines(path)
    with pytest.raises(SightlineError, match="must be readable, got an error"):
        read_lines(tmp_path)
