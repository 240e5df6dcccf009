from pathlib import Path

import pytest

from sightline.data.sources import same_source


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder, also the working folder, with image and text data."""
    for name in ("photos/cat/1.png", "photos/dog/1.png", "others/cat/1.png", "packed/set.npz", "packed/README"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in ("text/train.de", "text/train.en", "text/test.de", "text/test.en", "pairs.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    (tmp_path / "text-link").symlink_to(tmp_path / "text")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("photos", "photos/"),
        ("photos", "./photos"),
        ("photos", "~/photos"),
        ("photos", "others/../photos"),
        ("photos", "link"),
        ("photos", Path("photos")),
        ("packed", "packed/set.npz"),
        ("text/train", "~/text-link/train"),
        ("text/train", "./text/train"),
        ("missing", "./missing"),
        ("glyphs", "glyphs"),
    ],
)
def test_spellings_of_one_source_are_the_same(home, a, b):
    assert same_source(a, b)
    assert same_source(b, a)
    if a != "glyphs":
        assert same_source(a, Path(b).expanduser().absolute())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("photos", "others"),
        ("photos", "photos/cat"),
        ("text", "text/train"),
        ("text/train", "text/test"),
        ("pairs.tsv", "text"),
        ("missing", "absent"),
        ("glyphs", "numbers"),
        ("glyphs", "./glyphs"),
    ],
)
def test_other_sources_are_not_the_same(home, a, b):
    assert not same_source(a, b)
    assert not same_source(b, a)


def test_folders_of_links_to_the_same_files_are_the_same(home):
    for source in ("text", "photos"):
        copy = home / f"{source}-copy"
        copy.mkdir()
        for entry in (home / source).iterdir():
            (copy / entry.name).symlink_to(entry)
        assert same_source(source, copy)
    for side in ("de", "en"):
        (home / f"renamed.{side}").symlink_to(home / f"text/train.{side}")
    assert same_source("renamed", "text/train")
    (home / "text-copy/train.de").unlink()
    assert not same_source("text", "text-copy")
