import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from class_folders import omniglot, png, write_files
from sightline import limits
from sightline.data import ImageSet
from sightline.data.images.class_splits import ClassSplits, add_sources, class_groups, load_classes
from sightline.data.images.formats.cifar import SUPERCLASSES, superclass_names
from sightline.data.images.summary import summarize
from sightline.errors import SightlineError


def blank_images(*classes, size=5):
    return ImageSet(torch.zeros(len(classes), 1, size, size, dtype=torch.uint8), torch.arange(len(classes)), classes)


def images_of(shade, count, size=5):
    return torch.full((count, 1, size, size), shade, dtype=torch.uint8)


def classes_of(splits):
    return {name: set(images.classes) for name, images in splits.available.items()}


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "omniglot", omniglot())


def test_omniglot_is_class_disjoint(folder):
    splits = load_classes(folder)
    assert len(splits.train.classes) == 9
    assert len(splits.test.classes) == 5
    assert splits.validation is None
    assert splits.test.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert splits.test.pixels[:3, 0, 0, 0].tolist() == [101, 102, 103]


def test_a_split_file_selects_classes(folder, tmp_path):
    content = {"train": {"background": {"Latin": ["character01", "character03"]}}, "val": ["Ulog"], "test": ["Greek"]}
    (tmp_path / "split.json").write_text(json.dumps(content))
    splits = load_classes(str(folder), split=str(tmp_path / "split.json"), size=7)
    assert splits.train.classes == ("Latin/character01", "Latin/character03")
    assert splits.train.pixels[:, 0, 0, 0].tolist() == [11, 12, 13, 31, 32, 33]
    assert splits.validation.classes == ("Ulog/character01", "Ulog/character02")
    assert len(splits.test) == 9
    assert splits.train.size == 7


@pytest.mark.parametrize("fraction", [0.2, 0.45])
def test_whole_groups_are_held_out_by_seed(folder, fraction):
    held_out = [load_classes(folder, validation_fraction=fraction, seed=seed) for seed in (0, 0, 1, 2, 3)]
    for splits in held_out:
        train, validation = (class_groups(part.classes) for part in (splits.train, splits.validation))
        assert len(splits.train.classes) + len(splits.validation.classes) == 9
        assert len(train.unique()) + len(validation.unique()) == 3
        assert len(splits.test.classes) == 5
    assert classes_of(held_out[0]) == classes_of(held_out[1])
    assert len({splits.validation.classes for splits in held_out}) > 1


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.99])
def test_classes_without_groups_are_held_out(fraction, tmp_path):
    source = write_files(tmp_path, {f"{name}/{n}.png": png() for name in "abcdefghij" for n in range(2)})
    splits = load_classes(source, validation_fraction=fraction)
    assert len(splits.validation.classes) == min(max(round(fraction * 10), 1), 9)
    assert classes_of(splits)["train"] | classes_of(splits)["validation"] == set("abcdefghij")


def test_nothing_is_held_out_if_there_is_a_validation_set(tmp_path):
    source = write_files(tmp_path, {f"{name}/1.png": png() for name in ("train/a", "train/b", "val/c")})
    assert classes_of(load_classes(source, validation_fraction=0.5)) == {"train": {"a", "b"}, "validation": {"c"}}


def test_a_single_class_cannot_be_split(folder, tmp_path):
    (tmp_path / "split.json").write_text('{"train": ["Latin/character01"]}')
    with pytest.raises(SightlineError, match=r"validation_fraction must be 0 for a single training class, got 0\.5"):
        load_classes(folder, split=tmp_path / "split.json", validation_fraction=0.5)


def test_splits_with_the_same_classes_are_pooled_without_empty_classes(tmp_path):
    pixels = np.arange(5, dtype=np.uint8)[:, None, None] * np.ones((5, 3, 3), dtype=np.uint8)
    content = {"x_train": pixels, "y_train": [0, 2, 0, 2, 0], "x_test": pixels[:2] + 100, "classes": ["a", "b", "c"]}
    np.savez(tmp_path / "same.npz", **content, y_test=[2, 0])
    splits = load_classes(tmp_path / "same.npz")
    assert splits.train.classes == ("a", "c")
    assert splits.train.labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert splits.train.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 100, 101]
    assert splits.test is None
    np.savez(tmp_path / "disjoint.npz", **content, y_test=[1, 1])
    assert classes_of(load_classes(tmp_path / "disjoint.npz")) == {"train": {"a", "c"}, "test": {"b"}}


def test_rotations_are_classes_of_their_own(tmp_path):
    ink, other = np.zeros((3, 3), dtype=np.uint8), np.ones((3, 3), dtype=np.uint8)
    ink[0, 1] = 9  # at the top
    np.savez(tmp_path / "set.npz", images=[ink, other], labels=[0, 1], classes=["Latin/a", "Greek/a"])
    train = load_classes(tmp_path / "set.npz", rotations="all").train
    assert train.classes[::2] == ("Latin/a", "Latin/a@90", "Latin/a@180", "Latin/a@270")
    assert train.labels.tolist() == list(range(8))
    positions = [tuple(image[0].eq(9).nonzero()[0].tolist()) for image in train.pixels[::2]]
    assert positions == [(0, 1), (1, 0), (2, 1), (1, 2)]  # counterclockwise
    assert class_groups(train.classes).tolist() == list(range(8))
    assert len(load_classes("glyphs", size=8, rotations="all").test.classes) == 160
    rotated = load_classes("glyphs", size=8, rotations="train")
    assert (len(rotated.train.classes), len(rotated.test.classes)) == (640, 40)
    with pytest.raises(SightlineError, match="rotations must be one of all, none, train, got 'yes'"):
        load_classes("glyphs", size=8, rotations="yes")


