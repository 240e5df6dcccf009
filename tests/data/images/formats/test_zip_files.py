import pytest

from class_folders import omniglot, png, write_files, write_zip
from sightline.data.images.datasets import load_splits
from sightline.data.images.loading import read_source
from sightline.errors import SightlineError


@pytest.fixture(params=["folder", "zip"])
def read(request, tmp_path):
    """A function that writes files to a folder or a zip file and reads them as image sets."""

    def write_and_read(files, size=None, channels=None):
        if request.param == "folder":
            path = write_files(tmp_path / "set", files)
        else:
            path = write_zip(tmp_path / "set.zip", files)
        return load_splits(read_source(path, size, channels)[0])

    return write_and_read


def test_omniglot_is_read_with_its_splits(read):
    splits = read(omniglot())
    assert splits["train"].classes[:3] == ("Greek/character01", "Greek/character02", "Greek/character03")
    assert {name: len(images.classes) for name, images in splits.items()} == {"train": 9, "test": 5}
    assert splits["test"].classes[0] == "Tengwar/character01"
    latin = splits["train"].classes.index("Latin/character02")
    train = splits["train"]
    assert train.pixels[train.labels == latin][:, 0, 0, 0].tolist() == [21, 22, 23]


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        (["cat", "dog"], {"train": ("cat", "dog")}),
        (["Latin/a", "Latin/b", "owl"], {"train": ("Latin/a", "Latin/b", "owl")}),
        (["CUB/images/cat", "CUB/images/dog"], {"train": ("cat", "dog")}),
        (["train/cat", "train/dog", "test/cat", "test/dog"], {"train": ("cat", "dog"), "test": ("cat", "dog")}),
        (["train/cat", "train/dog", "test/dog"], {"train": ("cat", "dog"), "test": ("cat", "dog")}),
        (["train/cat", "val/dog", "test/owl"], {"train": ("cat",), "validation": ("dog",), "test": ("owl",)}),
        (["set/Train/L/a", "set/test/G/a"], {"train": ("L/a",), "test": ("G/a",)}),
        (["images_evaluation/L/a", "images_evaluation/L/b"], {"train": ("L/a", "L/b")}),
        (["train", "test", "plane"], {"train": ("plane", "test", "train")}),
    ],
)
def test_classes_and_splits_are_the_folders_of_files(read, folders, classes):
    files = {f"{folder}/{number}.png": png(number) for folder in folders for number in range(2)}
    splits = read({**files, "note.png": png(), f"{folders[0]}/readme.txt": b"hello"})
    assert {name: images.classes for name, images in splits.items()} == classes
    assert sum(map(len, splits.values())) == 2 * len(folders)


def test_size_and_channels_are_detected_or_converted(read):
    files = {"a/1.png": png(7), "b/1.png": png(7, mode="RGB")}
    assert read(files)["train"].pixels.shape == (2, 3, 5, 5)
    assert read(files, size=3, channels=1)["train"].pixels.shape == (2, 1, 3, 3)
    with pytest.raises(SightlineError, match=r"must have the same size .* 5 x 5 in .*a/1\.png and 7 x 7 in .*b/1\.png"):
        read({**files, "b/1.png": png(size=(7, 7))})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/1.png", "a/b/1.png", "c/1.png"], "must contain images or class folders, got both in 'a'"),
        (["train/a/1.png", "train/b/1.png", "more/a/1.png"], "got 'more' beside them; move it elsewhere"),
        (["train/a/1.png", "train/b/1.png", "train/1.png"], "must be in class folders, got 'train/1.png' beside them"),
        (
            ["images_background/L/a/1.png", "images_background_small1/L/a/1.png"],
            "got 'images_background_small1' beside",
        ),
        (["a/1.png", "a/2.png"], "must contain at least two class folders, got only 'a'"),
    ],
)
def test_ambiguous_folders_are_rejected(read, files, message):
    with pytest.raises(SightlineError, match=message):
        read(dict.fromkeys(files, png()))


def test_damaged_images_are_reported(read):
    with pytest.raises(SightlineError, match=r"b/1\.png .*must be a complete PNG"):
        read({"a/1.png": png(), "b/1.png": png()[:40]}, size=5, channels=1)
    with pytest.raises(SightlineError, match=r"b/1\.png .*must be a complete PNG"):
        read({"a/1.png": png(), "b/1.png": b"no"})


def test_a_zip_file_without_classes_is_rejected(tmp_path):
    with pytest.raises(SightlineError, match="must contain class folders with images, got none"):
        read_source(write_zip(tmp_path / "x.zip", {"1.png": png(), "a/b.txt": b""}), None, None)
    with pytest.raises(SightlineError, match="got Omniglot one-shot runs; use read_one_shot_runs"):
        read_source(write_zip(tmp_path / "runs.zip", {"run01/class_labels.txt": b""}), None, None)
