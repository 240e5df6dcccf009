import os

import pytest
import torch
from PIL import Image

from sightline import limits
from sightline.data import ImageFiles, ImageSet, load
from sightline.data.images.formats import class_folders
from sightline.errors import SightlineError

N, S = 6, 5


def write(path, size=(S, S), mode="RGB", shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 0)).save(path)


@pytest.fixture
def folders(tmp_path):
    for shade, name in enumerate(("dog", "cat", "owl")):
        for number in range(2):
            write(tmp_path / name / f"{number}.png", shade=10 * shade + number)
    return tmp_path


def test_class_folders_are_read_in_alphabetical_order(folders):
    splits = load(folders)
    assert splits.format == "class folders"
    assert splits.validation is None
    assert splits.test is None
    assert isinstance(splits.train, ImageSet)
    assert splits.train.classes == ("cat", "dog", "owl")
    assert splits.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert splits.train.pixels[:, 0, 0, 0].tolist() == [10, 11, 0, 1, 20, 21]
    assert torch.equal(load(str(folders)).train.pixels, splits.train.pixels)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Validation"])
def test_splits_are_found_by_their_names(name, tmp_path):
    for part, shade in (("train", 1), (name, 2), ("test", 3)):
        for kind in ("a", "b", "c"):
            if part != "test" or kind != "a":
                write(tmp_path / part / kind / "x.png", shade=shade)
    progress = []
    splits = load(tmp_path, progress=lambda done, total: progress.append((done, total)))
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [3, 3, 2]
    assert [int(p.pixels[0, 0, 0, 0]) for p in (splits.train, splits.validation, splits.test)] == [1, 2, 3]
    assert splits.test.labels.tolist() == [1, 2]
    assert progress == [(done, 8) for done in range(1, 9)]


def test_images_over_the_memory_limit_stay_in_files(folders):
    splits = load(folders, max_memory=N * 3 * S * S - 1)
    assert isinstance(splits.train, ImageFiles)
    assert torch.equal(splits.train.load().pixels, load(folders, max_memory=N * 3 * S * S).train.pixels)


def test_channels_are_those_of_the_images(folders):
    assert load(folders).train.channels == 3
    assert load(folders, channels=1).train.channels == 1
    for path in folders.glob("*/*.png"):
        write(path, mode="L")
    assert load(folders).train.channels == 1
    assert load(folders, channels=3).train.channels == 3


def test_hidden_and_other_files_are_skipped(folders):
    for name in (".hidden.png", "Thumbs.db", "notes.txt", "__MACOSX.png", "no_suffix"):
        (folders / "cat" / name).write_text("nothing")
    (folders / "README.md").write_text("nothing")
    (folders / "cat" / ".cache").mkdir()
    (folders / ".git").mkdir()
    assert len(load(folders).train) == N


def test_a_class_can_have_any_other_name(folders):
    write(folders / "__owl__" / "0.png")
    (folders / "__pycache__").mkdir()
    assert "__owl__" in load(folders).train.classes


def test_different_sizes_need_an_image_size(folders):
    write(folders / "owl" / "0.png", size=(9, 8))
    with pytest.raises(SightlineError, match=r"images must have the same size if no image size is given") as error:
        load(folders)
    text = str(error.value)
    assert f"5 x 5 in {folders / 'cat' / '0.png'}" in text
    assert f"9 x 8 in {folders / 'owl' / '0.png'}" in text
    assert "set data.image_size" in text
    assert load(folders, size=4).train.size == 4


def test_images_that_are_not_square_need_an_image_size(folders):
    for path in folders.glob("*/*.png"):
        write(path, size=(6, 4))
    with pytest.raises(
        SightlineError, match=r"must be square if no image size is given, got 6 x 4; set data.image_size"
    ):
        load(folders)
    assert load(folders, size=4).train.size == 4


@pytest.mark.parametrize("size", [None, S])
def test_unreadable_images_are_listed(folders, size):
    for name in ("cat", "dog"):
        (folders / name / "1.png").write_bytes(b"nothing")
    with pytest.raises(
        SightlineError, match=r"must have files and folders that can be used, got 2 that cannot:"
    ) as error:
        load(folders, size=size)
    assert str(folders / "cat" / "1.png") in str(error.value)


def test_headers_of_a_large_folder_are_sampled(folders, monkeypatch):
    paths = []
    read_header = class_folders.read_header
    monkeypatch.setattr(class_folders, "HEADER_SAMPLE", 3)
    monkeypatch.setattr(class_folders, "read_header", lambda *args: paths.append(args) or read_header(*args))
    load(folders)
    assert len(paths) == 3


