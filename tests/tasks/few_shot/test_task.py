"""Data, batches, loss and validation of few-shot training."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from few_shot_data import make_config, make_images, make_splits
from sightline.data import episodes
from sightline.data.episodes import Episodes
from sightline.data.images.augmentation import AugmentConfig
from sightline.data.images.class_splits import add_sources
from sightline.data.images.datasets import ImageSet
from sightline.errors import SightlineError
from sightline.tasks.few_shot import evaluate as evaluate_module
from sightline.tasks.few_shot import task as task_module
from sightline.tasks.few_shot.config import (
    EpisodeConfig,
    EvaluationConfig,
    ExtraSource,
    FewShotData,
    FewShotTaskConfig,
)
from sightline.tasks.few_shot.task import FewShotTask
from sightline.training.task import BatchSlice


def get_batch(task: FewShotTask, step: int = 0, size: int = 4, batch_slice: BatchSlice | None = None):
    """The micro-batches of one step."""
    return next(task.batches(step, size, batch_slice or BatchSlice()))


def test_batch_has_episodes_with_labels():
    task = FewShotTask(make_config(), make_splits())
    (batch,) = get_batch(task)
    assert batch.support_labels is None
    assert batch.images.shape == (4, 25, 1, 16, 16)
    assert batch.batch_size == 4
    assert batch.query_labels.tolist() == [[c for c in range(5) for _ in range(3)]] * 4
    for labels in batch.labels.view(4, 25).tolist():
        support, query = labels[:10], labels[10:]
        assert len(set(support)) == 5
        assert query == [support[2 * c] for c in range(5) for _ in range(3)]
    pixels = (batch.images * 255).round().to(torch.uint8).view(100, -1)
    train = task.train.pixels.flatten(1)
    assert all((train == image).all(1).any() for image in pixels[:7])


def test_batch_depends_on_the_step_only():
    task = FewShotTask(make_config(augment=AugmentConfig(rotate=20.0)), make_splits())
    third = list(itertools.islice(task.batches(0, 4, BatchSlice()), 3))[2][0].images
    assert get_batch(task, 2)[0].images.equal(third)
    assert not get_batch(task, 3)[0].images.equal(third)
    parts = [get_batch(task, 2, batch_slice=BatchSlice(rank, 2, 2)) for rank in range(2)]
    assert torch.cat([batch.images for part in parts for batch in part]).equal(third)


def test_min_shot_draws_unequal_numbers_of_support_images():
    task = FewShotTask(make_config(episode=EpisodeConfig(way=5, shot=4, min_shot=2, query=3)), make_splits())
    labels = get_batch(task, size=40)[0].support_labels
    counts = torch.stack([(labels == c).sum(1) for c in range(5)])
    assert sorted(counts.unique().tolist()) == [2, 3, 4]
    halves = [get_batch(task, size=40, batch_slice=BatchSlice(rank, 2))[0].support_labels for rank in range(2)]
    assert torch.cat(halves).equal(labels)
    task.model.eval()
    batch = get_batch(task, size=4)[0]
    images = batch.images.clone()
    images[:, :20][batch.support_labels < 0] = 0.5
    torch.testing.assert_close(task.loss(task.model, batch), task.loss(task.model, batch._replace(images=images)))


def test_losses_of_micro_batches_add_up():
    task = FewShotTask(make_config(auxiliary_loss_weight=0.5), make_splits())
    task.model.eval()
    expected = task.loss(task.model, get_batch(task)[0])
    losses = [
        task.loss(task.model, batch)
        for rank in range(2)
        for batch in get_batch(task, batch_slice=BatchSlice(rank, 2, 2))
    ]
    torch.testing.assert_close(torch.stack(losses).sum(), expected)


def test_auxiliary_loss_is_over_all_training_classes():
    plain, both = (FewShotTask(make_config(auxiliary_loss_weight=w), make_splits()) for w in (0.0, 2.0))
    assert plain.model.classifier is None
    assert both.model.classifier.out_features == 11
    both.model.eval()
    both.model.load_state_dict({**both.model.state_dict(), **plain.model.state_dict()})
    plain.model.eval()
    batch = get_batch(both)[0]
    logits = both.model.classifier(both.model.embed(batch.images.flatten(0, 1)).mean(1))
    auxiliary = F.cross_entropy(logits, batch.labels, label_smoothing=0.1)
    torch.testing.assert_close(both.loss(both.model, batch), plain.loss(plain.model, batch) + 2 * auxiliary)


def test_label_smoothing_changes_the_loss():
    tasks = [FewShotTask(make_config(label_smoothing=value), make_splits()) for value in (0.0, 0.2)]
    tasks[1].model.load_state_dict(tasks[0].model.state_dict())
    losses = [task.loss(task.model.eval(), get_batch(task)[0]).item() for task in tasks]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episode": EpisodeConfig(way=12)}, "way must be at most the number of classes, 11, got 12"),
        ({"episode": EpisodeConfig(way=5, shot=5, query=3)}, "each class must have at least 8 images"),
        (
            {"evaluation": EvaluationConfig(selection_setting="8w1s", query=3)},
            "way must be at most the number of classes, 7, got 8",
        ),
    ],
)
def test_episodes_that_cannot_be_drawn_are_refused(change, message):
    with pytest.raises(SightlineError, match=message):
        FewShotTask(make_config(**change), make_splits())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EvaluationConfig(settings=("5w",)), "a setting must read like 5w1s"),
        (lambda: EvaluationConfig(settings=("1w1s",)), "a setting must read like 5w1s"),
        (lambda: EvaluationConfig(settings=()), "settings must have at least one entry"),
        (lambda: EvaluationConfig(episodes=10**7), "episodes must be at most 1,000,000"),
        (lambda: EpisodeConfig(shot=2, min_shot=3), "min_shot must be at most shot, 2, got 3"),
        (lambda: EpisodeConfig(within_group=1.5), "within_group must be 0 to 1, got 1.5"),
        (lambda: FewShotTaskConfig(augment=AugmentConfig(mixup=0.5)), "mixup and augment.cutmix must be 0"),
        (lambda: FewShotTaskConfig(auxiliary_loss_weight=-1.0), "auxiliary_loss_weight must be at least 0"),
        (lambda: FewShotTaskConfig(label_smoothing=1.0), "label_smoothing must be at least 0 and below 1"),
        (lambda: FewShotData(channels=1000), "channels must be 1 or 3, got 1000"),
    ],
)
def test_invalid_configs_are_refused(make, message):
    with pytest.raises(SightlineError, match=message):
        make()


def test_extra_sources_are_trained_on_but_not_evaluated_on():
    extra = {"a": (make_images(6, prefix="other"), 0.25), "b": (make_images(5, prefix="train"), 0.5)}
    splits = add_sources(make_splits(), extra)
    first = extra["a"][0]
    assert splits.train.classes[11:] == tuple(f"{key}/{name}" for key in extra for name in extra[key][0].classes)
    assert splits.train.pixels[splits.train.labels == 12].equal(first.pixels[first.labels == 1])
    assert splits.test.classes == make_splits().test.classes
    config = make_config(auxiliary_loss_weight=1.0)
    task = FewShotTask(config, splits)
    assert task.model.classifier.out_features == 22
    labels = get_batch(task)[0].labels.view(4, -1)
    sources = (labels >= 11).long().add(labels >= 17).tolist()
    assert sorted(sorted(set(row)) for row in sources) == [[0], [1], [2], [2]]  # one source per episode
    third = list(itertools.islice(task.batches(0, 4, BatchSlice()), 3))[2][0]
    resumed = get_batch(FewShotTask(config, splits), step=2)[0]
    assert third.images.equal(resumed.images)
    assert third.labels.equal(resumed.labels)


def test_held_out_images_in_an_extra_source_are_refused():
    splits = make_splits()
    for part in (splits.validation, splits.test):
        copy = ImageSet(part.pixels.clone(), part.labels, tuple(f"copy {name}" for name in part.classes))
        extra = {"other": (make_images(5, prefix="other"), 0.25), "copies": (copy, 0.25)}
        with pytest.raises(SightlineError, match=rf"got {len(part)} .*'copies'"):
            add_sources(splits, extra)


def test_extra_source_with_too_few_classes_is_refused():
    splits = add_sources(make_splits(), {"small": (make_images(4), 0.5)})
    with pytest.raises(SightlineError, match="way must be at most the number of classes, 4, got 5"):
        FewShotTask(make_config(), splits)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([{"source": "a/birds"}, {"source": "b/birds.zip", "fraction": 0.1}], "different names, got birds, birds"),
        ([{"source": "a"}, {"source": "b"}], "extra_sources must sum to less than 1, got 1;"),
        (
            [{"source": source, "fraction": fraction} for source, fraction in (("a", 0.7), ("b", 0.2), ("c", 0.1))],
            "extra_sources must sum to less than 1, got 1;",
        ),
        ([{"source": "glyphs", "fraction": 0.1}], "must differ from 'glyphs', got 'glyphs'; leave it out"),
        ([{"source": "a", "fraction": 0.0}], "fraction must be above 0 and below 1, got 0.0"),
    ],
)
def test_invalid_extra_sources_are_refused(extra, message):
    with pytest.raises(SightlineError, match=message):
        FewShotData(extra_sources=tuple(ExtraSource(**values) for values in extra))


def test_extra_source_by_another_path_of_the_same_file_is_refused(tmp_path):
    (tmp_path / "other.npz").touch()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "other.npz").hardlink_to(tmp_path / "other.npz")
    extra = (ExtraSource(source=str(tmp_path / "linked"), fraction=0.1),)
    with pytest.raises(SightlineError, match=r"extra_sources must differ from '.*other.npz', got '.*linked'"):
        FewShotData(source=str(tmp_path / "other.npz"), extra_sources=extra)


def test_class_in_two_splits_is_refused():
    with pytest.raises(SightlineError, match="a class must be in one split"):
        make_splits(validation=make_images(5))


def test_image_that_is_support_and_query_is_detected(monkeypatch):
    def draw(*args, **options):
        drawn = episodes.sample_episodes(*args, **options)
        return Episodes(drawn.classes, drawn.support, torch.cat((drawn.support[:, :1], drawn.query[:, 1:]), 1))

    task = FewShotTask(make_config(), make_splits())
    sample = lambda sources, **options: draw(sources[0].classes, **options)  # noqa: E731
    monkeypatch.setattr(task_module, "sample_from_sources", sample)
    with pytest.raises(SightlineError, match="support and query must not share an image"):
        get_batch(task)
    monkeypatch.setattr(evaluate_module, "sample_episodes", draw)
    with pytest.raises(SightlineError, match="support and query must not share an image"):
        task.evaluate(task.model, BatchSlice())


def test_training_without_validation_classes():
    task = FewShotTask(make_config(), make_splits(validation=None))
    assert task.evaluate(task.model, BatchSlice()) == {}
    assert task.metrics({}) == {}
    weights = task.model.state_dict()
    assert task.finish(weights) == (weights, {})


def test_finish_calibrates_on_validation_classes():
    too_few = FewShotTask(make_config(), make_splits())
    assert too_few.finish({}) == ({}, {})
    assert too_few.calibration == "not calibrated, which takes 50 validation examples (got 49)"
    task = FewShotTask(make_config(), make_splits(validation=make_images(8, prefix="v")))
    weights, metrics = task.finish(task.model.state_dict())
    assert float(weights["head.calibration_scale"]) != 1
    assert float(task.model.head.calibration_scale) == 1
    assert set(metrics) == {"accuracy", "loss", "calibration_error"}
