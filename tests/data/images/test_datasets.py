import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import ImageFiles, ImageSet, Splits
from sightline.data.images import datasets
from sightline.data.images.datasets import split
from sightline.errors import SightlineError

N, S = 7, 5
CLASSES = ("cat", "dog", "owl")


def random_images(count=N, channels=1, size=S):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count) % 3, CLASSES)


@pytest.fixture
def files(tmp_path):
    images = random_images(channels=3)
    paths = []
    for number, pixels in enumerate(images.pixels):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(paths[-1])
    return ImageFiles(tuple(paths), images.labels, CLASSES, S, 3)


def test_size_and_channels_are_those_of_the_pixels():
    images = random_images(channels=3)
    assert (len(images), images.size, images.channels) == (N, S, 3)


@pytest.mark.parametrize("indices", [[4, 0], torch.tensor([4, 0]), np.array([4, 0], dtype=np.int32), (4, 0)])
def test_take_selects_images_by_index(indices, files):
    images = random_images(channels=3)
    taken = images.take(indices)
    assert torch.equal(taken.pixels, images.pixels[[4, 0]])
    assert taken.labels.tolist() == [1, 0]
    assert files.take(indices).paths == (files.paths[4], files.paths[0])
    assert torch.equal(files.take(indices).load().pixels, taken.pixels)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([7], "indices must be 0 to 6, got 7 to 7"),
        ([-1], "indices must be 0 to 6, got -1 to -1"),
        ([], "indices must be a non-empty list of integers"),
        ([0.5], "indices must be a non-empty list of integers"),
        ([True] * N, "indices must be a non-empty list of integers"),
    ],
)
def test_invalid_indices_are_rejected(indices, message, files):
    for images in (random_images(), files):
        with pytest.raises(SightlineError, match=message):
            images.take(indices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": torch.zeros(N, 1, S, S)}, r"pixels must be uint8 of shape \(N, C, H, W\), got torch.float32"),
        ({"pixels": torch.zeros(N, S, S, dtype=torch.uint8)}, r"pixels must be uint8 of shape .* got .*\(7, 5, 5\)"),
        ({"pixels": torch.zeros(N, 4, S, S, dtype=torch.uint8)}, "pixels must have 1 or 3 channels"),
        ({"pixels": torch.zeros(N, 1, S, 6, dtype=torch.uint8)}, "pixels must be square, got 6 x 5"),
        ({"labels": torch.zeros(N)}, r"labels must be int64 of shape \(N,\), got torch.float32"),
        ({"labels": torch.zeros(6, dtype=torch.int64)}, "labels must have one entry for each of 7 images, got 6"),
        ({"labels": torch.full((N,), 3)}, "labels must be 0 to 2 for 3 classes, got 3 to 3"),
        ({"labels": torch.full((N,), -1)}, "labels must be 0 to 2 for 3 classes, got -1 to -1"),
        ({"classes": ()}, "classes must have at least one name, got none"),
        ({"classes": ("a", "\udcff", "c")}, "class names must be valid Unicode, got"),
        ({"classes": ("a", "b", "a")}, "class names must differ, got 'a' and 'a'"),
        ({"classes": ("a", "b", " ")}, "classes must be non-empty names, got ' '"),
    ],
)
def test_inconsistent_tensors_are_rejected(change, message):
    images = random_images()
    fields = {"pixels": images.pixels, "labels": images.labels, "classes": images.classes}
    with pytest.raises(SightlineError, match=message):
        ImageSet(**fields | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 1])}, "labels must have one entry for each of 7 images, got 2"),
        ({"labels": torch.full((N,), 5)}, "labels must be 0 to 2 for 3 classes, got 5 to 5"),
        ({"classes": ("a", "b", "a")}, "class names must differ, got 'a' and 'a'"),
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"channels": 7}, r"channels must be 1 \(gray\) or 3 \(color\), got 7"),
        ({"paths": (), "labels": torch.zeros(0, dtype=torch.int64)}, "at least one image, got none"),
    ],
)
def test_inconsistent_files_are_rejected(files, change, message):
    with pytest.raises(SightlineError, match=message):
        ImageFiles(**vars(files) | change)


def test_an_empty_set_is_rejected():
    with pytest.raises(SightlineError, match="a data set must have at least one image, got none"):
        ImageSet(torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), CLASSES)


