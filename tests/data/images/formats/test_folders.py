import os

import pytest
import torch
from PIL import Image

from sightline.data import ImageFiles, ImageSet, load
from sightline.data.images.formats import folders as folders_module

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


def test_a_folder_of_class_folders_is_read_in_the_order_of_names(folders):
    splits = load(folders)
    assert splits.kind == "class folders"
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


def test_a_large_folder_stays_in_its_files(folders):
    splits = load(folders, keep_in_memory=N * 3 * S * S - 1)
    assert isinstance(splits.train, ImageFiles)
    assert torch.equal(splits.train.loaded().pixels, load(folders, keep_in_memory=N * 3 * S * S).train.pixels)


def test_channels_are_those_of_the_images(folders):
    assert load(folders).train.channels == 3
    assert load(folders, channels=1).train.channels == 1
    for path in folders.glob("*/*.png"):
        write(path, mode="L")
    assert load(folders).train.channels == 1
    assert load(folders, channels=3).train.channels == 3


def test_other_files_are_passed_over(folders):
    for name in (".hidden.png", "Thumbs.db", "notes.txt", "__MACOSX.png", "no_suffix"):
        (folders / "cat" / name).write_text("nothing")
    (folders / "README.md").write_text("nothing")
    (folders / "cat" / ".cache").mkdir()
    (folders / ".git").mkdir()
    assert len(load(folders).train) == N


def test_images_of_other_sizes_ask_for_the_size(folders):
    write(folders / "owl" / "0.png", size=(9, 8))
    with pytest.raises(ValueError, match=r"images must be of one size unless data.image_size") as error:
        load(folders)
    text = str(error.value)
    assert f"5 x 5 in {folders / 'cat' / '0.png'}" in text
    assert f"9 x 8 in {folders / 'owl' / '0.png'}" in text
    assert "give data.image_size" in text
    assert load(folders, size=4).train.size == 4


def test_images_that_are_not_square_ask_for_the_size(folders):
    for path in folders.glob("*/*.png"):
        write(path, size=(6, 4))
    with pytest.raises(ValueError, match=r"must be square unless data.image_size .* got 6 x 4; give data.image_size"):
        load(folders)
    assert load(folders, size=4).train.size == 4


@pytest.mark.parametrize("size", [None, S])
def test_unreadable_images_are_named(folders, size):
    for name in ("cat", "dog"):
        (folders / name / "1.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"every image must be readable, got 2 that are not:") as error:
        load(folders, size=size)
    assert str(folders / "cat" / "1.png") in str(error.value)


def test_only_some_headers_of_a_large_folder_are_read(folders, monkeypatch):
    read = []
    monkeypatch.setattr(folders_module, "MOST_HEADERS", 3)
    monkeypatch.setattr(folders_module, "header", lambda path: read.append(path) or (S, S, True))
    load(folders)
    assert len(read) == 3


def test_a_class_folder_without_images_is_refused(folders):
    (folders / "eel").mkdir()
    (folders / "eel" / "notes.txt").write_text("none yet")
    with pytest.raises(
        ValueError, match=r"class folder .*eel must hold at least one image .* got none; fill it or remove"
    ):
        load(folders)


def test_one_class_only_is_refused(tmp_path):
    write(tmp_path / "cat" / "0.png")
    with pytest.raises(ValueError, match=r"must hold at least two class folders, got only 'cat'$"):
        load(tmp_path)


def test_class_folders_one_level_too_deep_are_pointed_to(folders, tmp_path_factory):
    above = tmp_path_factory.mktemp("above")
    folders.rename(above / "photos")
    with pytest.raises(ValueError, match=r"at least two class folders, got only 'photos'; did you mean .*photos\?"):
        load(above)
    write(above / "more" / "cat" / "0.png")
    with pytest.raises(ValueError, match=r"class folder .*more must hold its images directly, got the folder 'cat'"):
        load(above)


def test_a_link_to_the_folder_itself_does_not_go_round(folders):
    (folders / "cat" / "again").symlink_to(folders)
    with pytest.raises(ValueError, match=r"must hold its images directly, got the folder 'again' inside"):
        load(folders)


def test_links_to_images_and_folders_elsewhere_are_followed(folders, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere / "emu" / "0.png", shade=99)
    (folders / "emu").symlink_to(elsewhere / "emu")
    (folders / "cat" / "2.png").symlink_to(elsewhere / "emu" / "0.png")
    assert torch.bincount(load(folders).train.labels).tolist() == [3, 2, 1, 2]


def test_a_broken_link_and_a_pipe_are_named(folders):
    (folders / "cat" / "2.png").symlink_to(folders / "gone.png")
    with pytest.raises(ValueError, match=r"2.png', which is not there"):
        load(folders)
    (folders / "cat" / "2.png").unlink()
    os.mkfifo(folders / "cat" / "3.png")
    with pytest.raises(ValueError, match=r"3.png', which is no file"):
        load(folders)


def test_class_names_that_look_the_same_are_refused(tmp_path):
    for name in ("caf\u00e9", "cafe\u0301"):
        write(tmp_path / name / "0.png")
    if len(list(tmp_path.iterdir())) == 2:
        with pytest.raises(ValueError, match=r"class folders must have different names, got"):
            load(tmp_path)


def test_a_class_that_train_does_not_know_is_refused(tmp_path):
    for name in ("train/cat", "train/dog", "test/cta"):
        write(tmp_path / name / "0.png")
    with pytest.raises(
        ValueError, match=r"test must be one of those in train: one of cat, dog, got 'cta'; did you mean"
    ):
        load(tmp_path)


def test_splits_that_are_not_clear_are_refused(tmp_path):
    for name in ("test/cat", "test/dog", "val/cat"):
        write(tmp_path / name / "0.png")
    with pytest.raises(ValueError, match=r"must hold a train folder with class folders, got only test, val"):
        load(tmp_path)
    for name in ("train/cat", "train/dog", "valid/cat"):
        write(tmp_path / name / "0.png")
    with pytest.raises(ValueError, match=r"must hold one validation folder, got 'val' and 'valid'"):
        load(tmp_path)
    write(tmp_path / "extra" / "0.png")
    with pytest.raises(ValueError, match=r"or class folders alone, got 'extra' beside train"):
        load(tmp_path)


def test_too_many_files_are_refused(folders, monkeypatch):
    monkeypatch.setattr(folders_module, "MOST_FILES", 3)
    with pytest.raises(ValueError, match=r"must hold at most 3 images, got more"):
        load(folders)