def test_a_folder_without_images_is_rejected(folders):
    (folders / "eel").mkdir()
    (folders / "eel" / "notes.txt").write_text("none yet")
    with pytest.raises(SightlineError, match=r"folder .*eel must contain at least one image .* got none; fill it"):
        load(folders)


def test_a_single_class_is_rejected(tmp_path):
    write(tmp_path / "cat" / "0.png")
    with pytest.raises(SightlineError, match=r"must contain at least two class folders, got only 'cat'$"):
        load(tmp_path)


def test_wrapper_folders_are_skipped(folders, tmp_path_factory):
    wrapper = tmp_path_factory.mktemp("wrapper")
    folders.rename(wrapper / "photos")
    assert load(wrapper).train.classes == ("cat", "dog", "owl")
    write(wrapper / "more" / "cat" / "0.png")
    assert load(wrapper).train.classes == ("more/cat", "photos/cat", "photos/dog", "photos/owl")


def test_a_link_to_the_folder_itself_is_rejected(folders):
    (folders / "cat" / "again").symlink_to(folders)
    with pytest.raises(SightlineError, match=r"must have at most 6 nested folders, got more in"):
        load(folders)


def test_links_to_images_and_folders_are_followed(folders, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(other / "emu" / "0.png", shade=99)
    (folders / "emu").symlink_to(other / "emu")
    (folders / "cat" / "2.png").symlink_to(other / "emu" / "0.png")
    assert torch.bincount(load(folders).train.labels).tolist() == [3, 2, 1, 2]


def test_broken_links_and_pipes_are_reported(folders):
    (folders / "cat" / "2.png").symlink_to(folders / "gone.png")
    with pytest.raises(SightlineError, match=r"2.png', which does not exist"):
        load(folders)
    (folders / "cat" / "2.png").unlink()
    os.mkfifo(folders / "cat" / "3.png")
    with pytest.raises(SightlineError, match=r"3.png', which is not a file"):
        load(folders)


def test_escape_sequences_in_file_names_are_replaced_in_messages(folders):
    name = "\x1b[31mred\n\x07.png"
    (folders / "cat" / name).write_bytes(b"not an image")
    with pytest.raises(SightlineError) as error:
        load(folders, size=S)
    assert "\ufffd[31mred\ufffd\ufffd.png must be a complete PNG" in str(error.value)
    assert str(error.value).isprintable()


def test_class_names_with_the_same_normal_form_are_rejected(tmp_path):
    for name in ("caf\u00e9", "cafe\u0301"):
        write(tmp_path / name / "0.png")
    if len(list(tmp_path.iterdir())) == 2:
        with pytest.raises(SightlineError, match=r"class names must differ, got"):
            load(tmp_path)


def test_a_class_that_is_not_in_train_is_rejected(tmp_path):
    for name in ("train/cat", "train/dog", "test/cta"):
        write(tmp_path / name / "0.png")
    message = (
        r"a class of test in .* must be in train, one of cat, dog, got 'cta'; did you mean 'cat'\?; .* task=few_shot"
    )
    with pytest.raises(SightlineError, match=message):
        load(tmp_path)
    write(tmp_path / "test/dog/0.png")
    with pytest.raises(SightlineError, match=message):
        load(tmp_path)
    with pytest.raises(SightlineError, match="a class must be in one split, got 'dog' in train and in test"):
        load(tmp_path, class_disjoint=True)


def test_ambiguous_split_folders_are_rejected(tmp_path):
    for name in ("test/cat", "test/dog", "val/cat"):
        write(tmp_path / name / "0.png")
    with pytest.raises(SightlineError, match=r"must contain a train folder with class folders, got only test, val"):
        load(tmp_path)
    for name in ("train/cat", "train/dog", "valid/cat"):
        write(tmp_path / name / "0.png")
    with pytest.raises(SightlineError, match=r"must contain one validation folder, got 'val' and 'valid'"):
        load(tmp_path)
    write(tmp_path / "extra" / "0.png")
    with pytest.raises(SightlineError, match=r"or class folders only, got 'extra' beside them"):
        load(tmp_path)


def test_the_number_of_files_is_limited(folders, monkeypatch):
    monkeypatch.setattr(limits, "MAX_IMAGE_FILES", 3)
    with pytest.raises(SightlineError, match=r"must have at most 3 images, got more"):
        load(folders)