def test_files_are_read_one_by_one_or_all(files):
    images = random_images(channels=3)
    assert torch.equal(files.read(2), images.pixels[2])
    progress = []
    loaded = files.load(lambda done, total: progress.append((done, total)))
    assert torch.equal(loaded.pixels, images.pixels)
    assert torch.equal(loaded.labels, images.labels)
    assert progress == [(done, N) for done in range(1, N + 1)]


def test_one_error_lists_unreadable_files(files):
    for path in files.paths[:5]:
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(SightlineError, match=r"all images must be readable, got 5 that are not:") as error:
        files.load()
    text = str(error.value)
    assert all(f"{i}.png" in text for i in range(5))
    assert "more" not in text


def test_splits_must_have_the_same_size_channels_and_classes():
    with pytest.raises(SightlineError, match=r"test must have the size of train, 5, got 6"):
        Splits(random_images(), None, random_images(size=6))
    with pytest.raises(SightlineError, match=r"validation must have the channels of train, 1, got 3"):
        Splits(random_images(), random_images(channels=3))
    renamed = ImageSet(random_images().pixels, random_images().labels, ("a", "b", "c"))
    with pytest.raises(SightlineError, match=r"test must have the classes of train, \('cat', 'dog', 'owl'\), got"):
        Splits(random_images(), None, renamed)


@pytest.mark.parametrize("class_disjoint", [False, True])
def test_valid_class_names_are_not_written_out(class_disjoint):
    """Data sets can have many classes."""

    class Name(str):
        def __repr__(self):
            raise AssertionError("built the message of a check that holds")

        __format__ = __repr__

    images, classes = random_images(), tuple(map(Name, "abc"))
    train = ImageSet(images.pixels, images.labels, classes)
    others = tuple(map(Name, "def")) if class_disjoint else classes
    Splits(train, test=ImageSet(images.pixels, images.labels, others), class_disjoint=class_disjoint)


def test_split_is_stratified_and_complete():
    images = random_images(count=60)
    rest, held_out = split(images, 0.25, seed=3)
    assert torch.bincount(rest.labels).tolist() == [15, 15, 15]
    assert torch.bincount(held_out.labels).tolist() == [5, 5, 5]
    images_ = {tuple(row.flatten().tolist()) for row in torch.cat((rest.pixels, held_out.pixels))}
    assert images_ == {tuple(row.flatten().tolist()) for row in images.pixels}


def test_split_depends_on_the_seed():
    images = random_images(count=60)
    first, again, other = (split(images, 0.5, seed=seed)[1].pixels for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_each_class_is_in_both_parts(fraction, files):
    for images in (random_images(count=6), files):
        for part in split(images, fraction, seed=0):
            assert part.labels.unique().tolist() == [0, 1, 2]


def test_a_class_with_one_image_cannot_be_split():
    with pytest.raises(
        SightlineError, match="each class must have at least 2 images to be split, got 1 of class 'dog'"
    ):
        split(random_images(count=5).take([0, 3, 1]), 0.5, seed=0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_the_fraction_must_leave_images_in_both_parts(fraction):
    with pytest.raises(SightlineError, match="fraction must be above 0 and below 1, got"):
        split(random_images(), fraction, seed=0)


def test_the_decoding_queue_is_limited(files, monkeypatch):
    """A queue of a million files would take gigabytes."""
    queued = []

    class Pool(datasets.ThreadPoolExecutor):
        def map(self, decode, indices):
            queued.append(len(indices))
            return super().map(decode, indices)

    monkeypatch.setattr(datasets, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(datasets, "QUEUE_SIZE", 3)
    done = []
    assert torch.equal(files.load(lambda *counts: done.append(counts)).pixels, random_images(channels=3).pixels)
    assert queued == [3, 3, 1]
    assert done == [(i, N) for i in range(1, N + 1)]


def test_splits_are_those_of_earlier_versions():
    held_out = split(random_images(count=24), 0.25, seed=3)[1]
    assert torch.equal(held_out.pixels, random_images(count=24).pixels[[1, 8, 14, 18, 19, 21]])


def test_class_disjoint_splits_are_declared():
    other = ImageSet(random_images().pixels, random_images().labels, ("a", "b", "c"))
    splits = Splits(random_images(), None, other, class_disjoint=True)
    assert list(splits.available) == ["train", "test"]
    with pytest.raises(SightlineError, match="a class must be in one split, got 'cat' in train and in validation"):
        Splits(random_images(), random_images(), class_disjoint=True)
