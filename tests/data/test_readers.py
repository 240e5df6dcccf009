import gzip
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import ImageFiles, ImageSet, load, read_image, readers

N, S = 6, 5
FASHION = Path("/usr/share/datasets/fashion-mnist")


def pixels(count=N, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *(shape or (S, S))), dtype=np.uint8)


# ---- class folders


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
    monkeypatch.setattr(readers, "MOST_HEADERS", 3)
    monkeypatch.setattr(readers, "header", lambda path: read.append(path) or (S, S, True))
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
    monkeypatch.setattr(readers, "MOST_FILES", 3)
    with pytest.raises(ValueError, match=r"must hold at most 3 images, got more"):
        load(folders)


# ---- idx


def idx(array, magic=None):
    head = bytes((0, 0, 8, array.ndim)) if magic is None else magic
    return head + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_idx(folder, zipped=True, dot="-", test=True, **changes):
    for part in ("train", "t10k") if test else ("train",):
        for what, array in (("images", pixels()), ("labels", np.arange(N, dtype=np.uint8) % 3)):
            name = f"{part}-{what}{dot}idx{array.ndim}-ubyte"
            data = changes.get(f"{part}_{what}", idx(array))
            path = folder / (name + ".gz" if zipped else name)
            path.write_bytes(gzip.compress(data) if zipped else data)
    return folder


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_read(zipped, dot, tmp_path):
    splits = load(write_idx(tmp_path, zipped, dot))
    assert splits.kind == "idx files"
    assert torch.equal(splits.train.pixels, torch.from_numpy(pixels())[:, None])
    assert splits.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert splits.train.classes == ("0", "1", "2")
    assert len(splits.test) == N


def test_idx_files_may_be_train_alone_and_lie_zipped_and_unzipped(tmp_path):
    write_idx(write_idx(tmp_path, zipped=True, test=False), zipped=False, test=False)
    assert load(tmp_path).test is None


@pytest.mark.parametrize("name", ["classes.txt", "labels.txt"])
def test_names_beside_idx_files_are_the_classes(name, tmp_path):
    write_idx(tmp_path)
    (tmp_path / name).write_text("coat\nbag\n\nshoe\n", encoding="utf-8-sig")
    assert load(tmp_path).train.classes == ("coat", "bag", "shoe")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"coat\nbag\n", r"must be 0 to 1 for its 2 class names, got 2"),
        (b"coat\nbag\ncoat\n", r"classes.txt: class names must differ, got 'coat' more than once"),
        (b"\n", r"classes.txt: classes must name at least one class, got none"),
        (b"\xff\xfe\x00", r"classes.txt must be text in UTF-8, got an error"),
        (b"a\n" * (1 << 22), r"classes.txt must be at most 4,194,304 bytes"),
    ],
)
def test_names_that_do_not_match_are_refused(text, message, tmp_path):
    write_idx(tmp_path)
    (tmp_path / "classes.txt").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


HUGE = bytes((0, 0, 8, 3)) + (2**31).to_bytes(4, "big") * 3
LARGE = bytes((0, 0, 8, 3)) + b"".join(n.to_bytes(4, "big") for n in (100_000, 28, 28))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": idx(pixels(), bytes((0, 0, 13, 3)))}, r"must start with the bytes 0 0 8 3 .* got 0 0 13 3"),
        ({"train_images": b""}, r"must start with the bytes 0 0 8 3 .* got nothing"),
        ({"train_images": idx(pixels()[0, 0])}, r"must start with the bytes 0 0 8 3 .* got 0 0 8 1"),
        ({"train_images": idx(pixels())[:-1]}, r"must hold 150 bytes as its header says, got"),
        ({"train_images": idx(pixels()) + b"x"}, r"must hold 150 bytes as its header says, got more"),
        ({"train_images": HUGE}, r"must be at most 17,179,869,184 bytes, got"),
        ({"train_images": LARGE}, r"must hold 78,400,000 bytes as its header says, got at most"),
        ({"train_images": idx(pixels(4))}, r"train of .* one label for each image, got 4 images and 6 labels"),
        ({"train_labels": idx(np.zeros(N, np.uint8))}, r"must have images of at least two classes, got one class only"),
        ({"train_images": idx(pixels(0)), "train_labels": idx(np.zeros(0, np.uint8))}, r"must hold at least one image"),
    ],
)
def test_idx_files_that_lie_are_refused(zipped, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(write_idx(tmp_path, zipped, **changes))


def test_a_gzip_bomb_is_left_as_soon_as_it_says_more_than_its_header(tmp_path):
    bomb = idx(pixels()) + bytes(50_000_000)
    with pytest.raises(ValueError, match=r"must hold 150 bytes as its header says, got more"):
        load(write_idx(tmp_path, train_images=bomb))


@pytest.mark.parametrize("keep", [12, 60, -5])
def test_a_torn_gzip_file_is_named(keep, tmp_path):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz must"):
        load(tmp_path)


def test_a_gzip_file_that_is_none_is_named(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(idx(pixels()))
    with pytest.raises(ValueError, match=r"must be a whole idx file, got an error: .*; copy or download it again"):
        load(tmp_path)


def test_missing_idx_files_are_named(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"must hold the labels of test \(such as .*\), got no such file"):
        load(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(N, dtype=np.uint8))))
    with pytest.raises(ValueError, match=r"must hold the images of train"):
        load(tmp_path)


