import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.data import load

FASHION = Path("/usr/share/datasets/fashion-mnist")
N, S = 6, 5


def pixels(count=N, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *(shape or (S, S))), dtype=np.uint8)


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
