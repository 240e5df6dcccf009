import pytest
import torch

from sightline.data.episodes import Classes, Episodes, Source, check_apart, draw, draw_from

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


@pytest.mark.parametrize("episodes", [1, 2, 7])
@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.1, 0.3, 0.3, 0.3), (0.2, 0.4, 0.4), (0.5, 0.5)])
def test_an_episode_is_of_one_source_and_each_has_its_share(episodes, shares):
    labels = torch.arange(12 * 7) % 12
    classes = Classes.of(labels, tuple("abcdefghijkl"), torch.arange(12) // 3 * 2 + torch.arange(12) % 3 // 2)
    sources = [Source(classes.part(3 * i, 3 * i + 3), 3 * i, share) for i, share in enumerate(shares)]
    counts, inside, steps = torch.zeros(len(shares)), torch.zeros(len(shares)), 2800 // episodes
    for step in range(steps):
        drawn = draw_from(sources, episodes=episodes, step=step, way=2, shot=2, query=3, seed=1, within=0.5)
        drawn.check()
        assert labels[drawn.support].equal(drawn.classes.gather(1, drawn.support_labels))
        assert labels[drawn.query].equal(drawn.classes.gather(1, drawn.query_labels))
        owners = drawn.classes // 3
        assert owners[:, 0].equal(owners[:, 1])
        found = torch.bincount(owners[:, 0], minlength=len(shares))
        assert (found - torch.tensor(shares) * episodes).abs().max() < 1 + 1e-6
        counts += found
        of_one_group = (drawn.classes % 3 < 2).all(1).double()  # the first two of three are a group
        inside += torch.zeros(len(shares)).scatter_add(0, owners[:, 0], of_one_group.float())
    assert (counts / 2800 - torch.tensor(shares)).abs().max() < 0.04
    # half of them begin in a group, in two of three cases in that of two; of the others a third are of it by chance
    assert ((inside / counts - (0.5 * 2 / 3 + 0.5 / 3)).abs() * counts.sqrt()).max() < 2  # four deviations


def test_a_single_source_without_groups_is_drawn_from_directly():
    classes, how = Classes.of(LABELS, NAMES, GROUPS), {"way": 3, "shot": 2, "query": 3, "seed": 1}
    drawn, alone = (
        draw_from([Source(classes, 0, 1.0)], episodes=5, step=2, **how),
        draw(classes, episodes=5, step=2, **how),
    )
    assert drawn.support.equal(alone.support)
    assert drawn.query.equal(alone.query)


def test_episodes_within_one_group_are_spread_over_the_batch():
    """Each process works on one slice of a batch; both kinds of episodes must be in every slice."""
    classes = Classes.of(LABELS, NAMES, GROUPS)
    options = {"episodes": 64, "way": 2, "shot": 2, "query": 3, "seed": 1, "step": 0, "within": 0.5}
    drawn, plain = draw_from([Source(classes, 0, 1.0)], **options), draw(classes, **options)
    assert sorted(drawn.support.tolist()) == sorted(plain.support.tolist())
    is_within = GROUPS[drawn.classes].float().std(1) == 0
    counts = [int(half.sum()) for half in is_within.split(32)]
    assert min(counts) > 12
    assert abs(counts[0] - counts[1]) < 16


def test_sources_are_mixed_and_drawn_from_apart():
    """By numbers of their own: the classes of one do not say which come of the other."""
    classes = Classes.of(torch.arange(60) % 20, tuple(map(str, range(20))))
    sources = [Source(classes.part(0, 10), 0, 0.5), Source(classes.part(10, 20), 10, 0.5)]
    drawn = draw_from(sources, episodes=40, way=3, shot=1, query=1, seed=0, step=0)
    owners = drawn.classes[:, 0] // 10
    assert 5 < owners[:20].sum() < 15
    rows = [{tuple(row) for row in (drawn.classes[owners == i] % 10).tolist()} for i in range(2)]
    assert rows[0] != rows[1]


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
        (1, 5, "way must be an integer of at least 2, got 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_fix(way, images, message):
    with pytest.raises(ValueError, match=message):
        Classes.of(LABELS, NAMES).check(way, images)


def test_a_class_in_two_splits_is_caught():
    check_apart(train=("a", "b"), validation=("c",), test=("d",))
    with pytest.raises(ValueError, match="a class must be in one split alone, got 'b' in train and in test"):
        check_apart(train=("a", "b"), validation=("c",), test=("b",))
