import json

import numpy as np
import pytest
import torch

from class_folders import omniglot, png, write_files, write_zip
from sightline.data import ImageSet
from sightline.data.images import class_pool as pool
from sightline.data.images.cifar100_superclasses import SUPERCLASSES, with_superclasses
from sightline.data.images.class_splits import ClassSplits, divides_by_class, groups_of, load_classes
from sightline.data.images.loading import summary


def some(*classes, size=5):
    return ImageSet(torch.zeros(len(classes), 1, size, size, dtype=torch.uint8), torch.arange(len(classes)), classes)


def parts(splits):
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return {role: set(part.classes) for role, part in named.items() if part is not None}


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "omniglot", omniglot())


def test_the_parts_of_omniglot_have_their_own_classes(folder):
    splits = load_classes(folder)
    assert len(splits.train.classes) == 9
    assert len(splits.test.classes) == 5
    assert splits.validation is None
    assert splits.test.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert splits.test.pixels[:3, 0, 0, 0].tolist() == [101, 102, 103]


def test_a_split_says_which_class_is_where(folder, tmp_path):
    wanted = {"train": {"background": {"Latin": ["character01", "character03"]}}, "val": ["Ulog"], "test": ["Greek"]}
    (tmp_path / "split.json").write_text(json.dumps(wanted))
    splits = load_classes(str(folder), split=str(tmp_path / "split.json"), size=7)
    assert splits.train.classes == ("Latin/character01", "Latin/character03")
    assert splits.train.pixels[:, 0, 0, 0].tolist() == [11, 12, 13, 31, 32, 33]
    assert splits.validation.classes == ("Ulog/character01", "Ulog/character02")
    assert len(splits.test) == 9
    assert splits.train.size == 7


@pytest.mark.parametrize("share", [0.2, 0.45])
def test_whole_groups_are_held_out_and_the_same_ones_again(folder, share):
    held = [load_classes(folder, validation=share, seed=seed) for seed in (0, 0, 1, 2, 3)]
    for splits in held:
        train, validation = (groups_of(part.classes) for part in (splits.train, splits.validation))
        assert len(splits.train.classes) + len(splits.validation.classes) == 9
        assert len(train.unique()) + len(validation.unique()) == 3
        assert len(splits.test.classes) == 5
    assert parts(held[0]) == parts(held[1])
    assert len({splits.validation.classes for splits in held}) > 1


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_classes_are_held_out_where_there_are_no_groups(share, tmp_path):
    source = write_files(tmp_path, {f"{name}/{n}.png": png() for name in "abcdefghij" for n in range(2)})
    splits = load_classes(source, validation=share)
    assert len(splits.validation.classes) == min(max(round(share * 10), 1), 9)
    assert parts(splits)["train"] | parts(splits)["validation"] == set("abcdefghij")


def test_nothing_is_held_out_where_validation_is_there(tmp_path):
    source = write_files(tmp_path, {f"{name}/1.png": png() for name in ("train/a", "train/b", "val/c")})
    assert parts(load_classes(source, validation=0.5)) == {"train": {"a", "b"}, "validation": {"c"}}


def test_one_class_cannot_be_divided(folder, tmp_path):
    (tmp_path / "split.json").write_text('{"train": ["Latin/character01"]}')
    with pytest.raises(ValueError, match=r"validation must be 0 where .* one class to learn from, got 0\.5"):
        load_classes(folder, split=tmp_path / "split.json", validation=0.5)


def test_images_of_all_parts_are_pooled_and_empty_classes_left_out(tmp_path):
    pixels = np.arange(5, dtype=np.uint8)[:, None, None] * np.ones((5, 3, 3), dtype=np.uint8)
    known = {"x_train": pixels, "y_train": [0, 2, 0, 2, 0], "x_test": pixels[:2] + 100, "classes": ["a", "b", "c"]}
    np.savez(tmp_path / "same.npz", **known, y_test=[2, 0])
    splits = load_classes(tmp_path / "same.npz")
    assert splits.train.classes == ("a", "c")
    assert splits.train.labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert splits.train.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 100, 101]
    assert splits.test is None
    np.savez(tmp_path / "apart.npz", **known, y_test=[1, 1])
    assert parts(load_classes(tmp_path / "apart.npz")) == {"train": {"a", "c"}, "test": {"b"}}


def test_turned_classes_are_classes_of_their_own(tmp_path):
    ink, other = np.zeros((3, 3), dtype=np.uint8), np.ones((3, 3), dtype=np.uint8)
    ink[0, 1] = 9  # at the top
    np.savez(tmp_path / "set.npz", images=[ink, other], labels=[0, 1], classes=["Latin/a", "Greek/a"])
    train = load_classes(tmp_path / "set.npz", rotations="all").train
    assert train.classes[::2] == ("Latin/a", "Latin/a@90", "Latin/a@180", "Latin/a@270")
    assert train.labels.tolist() == list(range(8))
    places = [tuple(image[0].eq(9).nonzero()[0].tolist()) for image in train.pixels[::2]]
    assert places == [(0, 1), (1, 0), (2, 1), (1, 2)]  # against the clock
    assert groups_of(train.classes).tolist() == list(range(8))
    assert len(load_classes("glyphs", size=8, rotations="all").test.classes) == 160
    alone = load_classes("glyphs", size=8, rotations="train")
    assert (len(alone.train.classes), len(alone.test.classes)) == (640, 40)
    with pytest.raises(ValueError, match="rotations must be one of all, none, train, got 'yes'"):
        load_classes("glyphs", size=8, rotations="yes")


