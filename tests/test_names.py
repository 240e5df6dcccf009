import pytest

from sightline.errors import SightlineError
from sightline.names import display_path, printable, printable_lines, shortened


@pytest.mark.parametrize("text", ["plain", "é 猫 😀", "no\u00a0break", "wide\u3000space"])
def test_printable_text_and_spaces_are_kept(text):
    assert printable(text) == text


@pytest.mark.parametrize("char", ["\x1b", "\n", "\r", "\x07", "\x9b", "\u202e", "\udcff"])
def test_other_characters_are_replaced(char):
    assert printable(f"a{char}b") == "a\ufffdb"
    assert display_path(f"a{char}b") == "a\ufffdb"


def test_lines_are_kept_by_printable_lines_and_errors():
    assert printable_lines("a\x1b\nb") == str(SightlineError("a\x1b\nb")) == "a\ufffd\nb"


def test_shortened_text_has_single_spaces_and_an_ellipsis():
    assert shortened(" a \n b ", 10) == "a b"
    assert shortened("abcdef", 4) == "abc…"