def test_two_files_for_one_part_are_refused(tmp_path):
    write_idx(write_idx(tmp_path, dot="-"), dot=".")
    with pytest.raises(ValueError, match=r"must hold one file of test images, got"):
        load(tmp_path)


@pytest.mark.skipif(not FASHION.is_dir(), reason="Fashion-MNIST is not installed")
def test_fashion_mnist_is_read():
    splits = load(FASHION)
    assert splits.train.pixels.shape == (60_000, 1, 28, 28)
    assert torch.bincount(splits.test.labels).tolist() == [1000] * 10


# ---- npz

LABELS = np.arange(N) % 3


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (("x_train", "y_train", "x_test", "y_test"), ("train", "test")),
        (
            ("train_images", "train_labels", "val_images", "val_labels", "test_images", "test_labels"),
            ("train", "validation", "test"),
        ),
        (("images", "labels"), ("train",)),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_is_read_under_each_set_of_names(names, roles, save, tmp_path):
    path = tmp_path / "set.npz"
    save(path, **{name: LABELS if i % 2 else pixels() for i, name in enumerate(names)})
    for source in (path, tmp_path):
        splits = load(source)
        for role in ("train", "validation", "test"):
            part = getattr(splits, role)
            assert (part is not None) == (role in roles)
            if part is not None:
                assert torch.equal(part.pixels, torch.from_numpy(pixels())[:, None])
                assert part.labels.tolist() == LABELS.tolist()


def test_an_npz_may_have_its_channels_first_or_last_and_any_order(tmp_path):
    rgb = pixels(N, S, S, 3)
    first = torch.from_numpy(rgb).permute(0, 3, 1, 2)
    forms = (rgb, rgb.transpose(0, 3, 1, 2), np.asfortranarray(rgb), rgb[..., :1], rgb[..., 0])
    for array in forms:
        np.savez(tmp_path / "set.npz", images=array, labels=LABELS[:, None].astype(np.int8), classes=["a", "b", "c"])
        train = load(tmp_path / "set.npz").train
        assert train.classes == ("a", "b", "c")
        assert torch.equal(train.pixels, first[:, : train.channels])
    assert load(tmp_path / "set.npz", channels=3).train.channels == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": pixels()}, r"must have the keys x_train, y_train, or .*, got data"),
        ({"images": pixels()}, r"must have the key labels beside its twin"),
        (
            {"images": pixels() / 255, "labels": LABELS},
            r"images in .* must be of type uint8 .* got float64; convert it",
        ),
        ({"images": pixels().astype(np.int64), "labels": LABELS}, r"must be of type uint8 .* got int64"),
        ({"images": pixels(N, 25), "labels": LABELS}, r"must have shape \(N, H, W\), .* got \(6, 25\)"),
        ({"images": pixels(N, S, S, 4), "labels": LABELS}, r"must have shape .* C 1 or 3, got \(6, 5, 5, 4\)"),
        ({"images": pixels(), "labels": LABELS / 1}, r"must be whole numbers of shape \(N,\), .* got float64"),
        ({"images": pixels(), "labels": np.eye(N, dtype=int)}, r"must be whole numbers of shape \(N,\)"),
        ({"images": pixels(), "labels": LABELS[1:]}, r"one label for each image, got 6 images and 5 labels"),
        ({"images": pixels(), "labels": LABELS - 1}, r"labels of train of .* must be 0 or more, got -1"),
        ({"images": pixels(), "labels": LABELS * 0}, r"at least two classes, got one class only"),
        ({"images": pixels(), "labels": LABELS * 2**40}, r"must be at most 65535, got"),
        ({"images": pixels(), "labels": LABELS, "classes": ["a", "b"]}, r"must be 0 to 1 for its 2 class names, got 2"),
        ({"images": pixels(), "labels": LABELS, "classes": ["a", "b", "a"]}, r"class names must differ, got 'a'"),
        ({"images": pixels(), "labels": LABELS, "classes": [1, 2, 3]}, r"classes in .* must be text of shape"),
        ({"images": pixels(0), "labels": LABELS[:0]}, r"must hold at least one image, got shape"),
        ({"images": pixels(N, 4, 6), "labels": LABELS}, r"must be square unless data.image_size .* got 6 x 4"),
    ],
)
def test_an_npz_that_does_not_fit_is_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "set.npz")


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("key", ["images", "labels", "classes"])
def test_an_npz_with_a_pickle_inside_is_refused_and_never_loaded(key, tmp_path):
    arrays = {"images": pixels(), "labels": LABELS} | {key: np.array([Trap()] * N, dtype=object)}
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(ValueError, match=rf"{key} in .* got Python objects, which are never loaded"):
        load(tmp_path / "set.npz")


