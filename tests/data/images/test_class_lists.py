import json

import pytest

from sightline.data.images import class_lists
from sightline.data.images.class_lists import read_lists

CLASSES = ("Greek/a", "Greek/b", "Latin/a", "Latin/c", "Ogham/d", "Ogham/e", "owl")


def write(folder, **parts):
    for name, part in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(part))
    return folder


@pytest.mark.parametrize(
    "train",
    [
        ["Greek/a", "Greek/b", "Latin/c"],
        ["Greek/a", "b", "c"],
        ["Latin/c", "Greek"],
        [["Greek", "a"], ["Greek", "b"], ["Latin", "c"]],
        {"class_names": ["Greek/a", "Greek/b", "Latin/c"], "class_roots": ["elsewhere"]},
        {"background": {"Greek": ["a", "b"], "Ogham": []}, "evaluation": {"Latin": ["c"]}},
        {"images_background": ["Greek", "Latin/c"]},
        ["images_background/Greek/a", "images_background/Greek/b", "Latin/c", "c"],
    ],
)
def test_lists_are_read_in_every_shape(train, tmp_path):
    lists = read_lists(write(tmp_path, train=train, val=["owl"], test=["Ogham"]), CLASSES)
    assert {role: set(names) for role, names in lists.items()} == {
        "train": {"Greek/a", "Greek/b", "Latin/c"},
        "validation": {"owl"},
        "test": {"Ogham/d", "Ogham/e"},
    }
    (tmp_path / "one").mkdir()
    one = tmp_path / "one" / "split.json"
    one.write_text(json.dumps({"train": train, "validation": ["owl"], "test": ["Ogham"]}))
    assert read_lists(one, CLASSES) == lists


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            ["a"],
            r"a name in .*train\.json must fit one class, got 'a', which fits 'Greek/a', 'Latin/a'; write it in full",
        ),
        (["Grek/b"], r"a name in .* must be one of the 7 classes, got 'Grek/b'; did you mean 'Greek/b'\?"),
        (["Latin/b"], r"a name in .* must be one of the 7 classes, got 'Latin/b'; did you mean"),
        ([], r"train\.json must list at least one class, got none"),
        ("Greek", r"train\.json must hold names in lists, got 'Greek'"),
        ([3], r"must list names or pairs \[group, class\], got 3"),
        ([["Greek", ["a"]]], r"must list names or pairs"),
        ([" "], r"must list names or pairs"),
        (
            ["Greek", "owl"],
            r"a class must be in one split alone, got 'owl' in train and in validation|validation and in train",
        ),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": []}}}}}}}}}, r"must nest at most 8 groups"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(train, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_lists(write(tmp_path, train=train, val=["owl"]), CLASSES)


def test_files_that_are_no_lists_are_refused(tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match=r"split must be a JSON file or a folder of them, got '.*', which is not there"
    ):
        read_lists(tmp_path / "none.json", CLASSES)
    with pytest.raises(ValueError, match="must list the classes to learn from in 'train', got nothing"):
        read_lists(tmp_path, CLASSES)
    with pytest.raises(
        ValueError, match=r"a part of .* must be one of test, train, .*, got 'tests'; did you mean 'test'"
    ):
        read_lists(write(tmp_path, train=["owl"], tests=["Greek"]), CLASSES)
    (tmp_path / "tests.json").unlink()
    with pytest.raises(ValueError, match="must list validation once"):
        read_lists(write(tmp_path, val=["Greek"], valid=["Latin"]), CLASSES)
    with pytest.raises(ValueError, match=r'must be \{"train": .*got a list; or give the folder'):
        read_lists(tmp_path / "train.json", CLASSES)
    for text in ("{", "[" * 100_000):
        (tmp_path / "train.json").write_text(text)
        with pytest.raises(ValueError, match=r"train\.json must be JSON that can be read"):
            read_lists(tmp_path, CLASSES)
    monkeypatch.setattr(class_lists, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match=r"must be at most 10 bytes, got 100,000"):
        read_lists(tmp_path, CLASSES)
