import numpy as np
import pytest
import torch

from class_folders import omniglot, png, write_files, write_zip
from sightline.data import ImageFiles, load, load_classes
from sightline.data.images import formats, glyphs, loading
from sightline.data.images.formats.arrays import image_sets
from sightline.data.images.loading import detect_format
from sightline.errors import SightlineError, SightlineWarning


def test_glyphs_are_loaded_by_name():
    splits = load("glyphs")
    assert splits.format == "glyphs"
    assert torch.equal(splits.train.pixels, glyphs.splits().train.pixels)


def test_glyphs_are_converted():
    splits = load("glyphs", size=16, channels=3)
    for images in splits.available.values():
        assert images.pixels.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize("source", ["glyhps", "/no/such/folder", "a\0b"])
def test_a_missing_source_is_rejected(source):
    with pytest.raises(
        loading.UnknownSourceError,
        match=r"a data set must be an existing path, or glyphs for generated",
    ):
        load(source)


def test_a_similar_name_is_suggested():
    with pytest.raises(SightlineError, match=r"did you mean 'glyphs'\?"):
        load("glyhps")


def test_an_unknown_format_lists_all_formats(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    for source in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(
            loading.UnknownSourceError, match=r"a data set must have one of the formats below, got"
        ) as error:
            load(source)
        assert all(image_format.DESCRIPTION in str(error.value) for image_format in formats.FORMATS.values())
        assert str(source) in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": -1}, "size must be an integer of at least 1, got -1"),
        ({"channels": 2}, "channels must be 1"),
        ({"max_memory": -1}, "max_memory must be an integer of at least 0"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(SightlineError, match=message):
        load("glyphs", **options)


def test_formats_are_detected(tmp_path):
    pixels, labels = np.zeros((4, 5, 5), np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "plain.npz", images=pixels, labels=labels)
    np.savez(tmp_path / "packed.npz", images_packed=np.packbits(pixels.reshape(4, -1), axis=1))
    sources = {
        tmp_path / "plain.npz": "npz",
        tmp_path / "packed.npz": "Omniglot",
        write_files(tmp_path / "omniglot", omniglot()): "Omniglot",
        write_zip(tmp_path / "set.zip", {"a/1.png": png(), "b/1.png": png()}): "zip file",
        write_files(tmp_path / "folders", {"a/1.png": png(), "b/1.png": png()}): "class folders",
        write_files(tmp_path / "cifar", {"train.bin": b""}): "CIFAR binary files",
        write_files(tmp_path / "mnist", {"train-images-idx3-ubyte": b""}): "idx files",
        write_files(tmp_path / "sheets", {"labels.json": b"", "train_0.png": b""}): "tile sheets",
    }
    assert {path: detect_format(path) for path in sources} == sources
    assert detect_format(write_files(tmp_path / "other", {"notes.txt": b""})) is None


def test_a_new_format_is_one_module_in_the_registry(tmp_path, monkeypatch):
    class Shades:
        """Text files of gray levels, one image per line, such as `3 cat`."""

        DESCRIPTION = "a .shades file"

        @staticmethod
        def detect(path):
            return path.suffix == ".shades"

        @staticmethod
        def read(path, size, channels):
            rows = [line.split() for line in path.read_text().splitlines()]
            classes = tuple(sorted({name for _, name in rows}))
            images = np.array([int(level) for level, _ in rows], dtype=np.uint8)[:, None, None, None].repeat(9, 2)
            labels = np.array([classes.index(name) for _, name in rows])
            return image_sets({"train": (images.repeat(9, 3), labels)}, path, classes, size, channels)

    monkeypatch.setitem(formats.FORMATS, "shades", Shades)
    (tmp_path / "x.shades").write_text("3 cat\n7 dog\n5 cat\n")
    splits = load(tmp_path / "x.shades")
    assert (splits.format, splits.train.classes) == ("shades", ("cat", "dog"))
    assert load_classes(tmp_path / "x.shades", size=5).train.pixels.shape == (3, 1, 5, 5)


def test_class_disjoint_splits_are_loaded_on_request(tmp_path):
    source = write_files(tmp_path / "omniglot", omniglot())
    with pytest.raises(SightlineError, match=r"a class of test in .* must be in train"):
        load(source)
    splits = load(source, class_disjoint=True)
    assert splits.class_disjoint
    assert (len(splits.train.classes), len(splits.test.classes)) == (9, 5)


def test_images_of_a_zip_file_can_stay_in_it(tmp_path):
    files = {f"{split}/{name}/{i}.png": png(10 * i) for split in ("train", "test") for name in "ab" for i in range(3)}
    source = write_zip(tmp_path / "set.zip", files)
    lazy, loaded = load(source, max_memory=0), load(source)
    assert isinstance(lazy.train, ImageFiles)
    assert lazy.train.archive == source
    assert lazy.train.read(2).unique().tolist() == [20]
    for name, images in loaded.available.items():
        assert torch.equal(lazy.available[name].load().pixels, images.pixels)
    assert not loaded.class_disjoint


def test_a_path_with_the_name_of_a_generated_data_set_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glyphs").mkdir()
    with pytest.warns(SightlineWarning, match="glyphs in this folder is not read; for that: ./glyphs"):
        assert load("glyphs").format == load("glyphs", size=7).format