def test_groups_are_what_stands_before_the_last_slash():
    names = ("Latin/a", "Greek/a", "Latin/b", "Latin/a@90", "owl", "Latin/b@90", "Latin/x@home", "a/b/c")
    assert groups_of(names).tolist() == [0, 1, 0, 2, 3, 2, 0, 4]
    assert groups_of(("cat", "dog@90")) is None


def test_cifar_100_stands_in_its_superclasses(tmp_path):
    fine = sorted(name for names in SUPERCLASSES.values() for name in names.split())
    assert len(fine) == len(set(fine)) == 100
    (tmp_path / "fine_label_names.txt").write_text("\n".join(fine))
    records = np.zeros((100, 3074), dtype=np.uint8)
    records[:, 1] = np.arange(100)
    (tmp_path / "train.bin").write_bytes(records.tobytes())
    (tmp_path / "test.bin").write_bytes(records.tobytes())
    split = {"train": ["fish", "trees"], "val": [["insects", "bee"]], "test": ["wolf"]}
    (tmp_path / "split.json").write_text(json.dumps(split))
    splits = load_classes(tmp_path, split=tmp_path / "split.json")
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [20, 2, 2]
    assert splits.train.classes[0] == "fish/aquarium_fish"
    assert with_superclasses(fine[1:]) == tuple(fine[1:])


def test_splits_are_apart_and_of_one_form():
    with pytest.raises(ValueError, match="a class must be in one split alone, got 'b' in train and in test"):
        ClassSplits(some("a", "b"), None, some("b", "c"))
    with pytest.raises(ValueError, match="validation must have the size of train, 5, got 7"):
        ClassSplits(some("a", "b"), some("c", size=7))


def test_too_much_for_memory_is_refused(folder, monkeypatch):
    monkeypatch.setattr(pool, "MOST_BYTES", 42 * 25 * 4 - 1)
    assert load_classes(folder).train.size == 5
    with pytest.raises(
        ValueError, match=r"must take at most 4,199 bytes of memory, got 4,200 for 168 images of 5 x 5 x 1"
    ):
        load_classes(folder, rotations="all")
    with pytest.raises(ValueError, match="give a smaller size"):
        load_classes(folder, size=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": 1.0}, "validation must be at least 0 and below 1, got 1.0"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"size": 0}, "size must be an integer of at least 1"),
        ({"channels": 2}, "channels must be 1"),
    ],
)
def test_options_are_checked(options, message, folder):
    with pytest.raises(ValueError, match=message):
        load_classes(folder, **options)


def test_a_source_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a data set must be a path that is there, or one of glyphs"):
        load_classes(tmp_path / "none")
    with pytest.raises(ValueError, match="a data set must be one of these"):
        load_classes(tmp_path)


def test_sources_that_only_few_shot_reads_are_told_apart(folder, tmp_path):
    flat = {f"{part}/{name}/1.png": png() for part in ("train", "test") for name in "ab"}
    sources = {
        folder: True,
        write_zip(tmp_path / "set.zip", flat): True,
        write_files(tmp_path / "apart", {"train/a/1.png": png(), "train/b/1.png": png(), "test/c/1.png": png()}): True,
        write_files(tmp_path / "nested", {"L/a/1.png": png(), "G/b/1.png": png()}): True,
        write_files(tmp_path / "flat", flat): False,
        write_files(tmp_path / "plain", {"a/1.png": png(), "b/1.png": png()}): False,
        tmp_path / "none": False,
        "glyphs": False,
    }
    assert {source: divides_by_class(source) for source in sources} == sources


def test_a_summary_counts_the_classes_of_each_part(folder):
    lines = str(summary(load_classes(folder, validation=0.2))).splitlines()
    assert lines[0] == "Omniglot, 14 classes in 5 groups"
    assert lines[2].split()[:4] == ["split", "classes", "images", "each"]
    assert [line.split()[0] for line in lines[3:]] == ["train", "validation", "test"]
    assert lines[-1].split()[1:4] == ["5", "15", "3"]


def test_glyphs_are_many_alphabets():
    splits = load_classes("glyphs", size=14, channels=3)
    assert [len(part.classes) for part in (splits.train, splits.validation, splits.test)] == [160, 40, 40]
    assert [len(groups_of(part.classes).unique()) for part in (splits.train, splits.validation, splits.test)] == [
        8,
        2,
        2,
    ]
    assert splits.train.pixels.shape == (3200, 3, 14, 14)
