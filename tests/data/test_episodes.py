import pytest
import torch

from sightline.data.episodes import Classes, Episodes, check_apart, draw

COUNTS = (7, 11, 5, 9, 6, 8)
NAMES = tuple("abcdef")
LABELS = torch.cat([torch.full((count,), i) for i, count in enumerate(COUNTS)])[
    torch.randperm(sum(COUNTS), generator=torch.Generator().manual_seed(0))
]
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])


def some(**changes):
    options = {"episodes": 200, "way": 3, "shot": 2, "query": 3, "seed": 1, "step": 4, **changes}
    return draw(Classes.of(LABELS, NAMES, GROUPS), **options)


def test_places_are_those_of_the_labels():
    classes = Classes.of(LABELS, NAMES)
    assert classes.counts.tolist() == list(COUNTS)
    for label, places in enumerate(classes.places):
        assert places[places >= 0].tolist() == (label == LABELS).nonzero().flatten().tolist()


def test_images_are_of_the_classes_of_their_episode():
    drawn = some()
    assert drawn.support.shape == (200, 6)
    assert drawn.query.shape == (200, 9)
    for images, labels in ((drawn.support, drawn.support_labels), (drawn.query, drawn.query_labels)):
        assert LABELS[images].equal(drawn.classes.gather(1, labels))
    assert all(len(set(row)) == 3 for row in drawn.classes.tolist())


def test_no_image_is_shown_and_asked():
    drawn = some(shot=2, query=3)  # the smallest class has five: every one of its images is used
    drawn.check()
    for support, query in zip(drawn.support.tolist(), drawn.query.tolist(), strict=True):
        assert not set(support) & set(query)
        assert len({*support, *query}) == 15


def test_an_image_on_both_sides_is_caught():
    drawn = some()
    query = drawn.query.clone()
    query[17, 4] = drawn.support[17, 0]
    with pytest.raises(
        ValueError, match="must not share an image, got 1 of 200 episodes that do, the first is episode 17"
    ):
        Episodes(drawn.classes, drawn.support, query).check()


def test_classes_and_images_come_equally_often():
    drawn = some(episodes=6000)
    shares = torch.bincount(drawn.classes.flatten(), minlength=6) / drawn.classes.numel()
    assert (shares - 1 / 6).abs().max() < 0.01
    first = torch.bincount(drawn.support[LABELS[drawn.support] == 1], minlength=len(LABELS))[LABELS == 1].double()
    assert (first / first.sum() - 1 / 11).abs().max() < 0.02


def test_a_step_can_be_drawn_again():
    one, again, other, seed = some(), some(), some(step=5), some(seed=2)
    assert one.support.equal(again.support)
    assert one.query.equal(again.query)
    assert not one.support.equal(other.support)
    assert not one.support.equal(seed.support)


def test_some_episodes_stay_within_one_group():
    for within, wanted in ((0.0, None), (0.5, 100), (1.0, 200)):
        groups = GROUPS[some(within=within).classes]
        inside = (groups == groups[:, :1]).all(1)
        if wanted is None:
            assert inside.float().mean() < 0.3
        else:
            assert inside[:wanted].all()
    single = [some(episodes=1, within=0.5, step=step).classes for step in range(40)]
    inside = sum(len(set(GROUPS[classes[0]].tolist())) == 1 for classes in single)
    assert 20 <= inside < 30  # half of them, and some more by chance
    wide = some(way=4, within=1.0)  # a group has three: the fourth comes from the other
    assert (torch.nn.functional.one_hot(GROUPS[wide.classes]).sum(1).max(1).values == 3).all()


@pytest.mark.parametrize(
    ("way", "images", "message"),
    [
        (7, 5, "way must be at most the number of classes, 6, got 7; lower way or bring more classes"),
        (3, 6, "each class must have at least 6 images, shot and query together, got 5 of 'c'; lower shot"),
        (3, 8, "got 7 of 'a' and 2 more such classes"),
        (1, 5, "way must be a whole number of at least 2, got 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_fix(way, images, message):
    with pytest.raises(ValueError, match=message):
        Classes.of(LABELS, NAMES).check(way, images)


def test_a_class_in_two_splits_is_caught():
    check_apart(train=("a", "b"), validation=("c",), test=("d",))
    with pytest.raises(ValueError, match="a class must be in one split alone, got 'b' in train and in test"):
        check_apart(train=("a", "b"), validation=("c",), test=("b",))
