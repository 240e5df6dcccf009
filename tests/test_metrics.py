import math

import pytest
import torch

from sightline.metrics import (
    auroc,
    classification_metrics,
    classification_sums,
    fit_calibration_scale,
    mean_interval,
    per_class_accuracy,
    update_classification_sums,
    wilson_interval,
)


def test_wilson_interval_equals_the_published_example():
    low, high = wilson_interval(8, 10)
    assert (low, high) == pytest.approx((0.490, 0.943), abs=1e-3)
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == 1


def test_mean_interval_is_1_96_standard_errors():
    values = torch.tensor([0.2, 0.4, 0.9])
    mean, half = mean_interval(values)
    assert mean == pytest.approx(0.5)
    assert half == pytest.approx(1.96 * float(values.double().std()) / math.sqrt(3))
    assert math.isnan(mean_interval(torch.tensor([1.0]))[1])


def test_auroc_equals_the_fraction_of_ordered_pairs():
    positive, negative = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.0, 2.0])
    pairs = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auroc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


def test_sums_of_two_batches_equal_those_of_one():
    logits, labels = torch.randn(11, 3), torch.randint(3, (11,))
    whole = classification_sums(3, torch.device("cpu"))
    update_classification_sums(whole, logits, labels)
    parts = classification_sums(3, torch.device("cpu"))
    for part in (slice(0, 5), slice(5, 11)):
        update_classification_sums(parts, logits[part], labels[part])
    torch.testing.assert_close(parts, whole)
    metrics = classification_metrics(whole)
    assert metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert metrics["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), abs=1e-6)
    assert set(per_class_accuracy(whole, ("a", "b", "c"))) <= {"a", "b", "c"}


def test_masked_rows_do_not_count():
    logits, labels = torch.randn(6, 3), torch.randint(3, (6,))
    masked, kept = (classification_sums(3, torch.device("cpu")) for _ in range(2))
    mask = torch.tensor([True, True, False, True, False, False])
    update_classification_sums(masked, logits, labels, mask=mask)
    update_classification_sums(kept, logits[mask], labels[mask])
    torch.testing.assert_close(masked, kept)


def test_calibration_error_of_a_certain_and_always_wrong_classifier_is_one():
    sums = classification_sums(2, torch.device("cpu"))
    update_classification_sums(sums, torch.tensor([[100.0, 0.0]] * 5), torch.ones(5, dtype=torch.long))
    assert classification_metrics(sums)["calibration_error"] == pytest.approx(1)


def test_calibration_scale_recovers_the_temperature_of_the_labels():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 4, generator=generator)
    labels = torch.multinomial((logits * 2.5).softmax(-1), 1, generator=generator)[:, 0]
    assert fit_calibration_scale([(logits, labels)]) == pytest.approx(2.5, rel=0.05)
    assert fit_calibration_scale([(logits, labels)], prior_std=0.5) == pytest.approx(2.5, rel=0.05)


def test_calibration_scale_is_bounded_and_a_prior_pulls_it_to_one():
    logits, labels = torch.eye(3) * 5, torch.arange(3)
    assert 1 / 20 <= fit_calibration_scale([(logits, labels)]) <= 20
    assert fit_calibration_scale([(logits, labels)], prior_std=0.01) == pytest.approx(1, abs=0.05)
