import hashlib

import pytest
import torch

from sightline.data.images import glyphs
from sightline.errors import SightlineError


def nearest_neighbor(train, test):
    """Accuracy of a nearest-neighbor classifier on pixels."""
    a, b = train.pixels.flatten(1).float(), test.pixels.flatten(1).float()
    return (train.labels[torch.cdist(b, a).argmin(1)] == test.labels).float().mean().item()


@pytest.fixture(scope="module")
def splits():
    return glyphs.splits()


def test_the_default_alphabet_has_20_classes_of_60_images():
    images = glyphs.draw()
    assert images.pixels.shape == (1200, 1, 28, 28)
    assert torch.equal(images.labels, torch.arange(20).repeat_interleave(60))
    assert images.classes[:4] == ("ka", "mo", "ti", "nu")


def test_split_sizes(splits):
    assert [len(images) for images in splits.available.values()] == [2400, 400, 1200]
    assert torch.bincount(splits.validation.labels).tolist() == [20] * 20
    assert splits.format == "glyphs"


def test_pixels_are_deterministic():
    pixels = glyphs.draw(classes=7, per_class=5, size=19, seed=11).pixels
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16] == "91c8bc1f74d63b06"


def test_seeds_give_different_alphabets():
    first, second = (glyphs.draw(classes=3, per_class=2, seed=seed).pixels for seed in (0, 1))
    assert not torch.equal(first, second)


def test_fewer_classes_and_images_are_a_prefix_of_more():
    small, large = glyphs.draw(classes=5, per_class=3), glyphs.draw(classes=11, per_class=7)
    for label in range(5):
        assert torch.equal(small.pixels[small.labels == label], large.pixels[large.labels == label][:3])
    assert large.classes[:5] == small.classes


def test_ink_is_dark_on_white_and_inside_the_image():
    pixels = glyphs.draw(classes=20, per_class=20).pixels.float() / 255
    assert (pixels.amax((1, 2, 3)) == 1).all()
    assert (pixels.amin((1, 2, 3)) < 0.3).all()
    ink = (1 - pixels).mean((1, 2, 3))
    assert ink.min() > 0.02
    assert ink.max() < 0.45
    border = torch.ones(28, 28, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    assert (1 - pixels[..., border]).mean() < 0.02


def test_all_images_of_a_class_differ():
    pixels = glyphs.draw(classes=2, per_class=100).pixels.flatten(1)
    assert len(pixels.unique(dim=0)) == 200


def test_nearest_neighbors_are_far_from_perfect(splits):
    assert 0.6 < nearest_neighbor(splits.train, splits.test) < 0.88


def test_hundreds_of_characters_are_separable_by_their_mean():
    """Nearest-mean classification is far above chance."""
    images = glyphs.draw(classes=300, per_class=8)
    blurred = torch.nn.functional.avg_pool2d(255 - images.pixels.float(), 5, 2, 2).view(300, 8, -1)
    means = blurred[:, :6].mean(1)
    is_correct = torch.cdist(blurred[:, 6:].flatten(0, 1), means).argmin(1) == torch.arange(300).repeat_interleave(2)
    assert is_correct.float().mean() > 0.25  # chance is 1 in 300
    assert len(set(images.classes)) == 300


def test_names_are_distinct():
    names = [glyphs._name(number) for number in range(10_300)]
    assert len(set(names)) == len(names)
    assert names[:20] == [name for name in names[:20] if len(name) == 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "classes must be an integer of at least 1, got 0"),
        ({"per_class": 0}, "per_class must be an integer of at least 1, got 0"),
        ({"size": 7}, "size must be an integer of at least 8, got 7"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"size": 10**5}, r"classes \* per_class \* size \* size must be at most 2,147,483,648, got"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(SightlineError, match=message):
        glyphs.draw(**options)


@pytest.mark.parametrize("size", [8, 31, 64])
def test_all_sizes_show_the_same_characters(size):
    small = torch.nn.functional.interpolate(glyphs.draw(3, 2, 28).pixels / 255, (8, 8), mode="area")
    resized = torch.nn.functional.interpolate(glyphs.draw(3, 2, size).pixels / 255, (8, 8), mode="area")
    assert (small - resized).abs().mean() < 0.06


def test_fewer_alphabets_are_a_prefix_of_more():
    few, more = glyphs.draw_alphabets(2, 3, 5, size=11), glyphs.draw_alphabets(4, 3, 7, size=11)
    assert few.pixels.shape == (30, 1, 11, 11)
    assert torch.equal(few.labels, torch.arange(6).repeat_interleave(5))
    assert more.classes[:6] == few.classes
    assert len({name.split("/")[0] for name in more.classes}) == 4
    for label in range(6):
        assert torch.equal(few.pixels[few.labels == label], more.pixels[more.labels == label][:5])


def test_pixels_of_alphabets_are_deterministic():
    pixels = glyphs.draw_alphabets(2, 3, 5, size=13, seed=7).pixels
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16] == "6b946d82a95bf529"


def test_a_drawer_has_one_style_in_all_characters_of_an_alphabet():
    ink = 255 - glyphs.draw_alphabets(3, 11, 13).pixels.float().view(3, 11, 13, -1).mean(-1)
    ink = ink / ink.mean(2, keepdim=True)  # characters differ in their amount of ink
    within_drawers, between_drawers = ink.var(1).mean(), ink.mean(1).var(1).mean()
    assert between_drawers > 3 * within_drawers


def test_one_shot_nearest_neighbors_are_above_chance_and_far_from_perfect():
    images = glyphs.draw_alphabets(5, 20, 6)
    accuracies = []
    for alphabet in images.pixels.float().view(5, 20, 6, -1):
        support, query = alphabet[:, 0], alphabet[:, 1:].flatten(0, 1)
        accuracies.append(
            (torch.cdist(query, support).argmin(1) == torch.arange(20).repeat_interleave(5)).float().mean()
        )
    assert 0.2 < sum(accuracies) / 5 < 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphabets": 0}, "alphabets must be an integer of at least 1"),
        ({"drawers": 1.5}, "drawers must be an integer"),
        ({"size": 7}, "size must be an integer of at least 8"),
        ({"drawers": 10**9}, "must be at most 2,147,483,648, got"),
    ],
)
def test_invalid_options_of_alphabets_are_rejected(options, message):
    with pytest.raises(SightlineError, match=message):
        glyphs.draw_alphabets(**options)
