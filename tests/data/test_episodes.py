import pytest
import torch

from sightline.data.episodes import (
    ClassIndex,
    Episodes,
    EpisodeSource,
    change_labels,
    drop_support_labels,
    sample_episodes,
    sample_from_sources,
    sample_way,
)
from sightline.errors import SightlineError

COUNTS = (7, 11, 5, 9, 6, 8)
NAMES = tuple("abcdef")
LABELS = torch.cat([torch.full((count,), i) for i, count in enumerate(COUNTS)])[
    torch.randperm(sum(COUNTS), generator=torch.Generator().manual_seed(0))
]
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])


def sample(**changes):
    options = {"episodes": 200, "way": 3, "shot": 2, "query": 3, "seed": 1, "step": 4, **changes}
    return sample_episodes(ClassIndex.from_labels(LABELS, NAMES, GROUPS), **options)


def test_indices_are_grouped_by_label():
    classes = ClassIndex.from_labels(LABELS, NAMES)
    assert classes.counts.tolist() == list(COUNTS)
    for label, indices in enumerate(classes.indices):
        assert indices[indices >= 0].tolist() == (label == LABELS).nonzero().flatten().tolist()


def test_images_have_the_classes_of_their_episode():
    episodes = sample()
    assert episodes.support.shape == (200, 6)
    assert episodes.query.shape == (200, 9)
    for images, labels in ((episodes.support, episodes.support_labels), (episodes.query, episodes.query_labels)):
        assert LABELS[images].equal(episodes.classes.gather(1, labels))
    assert all(len(set(classes)) == 3 for classes in episodes.classes.tolist())


def test_support_and_query_are_disjoint():
    episodes = sample(shot=2, query=3)  # uses all 5 images of the smallest class
    episodes.check()
    for support, query in zip(episodes.support.tolist(), episodes.query.tolist(), strict=True):
        assert not set(support) & set(query)
        assert len({*support, *query}) == 15


def test_check_finds_shared_images():
    episodes = sample()
    query = episodes.query.clone()
    query[17, 4] = episodes.support[17, 0]
    message = "must not share an image, got 1 of 200 episodes that do; the first is episode 17"
    with pytest.raises(SightlineError, match=message):
        Episodes(episodes.classes, episodes.support, query).check()


@pytest.mark.parametrize(
    ("count", "fractions"),
    [
        (1, (0.1, 0.3, 0.3, 0.3)),
        (2, (0.2, 0.4, 0.4)),
        (2, (0.5, 0.5)),
        (7, (0.5, 0.3, 0.2)),
        (7, (0.1, 0.3, 0.3, 0.3)),
        (7, (0.2, 0.4, 0.4)),
        (7, (0.5, 0.5)),
    ],
)
def test_each_source_has_its_fraction_of_episodes(count, fractions):
    labels = torch.arange(12 * 7) % 12
    classes = ClassIndex.from_labels(
        labels, tuple("abcdefghijkl"), torch.arange(12) // 3 * 2 + torch.arange(12) % 3 // 2
    )
    sources = [EpisodeSource(classes.slice(3 * i, 3 * i + 3), 3 * i, x) for i, x in enumerate(fractions)]
    num_sources, steps = len(fractions), 2800 // count
    options = {"episodes": count, "way": 2, "shot": 2, "query": 3, "seed": 1, "within_group": 0.5}
    sampled = [sample_from_sources(sources, step=step, **options) for step in range(steps)]
    episodes = Episodes(*(torch.cat(tensors) for tensors in zip(*sampled, strict=True)))
    episodes.check()
    assert labels[episodes.support].equal(episodes.classes.gather(1, episodes.support_labels))
    assert labels[episodes.query].equal(episodes.classes.gather(1, episodes.query_labels))
    source_of = episodes.classes // 3
    assert source_of[:, 0].equal(source_of[:, 1])
    is_from = torch.nn.functional.one_hot(source_of[:, 0], num_sources).float()
    step_counts = is_from.view(steps, count, num_sources).sum(1)
    assert (step_counts - torch.tensor(fractions) * count).abs().max() < 1 + 1e-6
    counts = step_counts.sum(0)
    is_within_group = (episodes.classes % 3 < 2).all(1).float()  # the first two of three classes are a group
    within_group = is_within_group @ is_from
    assert (counts / 2800 - torch.tensor(fractions)).abs().max() < 0.04
    # half have an anchor class, in 2 of 3 cases in the group of two; a third of the others are within it by chance
    expected = 0.5 * 2 / 3 + 0.5 / 3
    assert ((within_group / counts - expected).abs() * counts.sqrt()).max() < 2  # four standard deviations


def test_a_single_source_without_groups_equals_sample_episodes():
    classes, options = ClassIndex.from_labels(LABELS, NAMES, GROUPS), {"way": 3, "shot": 2, "query": 3, "seed": 1}
    episodes = sample_from_sources([EpisodeSource(classes, 0, 1.0)], episodes=5, step=2, **options)
    expected = sample_episodes(classes, episodes=5, step=2, **options)
    assert episodes.support.equal(expected.support)
    assert episodes.query.equal(expected.query)


