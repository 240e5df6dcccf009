import pytest

from class_folders import omniglot, png, write_files, write_zip
from sightline.data.images.formats import nested_folders as trees
from sightline.data.images.formats.nested_folders import read_folder_tree, read_zip


@pytest.fixture(params=["folder", "zip"])
def read(request, tmp_path):
    """A function that writes files in one of two ways and reads them."""

    def written(files, size=None, channels=None):
        if request.param == "folder":
            return read_folder_tree(write_files(tmp_path / "set", files), size, channels, None)
        return read_zip(write_zip(tmp_path / "set.zip", files), size, channels, None)

    return written


def test_omniglot_is_read_with_its_parts(read):
    pool = read(omniglot())
    assert pool.kind == "Omniglot"
    assert pool.images.classes[:3] == ("Greek/character01", "Greek/character02", "Greek/character03")
    assert {role: len(names) for role, names in pool.parts.items()} == {"train": 9, "test": 5}
    assert pool.parts["test"][0] == "Tengwar/character01"
    latin = pool.images.classes.index("Latin/character02")
    assert pool.images.pixels[pool.images.labels == latin][:, 0, 0, 0].tolist() == [21, 22, 23]


@pytest.mark.parametrize(
    ("names", "classes", "parts"),
    [
        (["cat", "dog"], ("cat", "dog"), {}),
        (["Latin/a", "Latin/b", "owl"], ("Latin/a", "Latin/b", "owl"), {}),
        (["CUB/images/cat", "CUB/images/dog"], ("cat", "dog"), {}),
        (["train/cat", "train/dog", "test/cat", "test/dog"], ("cat", "dog"), {}),
        (
            ["train/cat", "val/dog", "test/owl"],
            ("cat", "dog", "owl"),
            {"train": ("cat",), "validation": ("dog",), "test": ("owl",)},
        ),
        (["set/Train/L/a", "set/test/G/a"], ("G/a", "L/a"), {"test": ("G/a",), "train": ("L/a",)}),
        (["images_evaluation/L/a", "images_evaluation/L/b"], ("L/a", "L/b"), {}),
        (["train", "test", "plane"], ("plane", "test", "train"), {}),
    ],
)
def test_classes_are_what_stands_above_the_files(read, names, classes, parts):
    files = {f"{name}/{number}.png": png(number) for name in names for number in range(2)}
    pool = read({**files, "note.png": png(), f"{names[0]}/readme.txt": b"hello"})
    assert pool.images.classes == classes
    assert pool.parts == parts
    assert len(pool.images) == 2 * len(names)


def test_size_and_channels_are_those_of_the_images_or_those_asked_for(read):
    files = {"a/1.png": png(7), "b/1.png": png(7, mode="RGB")}
    assert read(files).images.pixels.shape == (2, 3, 5, 5)
    assert read(files, size=3, channels=1).images.pixels.shape == (2, 1, 3, 3)
    with pytest.raises(ValueError, match=r"images must be of one size .* got 5 x 5 in a/1\.png and 7 x 7 in b/1\.png"):
        read({**files, "b/1.png": png(size=(7, 7))})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/1.png", "a/b/1.png", "c/1.png"], "must hold images or class folders, got both in 'a'"),
        (["train/a/1.png", "train/b/1.png", "more/a/1.png"], "got 'more' beside them; move it elsewhere"),
        (
            ["images_background/L/a/1.png", "images_background_small1/L/a/1.png"],
            "got 'images_background_small1' beside",
        ),
        (["a/1.png", "a/2.png"], "must hold at least two class folders, got only 'a'"),
    ],
)
def test_folders_that_are_not_clear_are_refused(read, files, message):
    with pytest.raises(ValueError, match=message):
        read(dict.fromkeys(files, png()))


def test_torn_images_are_named(read):
    with pytest.raises(ValueError, match=r"b/1\.png must be a PNG, .* and whole"):
        read({"a/1.png": png(), "b/1.png": png()[:40]}, size=5, channels=1)
    with pytest.raises(ValueError, match=r"b/1\.png must be a PNG, .* and whole"):
        read({"a/1.png": png(), "b/1.png": b"no"})


def test_empty_and_endless_folders_are_refused(tmp_path, monkeypatch):
    write_files(tmp_path / "set", {"a/1.png": png(), "b/1.png": png()})
    (tmp_path / "set" / "c").mkdir()
    with pytest.raises(ValueError, match=r"folder .*c must hold at least one image, got none; fill it or remove it"):
        read_folder_tree(tmp_path / "set", None, None, None)
    (tmp_path / "set" / "c").rmdir()
    (tmp_path / "set" / "a" / "again").symlink_to(tmp_path / "set")
    with pytest.raises(ValueError, match="must nest at most 6 folders"):
        read_folder_tree(tmp_path / "set", None, None, None)
    (tmp_path / "set" / "a" / "again").unlink()
    monkeypatch.setattr(trees, "MOST_FILES", 1)
    with pytest.raises(ValueError, match="must hold at most 1 images, got more"):
        read_folder_tree(tmp_path / "set", None, None, None)


def test_a_zip_without_classes_says_so(tmp_path):
    with pytest.raises(ValueError, match="must hold class folders with images, got none"):
        read_zip(write_zip(tmp_path / "x.zip", {"1.png": png(), "a/b.txt": b""}), None, None, None)
    with pytest.raises(ValueError, match="got one-shot runs; read them with read_one_shot_runs"):
        read_zip(write_zip(tmp_path / "x.zip", {"run01/class_labels.txt": b""}), None, None, None)
