"""The checks that raise SightlineError."""

import pytest

from sightline.errors import SightlineError, check, reraise


def test_check_raises_the_message_unless_the_condition_holds() -> None:
    check([1], "items must not be empty, got []")
    with pytest.raises(SightlineError, match=r"^items must not be empty, got \[\]$"):
        check([], "items must not be empty, got []")


def test_reraise_names_the_rule_and_the_error() -> None:
    message = r"^x must be a number, got an error: could not convert"
    with pytest.raises(SightlineError, match=message), reraise("x must be a number", ValueError, OverflowError):
        float("seven")


def test_reraise_leaves_other_exceptions_alone() -> None:
    with pytest.raises(KeyError), reraise("x must be a number", ValueError):
        raise KeyError("x")


def test_reraise_ends_with_the_fix() -> None:
    with (
        pytest.raises(SightlineError, match=r", got an error: .*; write digits$"),
        reraise("x", ValueError, fix="write digits"),
    ):
        int("seven")
