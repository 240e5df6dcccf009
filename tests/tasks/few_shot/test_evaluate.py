"""Evaluation on episodes."""

import math

import pytest
import torch

from few_shot_data import make_images
from sightline.data.episodes import ClassIndex
from sightline.errors import SightlineError
from sightline.metrics import classification_metrics
from sightline.tasks.few_shot import evaluate as evaluate_module
from sightline.tasks.few_shot.config import EvaluationConfig, Setting
from sightline.tasks.few_shot.evaluate import (
    FewShotEvaluation,
    SettingMetrics,
    episode_classes,
    evaluate_episodes,
    select_settings,
)
from sightline.training.task import BatchSlice


def gray_classifier(support, labels, query, *, way):
    """The nearest class mean, which is always correct on the images of `make_images`."""
    means = torch.stack([support[:, labels[0] == c].mean((1, 2)) for c in range(way)], 1)
    return -(query.mean(2)[:, :, None] - means[:, None]).square().sum(-1)


def uniform_classifier(support, labels, query, *, way):
    return torch.zeros(len(query), query.shape[1], way)


def evaluate(classifier, setting="5w2s", **options):
    images = make_images(8)
    embeddings = images.pixels.float().flatten(1).mean(1)[:, None, None]
    classes = ClassIndex.from_labels(images.labels, images.classes)
    options = {"query": 3, "episodes": 40, **options}
    return evaluate_episodes(classifier, embeddings, classes, Setting.parse(setting), **options)


def test_metrics_of_a_perfect_and_a_uniform_classifier():
    perfect, uniform = evaluate(gray_classifier), evaluate(uniform_classifier)
    assert SettingMetrics.from_results(perfect).accuracy == 1
    metrics = SettingMetrics.from_results(uniform)
    assert metrics.accuracy == pytest.approx(1 / 5)
    assert metrics.loss == pytest.approx(math.log(5))
    assert metrics.calibration_error == pytest.approx(0, abs=1e-6)
    assert (perfect.auroc(), uniform.auroc()) == (1, 0.5)
    assert classification_metrics(perfect.sums)["accuracy"] == perfect.interval()[0]


def test_auroc_needs_unknown_queries():
    assert evaluate(uniform_classifier, "8w2s").auroc() is None
    assert evaluate(uniform_classifier, with_unknown=False).auroc() is None


@pytest.mark.parametrize("size", [7, 250])  # with 250, one of two processes has no episodes
def test_sums_of_two_processes_add_up(size, monkeypatch):
    monkeypatch.setattr(evaluate_module, "EPISODES_PER_DRAW", size)
    parts = [evaluate(gray_classifier, batch_slice=BatchSlice(rank, 2)).sums for rank in range(2)]
    for name, value in evaluate(gray_classifier).sums.items():
        torch.testing.assert_close(parts[0][name] + parts[1][name], value)


def test_episodes_are_the_same_without_unknown_queries():
    calls = []

    def classifier(support, labels, query, *, way):
        calls.append((support, query[:, : 5 * 3]))
        return gray_classifier(support, labels, query, way=way)

    evaluate(classifier)
    evaluate(classifier, with_unknown=False)
    (support, query), (support_again, query_again) = calls
    assert support_again.equal(support)
    assert query_again.equal(query)


def test_results_do_not_depend_on_the_batch_size(monkeypatch):
    expected = evaluate(gray_classifier)
    monkeypatch.setitem(evaluate_module.MAX_VALUES_PER_BATCH, "cpu", 1)
    results = evaluate(gray_classifier)
    assert torch.cat(results.accuracies).equal(torch.cat(expected.accuracies))
    assert results.auroc() == expected.auroc()


def test_progress_counts_episodes():
    counts = []
    evaluate(gray_classifier, progress=counts.append)
    assert sum(counts) == 40


def test_episodes_within_a_group():
    images = make_images(9)
    embeddings = images.pixels.float().flatten(1).mean(1)[:, None, None]
    supports = []

    def classifier(support, labels, query, *, way):
        supports.append(support)
        return gray_classifier(support, labels, query, way=way)

    options = {"query": 2, "episodes": 20, "with_unknown": False}
    setting = Setting.parse("3w1s within")
    evaluate_episodes(classifier, embeddings, episode_classes(images), setting, **options)
    for values in supports[0][:, :, 0, 0]:
        groups = {int(images.labels[(embeddings.flatten() == value).nonzero()[0]]) % 3 for value in values}
        assert len(groups) == 1
    with pytest.raises(SightlineError, match="must have classes in groups"):
        setting.check(ClassIndex.from_labels(images.labels, images.classes), 2)


def test_settings_that_the_classes_do_not_allow_are_refused_or_skipped():
    classes = episode_classes(make_images(4, per_class=5))
    config = EvaluationConfig(settings=("4w1s", "5w1s", "2w3s"), query=15)
    assert select_settings(config, classes, skip_infeasible=True) == (["4w1s", "2w3s"], 2)
    with pytest.raises(SightlineError, match="each class must have at least 16 images"):
        select_settings(config, classes, skip_infeasible=False)
    config = EvaluationConfig(settings=("5w1s", "2w9s"))
    with pytest.raises(SightlineError, match=r"5w1s: way must be at most .*; choose other settings with --settings"):
        select_settings(config, classes, skip_infeasible=True)
    assert select_settings(config, classes, skip_infeasible=True, can_lower_way=True) == (["4w1s"], 4)
    for too_few in (make_images(1, per_class=5), make_images(4, per_class=1)):
        with pytest.raises(SightlineError, match="5w1s: way must be at most"):
            select_settings(config, episode_classes(too_few), skip_infeasible=True, can_lower_way=True)


def test_evaluation_report_and_record():
    metrics = SettingMetrics(0.5, math.nan, 1.0, 0.25, None)
    evaluation = FewShotEvaluation("test", 8, 1, {"5w1s": metrics}, {"a": 0.25, "b": 0.75}, (3, 4), 2, ("20w1s",))
    lines = str(evaluation).splitlines()
    assert lines[0] == (
        "test set, 8 classes, 1 episodes per setting, 2 query images per class, too few classes or images for 20w1s"
    )
    assert lines[2].split()[:3] == ["5w1s", "50.00%", "±"]
    assert lines[3].startswith("official one-shot runs: 75.00% (3 of 4; 95% interval ")
    assert lines[-2:] == ["   25.00%  a", "   75.00%  b"]
    assert evaluation.summary().startswith("On the test set (8 classes, 1 episodes per setting): 5w1s 50.00% ± ")
    assert evaluation.to_dict()["settings"]["5w1s"]["calibration_error"] == 0.25
