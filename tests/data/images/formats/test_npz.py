import io
import zipfile

import numpy as np
import pytest
import torch

from sightline.data import load
from sightline.errors import SightlineError

N, S = 6, 5


def pixels(count=N, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *(shape or (S, S))), dtype=np.uint8)


LABELS = np.arange(N) % 3


@pytest.mark.parametrize(
    ("names", "splits_"),
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
def test_all_sets_of_keys_are_read(names, splits_, save, tmp_path):
    path = tmp_path / "set.npz"
    save(path, **{name: LABELS if i % 2 else pixels() for i, name in enumerate(names)})
    for source in (path, tmp_path):
        splits = load(source)
        for split in ("train", "validation", "test"):
            part = getattr(splits, split)
            assert (part is not None) == (split in splits_)
            if part is not None:
                assert torch.equal(part.pixels, torch.from_numpy(pixels())[:, None])
                assert part.labels.tolist() == LABELS.tolist()


def test_channel_order_and_memory_order_are_detected(tmp_path):
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
        ({"images": pixels()}, r"must have the key labels, got none"),
        (
            {"images": pixels() / 255, "labels": LABELS},
            r"images in .* must be uint8 .* got float64; convert floats",
        ),
        ({"images": pixels().astype(np.int64), "labels": LABELS}, r"must be uint8 .* got int64"),
        ({"images": pixels(N, 25), "labels": LABELS}, r"must have shape \(N, H, W\), .* got \(6, 25\)"),
        ({"images": pixels(N, S, S, 4), "labels": LABELS}, r"must have shape .* 1 or 3 channels, got \(6, 5, 5, 4\)"),
        ({"images": pixels(), "labels": LABELS / 1}, r"must be integers of shape \(N,\), got float64"),
        ({"images": pixels(), "labels": np.eye(N, dtype=int)}, r"must be integers of shape \(N,\)"),
        ({"images": pixels(), "labels": LABELS[1:]}, r"one label for each of 6 images, got 5"),
        ({"images": pixels(), "labels": LABELS - 1}, r"labels of train of .* must be 0 or more, got -1"),
        ({"images": pixels(), "labels": LABELS * 0}, r"at least two classes, got one class"),
        ({"images": pixels(), "labels": LABELS * 2**40}, r"must be 0 to 65535, got"),
        ({"images": pixels(), "labels": LABELS, "classes": ["a", "b"]}, r"must be 0 to 1 for 2 class names, got 2"),
        ({"images": pixels(), "labels": LABELS, "classes": ["a", "b", "a"]}, r"class names must differ, got 'a'"),
        ({"images": pixels(), "labels": LABELS, "classes": [1, 2, 3]}, r"classes in .* must be text of shape"),
        ({"images": pixels(0), "labels": LABELS[:0]}, r"must have at least one image, got shape"),
        ({"images": pixels(N, 4, 6), "labels": LABELS}, r"must be square if no image size is given, got 6 x 4"),
    ],
)
def test_invalid_arrays_are_rejected(arrays, message, tmp_path):
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(SightlineError, match=message):
        load(tmp_path / "set.npz")


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("key", ["images", "labels", "classes"])
def test_pickles_are_never_loaded(key, tmp_path):
    arrays = {"images": pixels(), "labels": LABELS} | {key: np.array([Trap()] * N, dtype=object)}
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(SightlineError, match=rf"{key} in .* got Python objects, which are never loaded"):
        load(tmp_path / "set.npz")


def write_npz(path, images, compression=zipfile.ZIP_STORED):
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", labels.getvalue())


def test_headers_with_too_large_shapes_are_rejected(tmp_path):
    for shape, message in (
        ((10_000, 500, 500), r"images in .* must have 2,500,000,000 bytes according to its header, got \d+"),
        ((10**6, 10**4, 10**4), r"images in .* must be at most 17,179,869,184 bytes, got"),
    ):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
        write_npz(tmp_path / "set.npz", head.getvalue() + bytes(100))
        with pytest.raises(SightlineError, match=message):
            load(tmp_path / "set.npz")


def test_a_zip_bomb_is_rejected_early(tmp_path):
    head = io.BytesIO()
    np.save(head, pixels())
    write_npz(tmp_path / "set.npz", head.getvalue() + bytes(50_000_000), zipfile.ZIP_DEFLATED)
    with pytest.raises(SightlineError, match=r"must have 150 bytes according to its header, got more"):
        load(tmp_path / "set.npz")


def test_other_compression_types_are_rejected(tmp_path):
    head = io.BytesIO()
    np.save(head, pixels())
    write_npz(tmp_path / "set.npz", head.getvalue(), zipfile.ZIP_BZIP2)
    with pytest.raises(SightlineError, match=r"images in .* must be stored or deflated, got compression type 12"):
        load(tmp_path / "set.npz")


def test_damaged_files_are_reported(tmp_path):
    path = tmp_path / "set.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(SightlineError, match=r"set.npz must be a complete npz file, got an error: .*; write it again"):
        load(path)
    write_npz(path, b"nothing")
    with pytest.raises(SightlineError, match=r"images in .*set.npz must be an array written by np.savez"):
        load(path)
    np.savez_compressed(path, images=pixels(), labels=LABELS)
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[position] ^= 0x55
        path.write_bytes(broken)
        try:
            load(path)
        except SightlineError as error:
            assert "must" in str(error)  # noqa: PT017


@pytest.mark.parametrize("header", [b"-" * 9000, b"(" * 9000, b"{'descr': " + b"[" * 5000, b"\xff" * 100])
def test_a_header_that_is_not_a_dictionary_is_rejected(header, tmp_path):
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    write_npz(tmp_path / "set.npz", array)
    with pytest.raises(SightlineError, match=r"images in .* must be an array written by np.savez, got an error"):
        load(tmp_path / "set.npz")
