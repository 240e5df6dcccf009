import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.data import load
from sightline.errors import SightlineError

FASHION = Path("/usr/share/datasets/fashion-mnist")
N, S = 6, 5


def pixels(count=N, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *(shape or (S, S))), dtype=np.uint8)


def idx(array, magic=None):
    head = bytes((0, 0, 8, array.ndim)) if magic is None else magic
    return head + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_idx(folder, compressed=True, dot="-", test=True, **changes):
    for part in ("train", "t10k") if test else ("train",):
        for what, array in (("images", pixels()), ("labels", np.arange(N, dtype=np.uint8) % 3)):
            name = f"{part}-{what}{dot}idx{array.ndim}-ubyte"
            data = changes.get(f"{part}_{what}", idx(array))
            path = folder / (name + ".gz" if compressed else name)
            path.write_bytes(gzip.compress(data) if compressed else data)
    return folder


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_are_read(compressed, dot, tmp_path):
    splits = load(write_idx(tmp_path, compressed, dot))
    assert splits.format == "idx files"
    assert torch.equal(splits.train.pixels, torch.from_numpy(pixels())[:, None])
    assert splits.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert splits.train.classes == ("0", "1", "2")
    assert len(splits.test) == N


def test_the_test_set_is_optional_and_duplicates_may_be_compressed(tmp_path):
    write_idx(write_idx(tmp_path, compressed=True, test=False), compressed=False, test=False)
    assert load(tmp_path).test is None


@pytest.mark.parametrize("name", ["classes.txt", "labels.txt"])
def test_class_names_are_read_from_a_text_file(name, tmp_path):
    write_idx(tmp_path)
    (tmp_path / name).write_text("coat\nbag\n\nshoe\n", encoding="utf-8-sig")
    assert load(tmp_path).train.classes == ("coat", "bag", "shoe")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"coat\nbag\n", r"must be 0 to 1 for 2 class names, got 2"),
        (b"coat\nbag\ncoat\n", r"classes.txt: class names must differ, got 'coat' and 'coat'"),
        (b"\n", r"classes.txt: classes must have at least one name, got none"),
        (b"\xff\xfe\x00", r"classes.txt must be UTF-8 text, got an error"),
        (b"a\n" * (1 << 22), r"classes.txt must be at most 4,194,304 bytes"),
    ],
)
def test_invalid_class_names_are_rejected(text, message, tmp_path):
    write_idx(tmp_path)
    (tmp_path / "classes.txt").write_bytes(text)
    with pytest.raises(SightlineError, match=message):
        load(tmp_path)


HUGE = bytes((0, 0, 8, 3)) + (2**31).to_bytes(4, "big") * 3
LARGE = bytes((0, 0, 8, 3)) + b"".join(n.to_bytes(4, "big") for n in (100_000, 28, 28))


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": idx(pixels(), bytes((0, 0, 13, 3)))}, r"must start with the bytes 0 0 8 3 .* got 0 0 13 3"),
        ({"train_images": b""}, r"must start with the bytes 0 0 8 3 .* got nothing"),
        ({"train_images": idx(pixels()[0, 0])}, r"must start with the bytes 0 0 8 3 .* got 0 0 8 1"),
        ({"train_images": idx(pixels())[:-1]}, r"must have 150 bytes according to its header, got"),
        ({"train_images": idx(pixels()) + b"x"}, r"must have 150 bytes according to its header, got more"),
        ({"train_images": HUGE}, r"must be at most 17,179,869,184 bytes, got"),
        ({"train_images": LARGE}, r"must have 78,400,000 bytes according to its header, got at most"),
        ({"train_images": idx(pixels(4))}, r"train of .* one label for each of 4 images, got 6"),
        ({"train_labels": idx(np.zeros(N, np.uint8))}, r"must have images of at least two classes, got one class"),
        ({"train_images": idx(pixels(0)), "train_labels": idx(np.zeros(0, np.uint8))}, r"must have at least one image"),
    ],
)
def test_inconsistent_files_are_rejected(compressed, changes, message, tmp_path):
    with pytest.raises(SightlineError, match=message):
        load(write_idx(tmp_path, compressed, **changes))


def test_a_gzip_bomb_is_rejected_early(tmp_path):
    bomb = idx(pixels()) + bytes(50_000_000)
    with pytest.raises(SightlineError, match=r"must have 150 bytes according to its header, got more"):
        load(write_idx(tmp_path, train_images=bomb))


@pytest.mark.parametrize("keep", [12, 60, -5])
def test_a_truncated_gzip_file_is_reported(keep, tmp_path):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SightlineError, match=r"train-images-idx3-ubyte.gz must"):
        load(tmp_path)


def test_a_gz_file_that_is_not_gzip_is_reported(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(idx(pixels()))
    with pytest.raises(
        SightlineError, match=r"must be a complete idx file, got an error: .*; copy or download it again"
    ):
        load(tmp_path)


def test_missing_files_are_reported(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(SightlineError, match=r"must have a file of test labels, got none"):
        load(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(N, dtype=np.uint8))))
    with pytest.raises(SightlineError, match=r"must have a file of train images"):
        load(tmp_path)


def test_two_files_for_one_split_are_rejected(tmp_path):
    write_idx(write_idx(tmp_path, dot="-"), dot=".")
    with pytest.raises(SightlineError, match=r"must have one file of test images, got"):
        load(tmp_path)


@pytest.mark.skipif(not FASHION.is_dir(), reason="Fashion-MNIST is not installed")
def test_fashion_mnist_is_read():
    splits = load(FASHION)
    assert splits.train.pixels.shape == (60_000, 1, 28, 28)
    assert torch.bincount(splits.test.labels).tolist() == [1000] * 10
