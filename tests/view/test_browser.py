"""Finding a browser for the tests."""

from types import SimpleNamespace

import pytest

from browser import VARIABLE, NoBrowserError, find_browser


@pytest.fixture
def playwright(tmp_path, monkeypatch):
    """A Playwright whose own browser is not installed, and an empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return SimpleNamespace(chromium=SimpleNamespace(executable_path=str(tmp_path / "own" / "chrome")))


def install(path):
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o755)
    return str(path)


def test_the_variable_comes_first_then_the_path_then_playwright(playwright, tmp_path, monkeypatch):
    own = install(tmp_path / "own" / "chrome")
    assert find_browser(playwright) == own
    on_path = install(tmp_path / "google-chrome")
    assert find_browser(playwright) == on_path
    chosen = install(tmp_path / "chosen")
    monkeypatch.setenv(VARIABLE, chosen)
    assert find_browser(playwright) == chosen


def test_a_missing_browser_is_reported_with_the_fix(playwright, monkeypatch):
    with pytest.raises(NoBrowserError, match=f"got none of chromium-.* or set {VARIABLE} to an executable"):
        find_browser(playwright)
    monkeypatch.setenv(VARIABLE, "/nowhere/chrome")
    with pytest.raises(NoBrowserError, match=f"{VARIABLE} must be an executable, got '/nowhere/chrome'"):
        find_browser(playwright)
