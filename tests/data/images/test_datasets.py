import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import ImageFiles, ImageSet, Splits
from sightline.data.images import datasets as sets
from sightline.data.images.loading import split

N, S = 7, 5
CLASSES = ("cat", "dog", "owl")


def some(count=N, channels=1, size=S):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count) % 3, CLASSES)


@pytest.fixture
def files(tmp_path):
    images = some(channels=3)
    paths = []
    for number, pixels in enumerate(images.pixels):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(paths[-1])
    return ImageFiles(tuple(paths), images.labels, CLASSES, S, 3)


def test_a_set_knows_its_form():
    images = some(channels=3)
    assert (len(images), images.size, images.channels) == (N, S, 3)


@pytest.mark.parametrize("indices", [[4, 0], torch.tensor([4, 0]), np.array([4, 0], dtype=np.int32), (4, 0)])
def test_take_gives_these_images_in_this_order(indices, files):
    images = some(channels=3)
    taken = images.take(indices)
    assert torch.equal(taken.pixels, images.pixels[[4, 0]])
    assert taken.labels.tolist() == [1, 0]
    assert files.take(indices).paths == (files.paths[4], files.paths[0])
    assert torch.equal(files.take(indices).loaded().pixels, taken.pixels)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([7], "indices must be 0 to 6, got 7 to 7"),
        ([-1], "indices must be 0 to 6, got -1 to -1"),
        ([], "indices must be a list of integers that is not empty"),
        ([0.5], "indices must be a list of integers"),
        ([True] * N, "indices must be a list of integers"),
    ],
)
def test_impossible_indices_are_refused(indices, message, files):
    for images in (some(), files):
        with pytest.raises(ValueError, match=message):
            images.take(indices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": torch.zeros(N, 1, S, S)}, r"pixels must be uint8 of shape \(N, C, H, W\), got torch.float32"),
        ({"pixels": torch.zeros(N, S, S, dtype=torch.uint8)}, r"pixels must be uint8 of shape .* got .*\(7, 5, 5\)"),
        ({"pixels": torch.zeros(N, 4, S, S, dtype=torch.uint8)}, "pixels must have 1 or 3 channels"),
        ({"pixels": torch.zeros(N, 1, S, 6, dtype=torch.uint8)}, "pixels must be square, got 6 x 5"),
        ({"labels": torch.zeros(N)}, r"labels must be int64 of shape \(N,\), got torch.float32"),
        ({"labels": torch.zeros(6, dtype=torch.int64)}, "one label for each image, got 7 images and 6 labels"),
        ({"labels": torch.full((N,), 3)}, "labels must be 0 to 2 for 3 classes, got 3 to 3"),
        ({"labels": torch.full((N,), -1)}, "labels must be 0 to 2 for 3 classes, got -1 to -1"),
        ({"classes": ()}, "classes must name at least one class, got none"),
        ({"classes": ("a", "b", "a")}, "class names must differ, got 'a' more than once"),
        ({"classes": ("a", "b", " ")}, "classes must be names that are not empty, got ' '"),
    ],
)
def test_a_set_that_does_not_fit_together_is_refused(change, message):
    images = some()
    given = {"pixels": images.pixels, "labels": images.labels, "classes": images.classes}
    with pytest.raises(ValueError, match=message):
        ImageSet(**given | change)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="a set must hold at least one image, got none"):
        ImageSet(torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), CLASSES)


def test_files_are_read_one_by_one_or_all_at_once(files):
    images = some(channels=3)
    assert torch.equal(files.read(2), images.pixels[2])
    seen = []
    loaded = files.loaded(lambda done, total: seen.append((done, total)))
    assert torch.equal(loaded.pixels, images.pixels)
    assert torch.equal(loaded.labels, images.labels)
    assert seen == [(done, N) for done in range(1, N + 1)]


def test_unreadable_files_are_named_in_one_error(files):
    for path in files.paths[:5]:
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"every image must be readable, got 5 that are not:") as error:
        files.loaded()
    text = str(error.value)
    assert all(name in text for name in ("0.png", "1.png", "2.png", "and 2 more"))
    assert "3.png" not in text


def test_splits_must_agree():
    with pytest.raises(ValueError, match=r"test must have the size of train, 5, got 6"):
        Splits(some(), None, some(size=6))
    with pytest.raises(ValueError, match=r"validation must have the channels of train, 1, got 3"):
        Splits(some(), some(channels=3))
    other = ImageSet(some().pixels, some().labels, ("a", "b", "c"))
    with pytest.raises(ValueError, match=r"test must have the classes of train, \('cat', 'dog', 'owl'\), got"):
        Splits(some(), None, other)


def test_split_divides_class_by_class_and_loses_nothing():
    images = some(count=60)
    rest, held = split(images, 0.25, seed=3)
    assert torch.bincount(rest.labels).tolist() == [15, 15, 15]
    assert torch.bincount(held.labels).tolist() == [5, 5, 5]
    rows = {tuple(row.flatten().tolist()) for row in torch.cat((rest.pixels, held.pixels))}
    assert rows == {tuple(row.flatten().tolist()) for row in images.pixels}


def test_split_is_the_same_for_the_same_seed_and_another_for_another():
    images = some(count=60)
    first, again, other = (split(images, 0.5, seed=seed)[1].pixels for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_each_class_is_on_both_sides(share, files):
    for images in (some(count=6), files):
        for side in split(images, share, seed=0):
            assert side.labels.unique().tolist() == [0, 1, 2]


def test_a_class_of_one_cannot_be_divided():
    with pytest.raises(ValueError, match="each class must have at least 2 images to be divided, got 1 of class 'dog'"):
        split(some(count=5).take([0, 3, 1]), 0.5, seed=0)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_must_leave_something_on_both_sides(share):
    with pytest.raises(ValueError, match="share must be above 0 and below 1, got"):
        split(some(), share, seed=0)


def test_few_files_wait_at_a_time(files, monkeypatch):
    """A million that wait would take gigabytes."""
    waiting = []

    class Pool(sets.ThreadPoolExecutor):
        def map(self, fill, some):
            waiting.append(len(some))
            return super().map(fill, some)

    monkeypatch.setattr(sets, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(sets, "QUEUED", 3)
    done = []
    assert torch.equal(files.loaded(lambda *counts: done.append(counts)).pixels, some(channels=3).pixels)
    assert waiting == [3, 3, 1]
    assert done == [(i, N) for i in range(1, N + 1)]
