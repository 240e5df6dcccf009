import json

import pytest

from sightline import limits
from sightline.data.images.class_lists import read_class_lists
from sightline.errors import SightlineError

CLASSES = ("Greek/a", "Greek/b", "Latin/a", "Latin/c", "Ogham/d", "Ogham/e", "owl")


def write(folder, **lists):
    for name, content in lists.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
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
def test_all_forms_of_lists_are_read(train, tmp_path):
    lists = read_class_lists(write(tmp_path, train=train, val=["owl"], test=["Ogham"]), CLASSES)
    assert {split: set(names) for split, names in lists.items()} == {
        "train": {"Greek/a", "Greek/b", "Latin/c"},
        "validation": {"owl"},
        "test": {"Ogham/d", "Ogham/e"},
    }
    (tmp_path / "one").mkdir()
    single = tmp_path / "one" / "split.json"
    single.write_text(json.dumps({"train": train, "validation": ["owl"], "test": ["Ogham"]}))
    assert read_class_lists(single, CLASSES) == lists


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            ["a"],
            r"a name in .*train\.json must match one class, got 'a', which matches 'Greek/a', 'Latin/a'; write",
        ),
        (["Grek/b"], r"a name in .* must be one of the 7 classes, got 'Grek/b'; did you mean 'Greek/b'\?"),
        (["Gr"], r"must be one of the 7 classes, got 'Gr'; did you mean 'Greek'\?"),
        (["Latin/b"], r"a name in .* must be one of the 7 classes, got 'Latin/b'; did you mean"),
        ([], r"train\.json must list at least one class, got none"),
        ("Greek", r"train\.json must be a list of names, got 'Greek'"),
        ([3], r"must list names or pairs \[group, class\], got 3"),
        ([["Greek", ["a"]]], r"must list names or pairs"),
        ([" "], r"must list names or pairs"),
        (
            ["Greek", "owl"],
            r"a class must be in one split, got 'owl' in train and in validation|validation and in train",
        ),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": []}}}}}}}}}, r"must have at most 8 nested groups"),
    ],
)
def test_invalid_lists_are_rejected(train, message, tmp_path):
    with pytest.raises(SightlineError, match=message):
        read_class_lists(write(tmp_path, train=train, val=["owl"]), CLASSES)


def test_invalid_files_are_rejected(tmp_path, monkeypatch):
    with pytest.raises(
        SightlineError, match=r"split must be a JSON file or a folder of JSON files, got '.*', which does not exist"
    ):
        read_class_lists(tmp_path / "none.json", CLASSES)
    with pytest.raises(SightlineError, match="must have a list for train, got nothing"):
        read_class_lists(tmp_path, CLASSES)
    with pytest.raises(
        SightlineError, match=r"a split in .* must be one of test, train, .*, got 'tests'; did you mean 'test'"
    ):
        read_class_lists(write(tmp_path, train=["owl"], tests=["Greek"]), CLASSES)
    (tmp_path / "tests.json").unlink()
    with pytest.raises(SightlineError, match="must have one list for validation"):
        read_class_lists(write(tmp_path, val=["Greek"], valid=["Latin"]), CLASSES)
    with pytest.raises(SightlineError, match=r'must be \{"train": .*got a list; or give the folder'):
        read_class_lists(tmp_path / "train.json", CLASSES)
    for text in ("{", "[" * 100_000):
        (tmp_path / "train.json").write_text(text)
        with pytest.raises(SightlineError, match=r"train\.json must be valid JSON"):
            read_class_lists(tmp_path, CLASSES)
    monkeypatch.setattr(limits, "MAX_JSON_BYTES", 10)
    with pytest.raises(SightlineError, match=r"must be at most 10 bytes, got 100,000"):
        read_class_lists(tmp_path, CLASSES)