def npz(path, images, compression=zipfile.ZIP_STORED):
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", labels.getvalue())


def test_an_npz_whose_header_promises_more_than_there_is_is_refused(tmp_path):
    for shape, message in (
        ((10_000, 500, 500), r"images in .* must hold 2,500,000,000 bytes as its header says, got \d+"),
        ((10**6, 10**4, 10**4), r"images in .* must be at most 17,179,869,184 bytes, got"),
    ):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
        npz(tmp_path / "set.npz", head.getvalue() + bytes(100))
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "set.npz")


def test_a_zip_bomb_is_left_as_soon_as_it_says_more_than_its_header(tmp_path):
    head = io.BytesIO()
    np.save(head, pixels())
    npz(tmp_path / "set.npz", head.getvalue() + bytes(50_000_000), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"must hold 150 bytes as its header says, got more"):
        load(tmp_path / "set.npz")


def test_an_npz_of_nonsense_is_named(tmp_path):
    path = tmp_path / "set.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"set.npz must be a whole npz file, got an error: .*; write it again"):
        load(path)
    npz(path, b"nothing")
    with pytest.raises(ValueError, match=r"images in .*set.npz must be an array as np.savez writes it"):
        load(path)
    np.savez_compressed(path, images=pixels(), labels=LABELS)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[place] ^= 0x55
        path.write_bytes(broken)
        try:
            load(path)
        except ValueError as error:
            assert "must" in str(error)  # noqa: PT017


# ---- CIFAR


def cifar(count, marks, classes=3, seed=0):
    rows = np.random.default_rng(seed).integers(0, 256, (count, marks + 3072), dtype=np.uint8)
    rows[:, marks - 1] = np.arange(count) % classes
    return rows


def test_cifar_10_is_read(tmp_path):
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(cifar(4, 1, seed=number).tobytes())
    (tmp_path / "test_batch.bin").write_bytes(cifar(3, 1).tobytes())
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\nbird\n\n")
    splits = load(tmp_path)
    assert splits.kind == "CIFAR binary files"
    assert splits.train.classes == ("airplane", "automobile", "bird")
    assert (len(splits.train), len(splits.test)) == (20, 3)
    assert splits.train.pixels[4].flatten().tolist() == cifar(4, 1, seed=2)[0, 1:].tolist()
    assert splits.train.labels[:5].tolist() == [0, 1, 2, 0, 0]
    assert load(tmp_path, size=16, channels=1).train.pixels.shape == (20, 1, 16, 16)


def test_cifar_100_is_read_with_its_fine_labels(tmp_path):
    (tmp_path / "train.bin").write_bytes(cifar(5, 2).tobytes())
    (tmp_path / "test.bin").write_bytes(cifar(3, 2).tobytes())
    (tmp_path / "fine_label_names.txt").write_text("apple\nfish\nbaby\n")
    splits = load(tmp_path)
    assert splits.train.labels.tolist() == [0, 1, 2, 0, 1]
    assert splits.train.classes == ("apple", "fish", "baby")
    (tmp_path / "test.bin").unlink()
    (tmp_path / "fine_label_names.txt").unlink()
    assert load(tmp_path).test is None
    assert load(tmp_path).train.classes == ("0", "1", "2")


@pytest.mark.parametrize("cut", [1, None])
def test_a_cifar_file_of_another_length_is_refused(cut, tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(cifar(3, 1).tobytes()[: -cut if cut else 0])
    with pytest.raises(ValueError, match=r"data_batch_1.bin must hold records of 3073 bytes .* got"):
        load(tmp_path)


def test_a_cifar_label_without_a_name_is_refused(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(cifar(12, 1, classes=12).tobytes())
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    with pytest.raises(ValueError, match=r"labels of .* must be 0 to 9 for its 10 class names, got 11"):
        load(tmp_path)


# ---- arrays brought to a form


def test_fit_agrees_with_reading_images_one_by_one():
    array = pixels(3, 24, 20, 3)
    fitted = readers.fit(torch.from_numpy(array).permute(0, 3, 1, 2), 10, None, "these")
    for ours, image in zip(fitted, array, strict=True):
        assert (ours.int() - read_image(image, size=10).int()).abs().max() <= 2  # Pillow rounds twice
    grey = readers.fit(torch.from_numpy(array[:, :20]).permute(0, 3, 1, 2), None, 1, "these")
    for ours, image in zip(grey, array[:, :20], strict=True):
        assert torch.equal(ours, read_image(image, channels=1))