def test_the_group_is_the_name_before_the_last_slash():
    names = ("Latin/a", "Greek/a", "Latin/b", "Latin/a@90", "owl", "Latin/b@90", "Latin/x@home", "a/b/c")
    assert class_groups(names).tolist() == [0, 1, 0, 2, 3, 2, 0, 4]
    assert class_groups(("cat", "dog@90")) is None


def test_cifar_100_classes_are_grouped_by_superclass(tmp_path):
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
    assert superclass_names(fine[1:]) == {name: name for name in fine[1:]}


def test_splits_must_be_disjoint_and_have_one_size():
    with pytest.raises(SightlineError, match="a class must be in one split, got 'b' in train and in test"):
        ClassSplits(blank_images("a", "b"), None, blank_images("b", "c"))
    with pytest.raises(SightlineError, match="validation must have the size of train, 5, got 7"):
        ClassSplits(blank_images("a", "b"), blank_images("c", size=7))


def test_memory_is_limited(folder, monkeypatch):
    monkeypatch.setattr(limits, "MAX_IMAGE_SET_BYTES", 42 * 25 * 4 - 1)
    assert load_classes(folder).train.size == 5
    with pytest.raises(SightlineError, match=r"must take at most 4,199 bytes, got 4,200 for 168 images of 5 x 5 x 1"):
        load_classes(folder, rotations="all")
    with pytest.raises(SightlineError, match="use a smaller size"):
        load_classes(folder, size=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1, got 1.0"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"size": 0}, "size must be an integer of at least 1"),
        ({"channels": 2}, "channels must be 1"),
    ],
)
def test_invalid_options_are_rejected(options, message, folder):
    with pytest.raises(SightlineError, match=message):
        load_classes(folder, **options)


def test_an_unknown_source_is_rejected(tmp_path):
    with pytest.raises(SightlineError, match="a data set must be an existing path, or glyphs for generated characters"):
        load_classes(tmp_path / "none")
    with pytest.raises(SightlineError, match="a data set must have one of the formats below"):
        load_classes(tmp_path)


def test_nested_and_flat_folders_are_pooled_by_class_and_path(tmp_path):
    flat = {f"{split}/{name}/{i}.png": png(i) for split, i in (("train", 1), ("test", 2)) for name in "ab"}
    pooled = load_classes(write_files(tmp_path / "flat", flat)).train
    assert pooled.classes == ("a", "b")
    assert pooled.labels.tolist() == [0, 0, 1, 1]
    assert pooled.pixels[:, 0, 0, 0].tolist() == [2, 1, 2, 1]  # test before train
    nested = load_classes(write_files(tmp_path / "nested", {"L/a/1.png": png(), "G/b/1.png": png()})).train
    assert nested.classes == ("G/b", "L/a")


def test_held_out_classes_are_those_of_earlier_versions(folder):
    splits = [load_classes(folder, validation_fraction=0.4, seed=seed) for seed in range(6)]
    groups = ["".join(sorted({name[0] for name in split.validation.classes})) for split in splits]
    assert groups == ["GO", "G", "GO", "GO", "G", "L"]  # Greek, Latin and Ogham


def test_extra_sources_add_training_classes():
    splits = ClassSplits(blank_images("a", "b"), None, replace(blank_images("c"), pixels=images_of(9, 1)))
    extra = {"more": (ImageSet(images_of(7, 2), torch.tensor([0, 1]), ("a", "x")), 0.25)}
    extended = add_sources(splits, extra)
    assert extended.train.classes == ("a", "b", "more/a", "more/x")
    assert extended.train.labels.tolist() == [0, 1, 2, 3]
    assert extended.extra_sources == ((2, 0.25),)
    with pytest.raises(SightlineError, match="must not contain images of the validation or test set, got 1 in 'copy'"):
        add_sources(splits, {"copy": (ImageSet(images_of(9, 1), torch.tensor([0]), ("z",)), 0.5)})


def test_a_summary_counts_the_classes_of_each_split(folder):
    lines = str(summarize(load_classes(folder, validation_fraction=0.2))).splitlines()
    assert lines[0] == "Omniglot, 14 classes in 5 groups"
    assert lines[2].split()[:4] == ["split", "classes", "images", "per"]
    assert [line.split()[0] for line in lines[3:]] == ["train", "validation", "test"]
    assert lines[-1].split()[1:4] == ["5", "15", "3"]


def test_glyphs_have_several_alphabets():
    splits = load_classes("glyphs", size=14, channels=3)
    assert [len(part.classes) for part in (splits.train, splits.validation, splits.test)] == [160, 40, 40]
    assert [len(class_groups(part.classes).unique()) for part in (splits.train, splits.validation, splits.test)] == [
        8,
        2,
        2,
    ]
    assert splits.train.pixels.shape == (3200, 3, 14, 14)
