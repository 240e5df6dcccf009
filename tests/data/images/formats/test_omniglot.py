import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data.images.class_splits import load_classes
from sightline.data.images.formats import omniglot
from sightline.errors import SightlineError

SIDE = 11
NAMES = ["background/Latin/character02", "background/Latin/character01", "evaluation/Greek/character01"]


def packed_arrays(**changes):
    ink = np.random.default_rng(0).integers(0, 2, (6, SIDE * SIDE), dtype=np.uint8)
    content = {
        "images_packed": np.packbits(ink, axis=1),
        "shape": np.array([SIDE, SIDE]),
        "label": np.array([0, 0, 1, 1, 2, 2], dtype=np.int16),
        "drawer": np.array([1, 2] * 3, dtype=np.int8),
        "classes": np.array(NAMES),
    }
    return ink.reshape(-1, SIDE, SIDE), {key: value for key, value in (content | changes).items() if value is not None}


@pytest.mark.parametrize("size", [None, 7])
def test_packed_images_equal_image_files(size, tmp_path):
    ink, content = packed_arrays()
    np.savez_compressed(tmp_path / "packed.npz", **content)
    for row, label in enumerate(content["label"]):
        path = tmp_path / "omniglot" / f"images_{NAMES[label]}" / f"{label:04d}_{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - 255 * ink[row]).convert("1").save(path)
    packed, files = load_classes(tmp_path / "packed.npz", size=size), load_classes(tmp_path / "omniglot", size=size)
    assert packed.format == files.format == "Omniglot"
    assert packed.train.classes == ("Latin/character01", "Latin/character02")
    for actual, expected in ((packed.train, files.train), (packed.test, files.test)):
        assert actual.classes == expected.classes
        order = actual.labels.argsort(stable=True)
        assert torch.equal(actual.labels[order], expected.labels)
        assert (actual.pixels[order].int() - expected.pixels.int()).abs().max() <= 1
    assert packed.validation is files.validation is None


def test_other_class_names_are_kept(tmp_path):
    np.savez(tmp_path / "packed.npz", **packed_arrays(classes=np.array(["a", "b/c", "evaluation/d"]))[1])
    splits = load_classes(tmp_path, channels=3)
    assert splits.train.classes == ("a", "b/c", "evaluation/d")
    assert splits.train.pixels.shape == (6, 3, SIDE, SIDE)
    assert splits.test is None


def test_other_npz_files_are_not_detected(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros(3))
    (tmp_path / "b.npz").write_text("no")
    assert not any(map(omniglot.detect, (tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "c.npz", tmp_path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None}, "must have the key label, got none"),
        ({"shape": None}, "must have 1379 bytes for 105 x 105, got 16"),
        ({"shape": np.array([11, 13])}, "must be two equal side lengths, got"),
        ({"shape": np.array([10**9, 10**9])}, "must be two equal side lengths, got"),
        ({"images_packed": np.zeros((6, 16))}, "must be uint8 of shape"),
        ({"label": np.arange(6)}, "labels must be 0 to 2 for 3 classes, got 0 to 5"),
        ({"label": np.arange(2)}, "labels must have one entry for each of 6 images, got 2"),
        ({"classes": np.array([b"a", b"b", b"c"])}, "must be text of shape"),
        ({"classes": np.array(["background/a", "evaluation/a", "c"])}, None),
    ],
)
def test_invalid_files_are_rejected(changes, message, tmp_path):
    np.savez(tmp_path / "packed.npz", **packed_arrays(**changes)[1])
    if message is None:
        assert len(load_classes(tmp_path / "packed.npz").train.classes) == 3
        return
    with pytest.raises(SightlineError, match=message):
        load_classes(tmp_path / "packed.npz")
