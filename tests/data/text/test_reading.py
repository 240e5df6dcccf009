import gzip

import pytest

from sightline import limits
from sightline.data.text.reading import iter_lines, parse_lines, read_lines
from sightline.errors import SightlineError


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_only_line_feeds_end_lines(tmp_path, name):
    path = write(tmp_path / name, "a\r\n\nb\u2028c\x85d\n e".encode())
    assert read_lines(path) == ["a", "", "b\u2028c\x85d", " e"]
    assert parse_lines(b"a\nb\n", "-") == ["a", "b"]
    assert parse_lines(b"", "-") == []


def test_a_byte_order_mark_is_removed():
    assert parse_lines(b"\xef\xbb\xbfGeh.\n\xef\xbb\xbf", "-") == ["Geh.", "\ufeff"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_other_unicode_encodings_are_named(encoding):
    with pytest.raises(SightlineError, match=f"x.txt must be UTF-8, got {encoding.upper()}; convert it: iconv"):
        parse_lines("Geh.\n".encode(encoding), "x.txt")


def test_invalid_bytes_are_reported_with_their_line():
    with pytest.raises(SightlineError, match=r"UTF-8, got the byte 0xfc in line 2; if it is Latin-1, convert"):
        parse_lines("Geh.\nGrüß Gott\n".encode("latin-1"), "x.txt")


def test_lines_are_read_lazily(tmp_path):
    path = write(tmp_path / "x.txt", b"first\nsecond\n\xff\n")
    lines = iter_lines(path)
    assert [next(lines), next(lines)] == ["first", "second"]
    with pytest.raises(SightlineError, match="in line 3"):
        next(lines)


@pytest.mark.parametrize("character", ["x", "\N{MUSICAL SYMBOL G CLEF}"])
def test_long_lines_are_rejected(character):
    longest = character * limits.MAX_LINE_CHARS
    assert parse_lines(f"{longest}\r\n{longest}".encode(), "x") == [longest, longest]
    with pytest.raises(SightlineError, match=r"line 2 of x must be at most 100,000 characters, got (100,001|more)"):
        parse_lines(f"a\n{longest}{character}\n".encode(), "x")
    with pytest.raises(SightlineError, match=r"line 1 of x must be at most 100,000 characters, got more"):
        parse_lines(5 * longest.encode(), "x")


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
