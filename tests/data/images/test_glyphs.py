import hashlib

import pytest
import torch

from sightline.data.images import glyphs


def nearest_neighbor(train, test):
    """How many are right if an image is what the most similar one is."""
    a, b = train.pixels.flatten(1).float(), test.pixels.flatten(1).float()
    return (train.labels[torch.cdist(b, a).argmin(1)] == test.labels).float().mean().item()


@pytest.fixture(scope="module")
def splits():
    return glyphs.splits()


def test_the_default_alphabet_has_this_form():
    images = glyphs.draw()
    assert images.pixels.shape == (1200, 1, 28, 28)
    assert torch.equal(images.labels, torch.arange(20).repeat_interleave(60))
    assert images.classes[:4] == ("ka", "mo", "ti", "nu")


def test_the_splits_are_of_this_size(splits):
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [2400, 400, 1200]
    assert torch.bincount(splits.validation.labels).tolist() == [20] * 20
    assert splits.kind == "glyphs"


def test_the_pixels_are_the_same_everywhere():
    pixels = glyphs.draw(classes=7, per_class=5, size=19, seed=11).pixels
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16] == "91c8bc1f74d63b06"


def test_another_seed_is_another_alphabet():
    ours, theirs = (glyphs.draw(classes=3, per_class=2, seed=seed).pixels for seed in (0, 1))
    assert not torch.equal(ours, theirs)


def test_more_begins_with_less():
    small, large = glyphs.draw(classes=5, per_class=3), glyphs.draw(classes=11, per_class=7)
    for label in range(5):
        assert torch.equal(small.pixels[small.labels == label], large.pixels[large.labels == label][:3])
    assert large.classes[:5] == small.classes


def test_ink_is_dark_on_white_and_within_the_page():
    pixels = glyphs.draw(classes=20, per_class=20).pixels.float() / 255
    assert (pixels.amax((1, 2, 3)) == 1).all()
    assert (pixels.amin((1, 2, 3)) < 0.3).all()
    ink = (1 - pixels).mean((1, 2, 3))
    assert ink.min() > 0.02
    assert ink.max() < 0.45
    rim = torch.ones(28, 28, dtype=torch.bool)
    rim[1:-1, 1:-1] = False
    assert (1 - pixels[..., rim]).mean() < 0.02


def test_every_image_of_a_class_is_another():
    pixels = glyphs.draw(classes=2, per_class=100).pixels.flatten(1)
    assert len(pixels.unique(dim=0)) == 200


def test_neighboring_pixels_do_clearly_worse_than_perfect(splits):
    assert 0.6 < nearest_neighbor(splits.train, splits.test) < 0.88


def test_hundreds_of_characters_are_told_apart_by_their_mean():
    """An image is nearest to the mean picture of its own class far more often than by chance."""
    images = glyphs.draw(classes=300, per_class=8)
    blurred = torch.nn.functional.avg_pool2d(255 - images.pixels.float(), 5, 2, 2).view(300, 8, -1)
    means = blurred[:, :6].mean(1)
    right = torch.cdist(blurred[:, 6:].flatten(0, 1), means).argmin(1) == torch.arange(300).repeat_interleave(2)
    assert right.float().mean() > 0.25  # one in 300 by chance
    assert len(set(images.classes)) == 300


def test_names_do_not_repeat():
    names = [glyphs._name(number) for number in range(10_300)]
    assert len(set(names)) == len(names)
    assert names[:20] == [name for name in names[:20] if len(name) == 2]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"classes": 0}, "classes must be an integer of at least 1, got 0"),
        ({"per_class": 0}, "per_class must be an integer of at least 1, got 0"),
        ({"size": 7}, "size must be an integer of at least 8, got 7"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"size": 10**5}, r"classes \* per_class \* size \* size must be at most 2,147,483,648, got"),
    ],
)
def test_impossible_alphabets_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        glyphs.draw(**asked)


@pytest.mark.parametrize("size", [8, 31, 64])
def test_any_size_shows_the_same_characters(size):
    small = torch.nn.functional.interpolate(glyphs.draw(3, 2, 28).pixels / 255, (8, 8), mode="area")
    other = torch.nn.functional.interpolate(glyphs.draw(3, 2, size).pixels / 255, (8, 8), mode="area")
    assert (small - other).abs().mean() < 0.06


def test_alphabets_have_this_form_and_more_begin_with_fewer():
    few, more = glyphs.draw_alphabets(2, 3, 5, size=11), glyphs.draw_alphabets(4, 3, 7, size=11)
    assert few.pixels.shape == (30, 1, 11, 11)
    assert torch.equal(few.labels, torch.arange(6).repeat_interleave(5))
    assert more.classes[:6] == few.classes
    assert len({name.split("/")[0] for name in more.classes}) == 4
    for label in range(6):
        assert torch.equal(few.pixels[few.labels == label], more.pixels[more.labels == label][:5])


def test_the_alphabets_are_the_same_everywhere():
    pixels = glyphs.draw_alphabets(2, 3, 5, size=13, seed=7).pixels
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16] == "6b946d82a95bf529"


def test_a_drawer_has_one_hand_in_all_characters_of_an_alphabet():
    ink = 255 - glyphs.draw_alphabets(3, 11, 13).pixels.float().view(3, 11, 13, -1).mean(-1)
    ink = ink / ink.mean(2, keepdim=True)  # a character has more ink than another in every hand
    within, among = ink.var(1).mean(), ink.mean(1).var(1).mean()
    assert among > 3 * within


def test_a_new_character_can_be_told_from_one_drawing_but_not_by_pixels():
    images = glyphs.draw_alphabets(5, 20, 6)
    right = []
    for alphabet in images.pixels.float().view(5, 20, 6, -1):
        support, query = alphabet[:, 0], alphabet[:, 1:].flatten(0, 1)
        right.append((torch.cdist(query, support).argmin(1) == torch.arange(20).repeat_interleave(5)).float().mean())
    assert 0.2 < sum(right) / 5 < 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphabets": 0}, "alphabets must be an integer of at least 1"),
        ({"drawers": 1.5}, "drawers must be an integer"),
        ({"size": 7}, "size must be an integer of at least 8"),
        ({"drawers": 10**9}, "must be at most 2,147,483,648, got"),
    ],
)
def test_alphabets_that_cannot_be_drawn_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        glyphs.draw_alphabets(**options)