def test_episodes_within_one_group_are_spread_over_the_batch():
    """Each process works on one slice of a batch; both kinds of episodes must be in every slice."""
    classes = ClassIndex.from_labels(LABELS, NAMES, GROUPS)
    options = {"episodes": 64, "way": 2, "shot": 2, "query": 3, "seed": 1, "step": 0, "within_group": 0.5}
    shuffled = sample_from_sources([EpisodeSource(classes, 0, 1.0)], **options)
    assert sorted(shuffled.support.tolist()) == sorted(sample_episodes(classes, **options).support.tolist())
    is_within_group = GROUPS[shuffled.classes].float().std(1) == 0
    counts = [int(half.sum()) for half in is_within_group.split(32)]
    assert min(counts) > 12
    assert abs(counts[0] - counts[1]) < 16


def test_sources_are_shuffled_and_have_their_own_random_numbers():
    classes = ClassIndex.from_labels(torch.arange(60) % 20, tuple(map(str, range(20))))
    sources = [EpisodeSource(classes.slice(0, 10), 0, 0.5), EpisodeSource(classes.slice(10, 20), 10, 0.5)]
    episodes = sample_from_sources(sources, episodes=40, way=3, shot=1, query=1, seed=0, step=0)
    source_of = episodes.classes[:, 0] // 10
    assert 5 < source_of[:20].sum() < 15
    sampled = [{tuple(x) for x in (episodes.classes[source_of == i] % 10).tolist()} for i in range(2)]
    assert sampled[0] != sampled[1]


def test_classes_and_images_are_sampled_uniformly():
    episodes = sample(episodes=6000)
    fractions = torch.bincount(episodes.classes.flatten(), minlength=6) / episodes.classes.numel()
    assert (fractions - 1 / 6).abs().max() < 0.01
    support = episodes.support[LABELS[episodes.support] == 1]
    counts = torch.bincount(support, minlength=len(LABELS))[LABELS == 1].double()
    assert (counts / counts.sum() - 1 / 11).abs().max() < 0.02


def test_a_step_is_reproducible():
    first, again, other_step, other_seed = sample(), sample(), sample(step=5), sample(seed=2)
    assert first.support.equal(again.support)
    assert first.query.equal(again.query)
    assert not first.support.equal(other_step.support)
    assert not first.support.equal(other_seed.support)


def test_a_fraction_of_episodes_is_within_one_group():
    for fraction, expected in ((0.0, None), (0.5, 100), (1.0, 200)):
        groups = GROUPS[sample(within_group=fraction).classes]
        is_within_group = (groups == groups[:, :1]).all(1)
        if expected is None:
            assert is_within_group.float().mean() < 0.3
        else:
            assert is_within_group[:expected].all()
    steps = [sample(episodes=1, within_group=0.5, step=step).classes for step in range(40)]
    count = sum(len(set(GROUPS[classes[0]].tolist())) == 1 for classes in steps)
    assert 20 <= count < 30  # half, and some more by chance
    wide = sample(way=4, within_group=1.0)  # a group has three classes; the fourth is from the other
    assert (torch.nn.functional.one_hot(GROUPS[wide.classes]).sum(1).max(1).values == 3).all()


def test_dropped_support_labels_leave_min_shot_to_shot_images():
    labels = sample(shot=5, query=1, episodes=300, way=2).support_labels
    dropped = drop_support_labels(labels, way=2, min_shot=2, seed=0, step=3)
    kept = (dropped >= 0).view(300, 2, 5)
    assert set(kept.sum(2).flatten().tolist()) == {2, 3, 4, 5}
    assert dropped[dropped >= 0].equal(labels[dropped >= 0])
    assert dropped.equal(drop_support_labels(labels, way=2, min_shot=2, seed=0, step=3))


@pytest.mark.parametrize(
    ("way", "images_per_class", "message"),
    [
        (7, 5, "way must be at most the number of classes, 6, got 7; lower way or add classes"),
        (3, 6, "each class must have at least 6 images for shot and query, got 5 of 'c'; lower shot"),
        (3, 8, "got 7 of 'a' and 2 more such classes"),
        (1, 5, "way must be an integer of at least 2, got 1"),
    ],
)
def test_impossible_episodes_are_rejected(way, images_per_class, message):
    with pytest.raises(SightlineError, match=message):
        ClassIndex.from_labels(LABELS, NAMES).check(way, images_per_class)


def test_way_is_drawn_and_smaller_sources_are_left_out():
    sizes = {"small": 3, "large": 11}
    labels = {name: torch.arange(count).repeat_interleave(2) for name, count in sizes.items()}
    sources = [
        EpisodeSource(ClassIndex.from_labels(x, tuple(map(str, range(sizes[name])))), 0, 0.5)
        for name, x in labels.items()
    ]
    ways = set()
    for step in range(200):
        way, chosen = sample_way(sources, min_way=2, way=50, seed=0, step=step)
        ways.add(way)
        assert len(chosen) == (2 if way <= 3 else 1)
        assert sum(source.fraction for source in chosen) == pytest.approx(1)
    assert ways == set(range(2, 12))


def test_a_fraction_of_support_labels_is_changed():
    labels = torch.arange(7).repeat_interleave(5).expand(300, -1)
    changed = change_labels(labels, way=7, fraction=0.3, seed=0, step=0)
    assert torch.equal(changed[:, ::5], labels[:, ::5])
    assert float((changed != labels).float().mean()) == pytest.approx(0.3 * 6 / 7 * 4 / 5, abs=0.02)
    assert torch.equal(change_labels(labels, way=7, fraction=0.3, seed=0, step=0), changed)
    assert torch.equal(change_labels(labels, way=7, fraction=0.0, seed=0, step=0), labels)
