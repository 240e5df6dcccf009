"""The checks that raise SightlineError."""

from collections.abc import Callable

import pytest

from sightline.errors import (
    SightlineError,
    check,
    check_divides,
    check_fraction,
    check_int,
    check_max,
    check_page_size,
    closest,
    one_of,
    reraise,
    shown,
)


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


LONG = 16**5000  # Python refuses to write out more than 4,300 digits


def test_the_first_of_equally_close_names_is_suggested() -> None:
    assert closest("lite", ["lite0", "lite1", "lite2"]) == "; did you mean 'lite0'?"
    assert closest("heavy", ["lite0", "lite1"]) == closest("lite", []) == ""
    assert closest("lite2", ["light", "lite", "lite2x"]) == "; did you mean 'lite2x'?"


def test_a_long_list_of_names_is_shortened() -> None:
    names = [f"n{i:03}" for i in range(200)]
    assert one_of("n199x", names) == f"one of {', '.join(names[:50])} and 150 more, got 'n199x'; did you mean 'n199'?"


def test_long_names_are_compared_by_their_start() -> None:
    name = 10_000_000 * "ab"  # would take hours
    assert closest(name, [name[:-1], "other"]).startswith("; did you mean 'abab")
    assert closest(name, ["other"]) == ""


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (lambda: check_int(0, seed=-LONG), "seed must be an integer of at least 0, got an integer of 20001 bits"),
        (lambda: check_max(9, seed=LONG), "seed must be at most 9, got an integer of 20001 bits"),
        (lambda: check_divides("size", LONG, patch=3), "patch must divide size=an integer of 20001 bits, got 3"),
        (lambda: check_fraction(dropout=LONG), "dropout must be at least 0 and below 1, got an integer of 20001 bits"),
        (lambda: check_page_size(examples=LONG), "on one page, got an integer of 20001 bits; show fewer"),
    ],
)
def test_messages_describe_integers_that_are_too_long_to_write_out(fails: Callable[[], None], message: str) -> None:
    with pytest.raises(SightlineError, match=message):
        fails()


def test_valid_integers_are_never_written_out() -> None:
    check_int(0, steps=LONG)
    check_max(LONG, steps=LONG)


def test_shown_is_the_repr_of_other_values() -> None:
    assert [shown(value) for value in (7, "7", 0.5, None)] == ["7", "'7'", "0.5", "None"]
    assert shown([LONG]) == "a list with an integer of too many digits"
    assert shown("x" * 1000) == "'" + "x" * 199


def test_messages_are_built_only_on_failure() -> None:
    class Unprintable(int):
        def __repr__(self) -> str:
            raise AssertionError("built the message of a check that holds")

        __str__ = __repr__

        def __format__(self, spec: str) -> str:
            return repr(self)

    value = Unprintable(4)
    check_int(1, value=value)
    check_max(4, value=value)
    check_page_size(value=value)
    check_divides("size", value, part=value)
    check_fraction(value=Unprintable(0))
